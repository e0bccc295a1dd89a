//! A donor's own memory stays in memory.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

use crate::doctor::has_capability;

/// Keeps the kernel from swapping this process out, pages that come later included. Where donors swap
/// to each other's memory, two agents could otherwise wait for each other's pages for ever.
///
/// Without a right to lock all that it will ever need, nothing is locked: a limit that is reached
/// later would refuse the agent memory.
pub fn lock() {
    let is_unlimited = getrlimit(Resource::Memlock).current.is_none();
    if !is_unlimited && !has_capability(CapabilitySet::IPC_LOCK) {
        tracing::info!(
            "this agent's own memory is not locked: the limit on locked memory is too low \
             (`ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit, or run as root)"
        );
        return;
    }
    // Only what is used: what is lent and not used yet is no memory at all.
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(errno) = mlockall(all) {
        tracing::warn!("this agent's own memory is not locked: {errno}");
    }
}
