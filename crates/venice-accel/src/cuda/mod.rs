//! CUDA: devices of this machine, the service of a granted one, its messages.

pub mod drivers;
pub mod found;
#[expect(unsafe_code, reason = "calls the driver")]
mod host;
#[expect(unsafe_code, reason = "calls the vendor's library")]
pub mod library;
pub mod listing;
pub mod options;
pub mod wire;

pub use self::host::ENTRY;

/// Name of the service.
pub const SERVICE: &str = "cuda";
