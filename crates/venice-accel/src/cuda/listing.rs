//! The list of this machine's CUDA devices, by way of a child process, as that of
//! [OpenCL](crate::opencl::listing) devices.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};
use serde::{Deserialize, Serialize};

use super::found::{CudaDevice, devices};
use super::library::{CudaError, Library, VARIABLE, named};
use crate::opencl::listing::{ListingError, how, last_line, run, text_of};

/// Name of the hidden subcommand of `venice` that prints the list.
pub const SUBCOMMAND: &str = "cuda-devices";
/// Code of a driver without a device.
const NO_DEVICE: i32 = 100;

/// Error of a listing.
#[derive(Debug, thiserror::Error)]
pub enum CudaListingError {
    /// The child cannot be started or watched.
    #[error("listing CUDA devices: {0}")]
    Child(#[from] io::Error),
    /// The driver hangs.
    #[error("listing CUDA devices: the driver does not answer")]
    Timeout,
    /// The driver crashed.
    #[error("listing CUDA devices: the driver ended it ({0})")]
    Crash(String),
    /// No driver is installed.
    #[error("{0}")]
    NoDriver(String),
    /// The driver refuses.
    #[error("listing CUDA devices: {0}")]
    Refused(String),
}

/// Line that the child prints.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Listed {
    Devices(Vec<CudaDevice>),
    NoDriver(String),
    Error(String),
}

/// Prints the list as the last line of standard output, for [`devices_by`]: the whole of the hidden
/// subcommand.
pub fn print_devices() -> ExitCode {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let listed = match Library::load().and_then(|library| devices(&library)) {
        Ok(devices) => Listed::Devices(devices),
        Err(CudaError::Failed { code: NO_DEVICE, .. }) => Listed::Devices(Vec::new()),
        Err(error @ CudaError::NoDriver(_)) => Listed::NoDriver(error.to_string()),
        Err(error @ (CudaError::Old(_) | CudaError::Failed { .. })) => {
            Listed::Error(error.to_string())
        }
    };
    let line = serde_json::to_string(&listed).expect("plain data");
    match writeln!(io::stdout(), "\n{line}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Lists the devices by a child process: `program` with the argument [`SUBCOMMAND`].
///
/// # Errors
/// [`CudaListingError`]. A driver without a device is an empty list.
pub fn devices_by(program: &Path) -> Result<Vec<CudaDevice>, CudaListingError> {
    let dir = tempfile::Builder::new().prefix("venice-cuda-").tempdir()?;
    let (mut output, mut log) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut command = Command::new(program);
    command.arg(SUBCOMMAND).env_clear().env("PATH", "/usr/bin:/bin");
    for name in ["HOME", "TMPDIR", "CUDA_CACHE_PATH"] {
        command.env(name, dir.path());
    }
    command.envs(named().map(|library| (VARIABLE, library)));
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(log.try_clone()?);
    let ended = run(&mut command).map_err(|error| match error {
        ListingError::Child(error) => CudaListingError::Child(error),
        ListingError::Timeout => CudaListingError::Timeout,
        ListingError::Crash { how } => CudaListingError::Crash(how),
        ListingError::NoLoader(why) | ListingError::Refused(why) => CudaListingError::Refused(why),
    })?;
    let text = text_of(&mut output)?;
    match last_line(&text).map(serde_json::from_str) {
        Some(Ok(Listed::Devices(devices))) if ended.success() => Ok(devices),
        Some(Ok(Listed::NoDriver(why))) if ended.success() => Err(CudaListingError::NoDriver(why)),
        Some(Ok(Listed::Error(why))) if ended.success() => Err(CudaListingError::Refused(why)),
        Some(_) | None => Err(CudaListingError::Crash(how(ended, &text_of(&mut log)?))),
    }
}
