//! Locks a donor's own memory.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

use crate::doctor::has_capability;

/// Keeps the kernel from swapping this process out, later pages included. If donors swap to each
/// other's memory, two agents could otherwise wait for each other's pages forever.
///
/// Without the privilege to lock all that it will ever need, it locks nothing: a limit reached
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
    // Locks only pages in use: lent but unused memory takes no pages.
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(errno) = mlockall(all) {
        tracing::warn!("this agent's own memory is not locked: {errno}");
    }
}
