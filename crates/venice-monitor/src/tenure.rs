//! The time for which a Monitor Node may act on its view of the store.

use crate::clock::nanoseconds;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use venice_rack::monitor_node::Membership;

/// The members, shared by the tasks that write this one's sign of life, read it back, and act on the
/// view. `None` is unlimited: no other process uses the store.
#[derive(Debug, Clone)]
pub(crate) struct Tenure(Option<(Instant, Arc<Mutex<Membership<String>>>)>);

impl Tenure {
    pub(crate) fn for_ever() -> Self {
        Self(None)
    }

    /// Creates that of a member whose view is complete up to now.
    pub(crate) fn of_member(own: String) -> Self {
        Self(Some((Instant::now(), Arc::new(Mutex::new(Membership::new(own, 0))))))
    }

    /// Returns the members and the time on their clock.
    pub(crate) fn membership(&self) -> Option<(MutexGuard<'_, Membership<String>>, u64)> {
        let (since, membership) = self.0.as_ref()?;
        let membership = membership.lock().unwrap_or_else(PoisonError::into_inner);
        Some((membership, nanoseconds(since.elapsed())))
    }

    /// Ends it for good.
    pub(crate) fn end(&self) {
        if let Some((mut membership, _)) = self.membership() {
            membership.end();
        }
    }

    /// Returns the time left; `None` if it is unlimited.
    fn left(&self) -> Option<Duration> {
        let (membership, now_ns) = self.membership()?;
        Some(Duration::from_nanos(membership.until_ns().saturating_sub(now_ns)))
    }

    /// True if the view may be acted on.
    pub(crate) fn lasts(&self) -> bool {
        self.left().is_none_or(|left| !left.is_zero())
    }

    /// Waits until the deadline has passed.
    pub(crate) async fn over(&self) {
        while let Some(left) = self.left() {
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
        std::future::pending().await
    }

    #[cfg(test)]
    pub(crate) fn past() -> Self {
        let tenure = Self::of_member(String::new());
        tenure.end();
        tenure
    }
}
