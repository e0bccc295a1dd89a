//! The list of this machine's devices, by way of a child process: vendors' libraries crash, hang and
//! start threads, so that no daemon loads them.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};
use serde::{Deserialize, Serialize};

use super::found::{OpenClDevice, devices};
use super::library::{Library, OpenClError};

/// Name of the hidden subcommand of `venice` that prints the list.
pub const SUBCOMMAND: &str = "opencl-devices";
/// Longest wait for the drivers.
const LIMIT: Duration = Duration::from_secs(20);
/// Interval between two checks whether the child has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Bytes of the child's output that are read.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;

/// Error of a listing.
#[derive(Debug, thiserror::Error)]
pub enum ListingError {
    /// The child cannot be started or watched.
    #[error("listing OpenCL devices: {0}")]
    Child(#[from] io::Error),
    /// A driver hangs.
    #[error("listing OpenCL devices: a driver does not answer: see /etc/OpenCL/vendors")]
    Timeout,
    /// A driver crashed.
    #[error("listing OpenCL devices: a driver ended it ({how}): see /etc/OpenCL/vendors")]
    Crash {
        /// Signal or exit code, and the last line of its log.
        how: String,
    },
    /// No ICD loader is installed.
    #[error("{0}")]
    NoLoader(String),
    /// A driver refuses.
    #[error("listing OpenCL devices: {0}: see /etc/OpenCL/vendors")]
    Refused(String),
}

/// Line that the child prints.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Listed {
    Devices(Vec<OpenClDevice>),
    NoLoader(String),
    Error(String),
}

/// Prints the list as the last line of standard output, for [`devices_by`]: the whole of the hidden
/// subcommand.
pub fn print_devices() -> ExitCode {
    // The parent kills this process after a while; these are for a parent that dies before.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let listed = match Library::load().and_then(|library| devices(&library)) {
        Ok(devices) => Listed::Devices(devices),
        Err(error @ OpenClError::NoLoader(_)) => Listed::NoLoader(error.to_string()),
        Err(error) => Listed::Error(error.to_string()),
    };
    let line = serde_json::to_string(&listed).expect("plain data");
    // On a line of its own, whatever a driver printed.
    match writeln!(io::stdout(), "\n{line}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Lists the devices by a child process: `program` with the argument [`SUBCOMMAND`]. Its environment
/// is almost empty, as that of service hosts, which will use the devices.
///
/// # Errors
/// [`ListingError`]. No driver, and none with a device, is an empty list.
pub fn devices_by(program: &Path) -> Result<Vec<OpenClDevice>, ListingError> {
    let dir = tempfile::Builder::new().prefix("venice-opencl-").tempdir()?;
    let (mut output, mut log) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut command = Command::new(program);
    command.arg(SUBCOMMAND).env_clear().env("PATH", "/usr/bin:/bin");
    // PoCL fails without a place for its cache.
    for name in ["HOME", "TMPDIR", "POCL_CACHE_DIR"] {
        command.env(name, dir.path());
    }
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(log.try_clone()?);
    let ended = run(&mut command)?;
    let text = text_of(&mut output)?;
    match last_line(&text).map(serde_json::from_str) {
        Some(Ok(Listed::Devices(devices))) if ended.success() => Ok(devices),
        Some(Ok(Listed::NoLoader(why))) if ended.success() => Err(ListingError::NoLoader(why)),
        Some(Ok(Listed::Error(why))) if ended.success() => Err(ListingError::Refused(why)),
        Some(_) | None => Err(ListingError::Crash { how: how(ended, &text_of(&mut log)?) }),
    }
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Result<ExitStatus, ListingError> {
    let mut child = command.spawn()?;
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(ended) = child.try_wait()? {
            return Ok(ended);
        }
        if Instant::now() > until {
            child.kill()?;
            child.wait()?;
            return Err(ListingError::Timeout);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

pub(crate) fn text_of(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

pub(crate) fn last_line(text: &str) -> Option<&str> {
    text.lines().rev().map(str::trim).find(|line| !line.is_empty())
}

pub(crate) fn how(ended: ExitStatus, log: &str) -> String {
    let how = match (ended.signal(), ended.code()) {
        (Some(signal), _) => venice_service::signal_name(signal),
        (None, code) => format!("exit code {}", code.unwrap_or(0)),
    };
    last_line(log).map_or_else(|| how.clone(), |line| format!("{how}: {line}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Lists by a shell script in the place of the child.
    fn listed_by(script: &str) -> Result<Vec<OpenClDevice>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("child");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        devices_by(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn noise_of_drivers_is_skipped() {
        let devices = listed_by("printf 'a driver says hello'; printf '\\n{\"devices\":[]}\\n'");
        assert_eq!(devices, Ok(Vec::new()));
        let missing = listed_by("echo '{\"no-loader\":\"no file\"}'");
        assert_eq!(missing, Err("no file".to_owned()));
        let refused = listed_by("echo '{\"error\":\"error -6\"}'").unwrap_err();
        assert!(refused.contains("error -6: see /etc"), "{refused}");
    }

    #[test]
    fn crash_names_last_line() {
        let crash = listed_by("echo 'cannot open /dev/gpu' >&2; kill -SEGV $$").unwrap_err();
        assert!(crash.contains("SIGSEGV: cannot open /dev/gpu"), "{crash}");
        let code = listed_by("echo '{\"devices\":[]}'; exit 3").unwrap_err();
        assert!(code.contains("exit code 3"), "{code}");
        assert!(listed_by("true").unwrap_err().contains("exit code 0"));
    }

    #[test]
    fn missing_program_is_error() {
        let missing = devices_by(Path::new("/nonexistent/venice")).unwrap_err();
        assert!(matches!(missing, ListingError::Child(_)), "{missing}");
    }
}
