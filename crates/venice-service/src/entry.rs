//! The services that a program can host.

use crate::service::Service;
use crate::spec::HostSpec;

/// A service in the list of a program that hosts services.
#[derive(Clone, Copy, Debug)]
pub struct ServiceEntry {
    /// Name of the service.
    pub name: &'static str,
    /// Makes the service by the spec of its host; runs confined. The error is for the log.
    pub make: fn(&HostSpec) -> Result<Box<dyn Service>, String>,
}
