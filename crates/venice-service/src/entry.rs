//! The services that a program can host.

use std::path::Path;

use crate::service::Service;
use crate::spec::HostSpec;

/// A service in the list of a program that hosts services.
#[derive(Clone, Copy, Debug)]
pub struct ServiceEntry {
    /// Name of the service.
    pub name: &'static str,
    /// Makes the service; runs confined, while sockets can still be made. The error is for the log.
    pub make: fn(&HostContext<'_>) -> Result<Box<dyn Service>, String>,
}

/// Description and directories of a host, from which its service is made.
#[derive(Clone, Copy, Debug)]
pub struct HostContext<'a> {
    /// Description of the host.
    pub spec: &'a HostSpec,
    /// Directory for sockets, beside that of the ring: recipients of this machine see it too.
    pub endpoint_dir: &'a Path,
    /// Directory that the host may fill.
    pub scratch_dir: &'a Path,
}
