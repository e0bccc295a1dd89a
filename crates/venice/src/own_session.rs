//! The session of a daemon, and its share of the processors.

use std::fs;

/// Where a session's share is said (sched(7), "The autogroup feature"); of the weight that `nice` gives
/// a process.
const SHARE: &str = "/proc/self/autogroup";
/// Nine times another session's weight.
const AHEAD: &str = "-10";

/// Starts a session, which the terminal's end does not end.
///
/// Where the kernel shares processors out by session, this one goes before others: a daemon does little,
/// and who waits for it takes it for dead after two seconds. That takes CAP_SYS_NICE (`venice doctor`
/// tells); without, it waits with all others.
///
/// # Errors
/// The kernel's, when this process leads a group already.
pub fn start() -> rustix::io::Result<()> {
    rustix::process::setsid()?;
    // Kernels that share nothing out by session have no such file.
    let _ = fs::write(SHARE, AHEAD);
    Ok(())
}
