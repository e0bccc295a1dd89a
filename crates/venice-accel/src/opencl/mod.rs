//! OpenCL: devices of this machine, the service of a granted one, sessions with it.

pub mod code;
pub mod drivers;
pub mod found;
#[expect(unsafe_code, reason = "calls the driver")]
mod host;
#[expect(unsafe_code, reason = "calls the vendors' libraries")]
pub mod library;
pub mod listing;
pub mod losses;
pub mod options;
pub mod session;
pub mod wire;

pub use self::host::ENTRY;

/// Name of the platform that recipients see.
pub const PLATFORM_NAME: &str = "Venice";
/// Name of the service.
pub const SERVICE: &str = "opencl";
