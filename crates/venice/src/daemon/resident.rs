//! An agent that is never swapped out.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// Keeps what this process uses in memory, now and later, and says so in the log where it may not.
///
/// A machine that lends may swap to another one's memory, and that one to this one's. If an agent's own
/// pages were among what is swapped, each agent could come to wait for a page that the other one has to
/// fetch, for ever. Pages are locked as they are touched: most of what a process maps it never uses.
pub fn stay_in_memory() {
    // With a limit, mappings that are never used would count towards it, and fail.
    let is_unlimited = getrlimit(Resource::Memlock).current.is_none()
        || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    let why = match is_unlimited.then(|| mlockall(all)) {
        Some(Ok(())) => return,
        Some(Err(error)) => error.to_string(),
        None => "its locked memory is limited".to_owned(),
    };
    tracing::warn!(
        why,
        "this process may be swapped out, and be slow then: give it CAP_IPC_LOCK, or \
         LimitMEMLOCK=infinity in its unit"
    );
}
