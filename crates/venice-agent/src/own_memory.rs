//! An agent that lends is not swapped out itself.
//!
//! Its machine may swap to what others lend it, and they to what it lends: were pages of their agents among
//! what leaves, two machines could wait for each other's for ever. What is lent is locked anyway
//! (`venice-memory`).

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities};

/// Locks all that this process has in memory, and what it will have, each page once it is touched.
///
/// Where the limit on locked memory is for this process nothing is locked, and that is logged: with all to come
/// locked too, memory beyond the limit would be refused.
pub(crate) fn keep_resident() {
    if !is_unlimited() {
        return tracing::warn!(
            "this agent's own memory may be swapped out, since the limit on locked memory holds for it: do not \
             let this machine swap to a rack that it lends to (`ulimit -l unlimited`, or run the agent as root)"
        );
    }
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(error) = mlockall(all) {
        tracing::warn!(%error, "this agent's own memory may be swapped out: it cannot be locked");
    }
}

fn is_unlimited() -> bool {
    let may_lock = |sets: CapabilitySets| sets.effective.contains(CapabilitySet::IPC_LOCK);
    getrlimit(Resource::Memlock).current.is_none() || capabilities(None).is_ok_and(may_lock)
}
