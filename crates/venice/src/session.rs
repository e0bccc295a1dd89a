//! The session of a daemon (setsid) and its CPU share.

use std::fs;

/// The file that sets a session's CPU share (sched(7), "The autogroup feature"), as a nice value.
const SHARE: &str = "/proc/self/autogroup";
/// Nice value with about nine times the weight of another session.
const AHEAD: &str = "-10";

/// Starts a session, which does not end with the terminal.
///
/// If the kernel shares processors by session (autogroup), the session gets a higher weight: a
/// daemon uses little CPU time, and its peers suspect it dead after two seconds without an answer.
/// This needs CAP_SYS_NICE (checked by `venice doctor`); without it the session has the usual
/// weight.
///
/// # Errors
/// Returns the kernel's error if this process already leads a process group.
pub fn start() -> rustix::io::Result<()> {
    rustix::process::setsid()?;
    // Kernels without autogroups have no such file.
    let _ = fs::write(SHARE, AHEAD);
    Ok(())
}
