//! The time for which a Monitor Node may act on its view of the store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Time after the last confirmed change until the Monitor Node stops serving. It is longer than the
/// failover to another member of etcd takes, and far shorter than the margin of revocations.
const FRESH_FOR: Duration = Duration::from_secs(6);

/// A deadline for acting on the view of the store, checked before every action that no condition in
/// the store guards. A process that stalled finds its view outdated before it acts.
#[derive(Debug, Clone)]
pub(crate) struct Tenure {
    /// `None` is unlimited: no other process uses the store.
    until: Option<Arc<Mutex<Until>>>,
}

#[derive(Debug)]
struct Until {
    at: Instant,
    /// True if later confirmations do not extend it.
    is_final: bool,
}

impl Tenure {
    pub(crate) fn for_ever() -> Self {
        Self { until: None }
    }

    /// Creates the deadline for a view complete up to `known_at`.
    pub(crate) fn since(known_at: Instant) -> Self {
        Self::until_at(known_at + FRESH_FOR)
    }

    fn until_at(at: Instant) -> Self {
        Self { until: Some(Arc::new(Mutex::new(Until { at, is_final: false }))) }
    }

    /// Extends the deadline for a view complete up to `known_at`.
    pub(crate) fn renew(&self, known_at: Instant) {
        if let Some(mut until) = self.lock()
            && !until.is_final
        {
            until.at = known_at + FRESH_FOR;
        }
    }

    /// Ends it for good: the peers consider this member gone, or the store was re-created.
    pub(crate) fn end(&self) {
        if let Some(mut until) = self.lock() {
            *until = Until { at: Instant::now(), is_final: true };
        }
    }

    fn until(&self) -> Option<Instant> {
        Some(self.lock()?.at)
    }

    fn lock(&self) -> Option<MutexGuard<'_, Until>> {
        Some(self.until.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// True if the view may be acted on.
    pub(crate) fn lasts(&self) -> bool {
        self.until().is_none_or(|until| Instant::now() < until)
    }

    /// Waits until the deadline has passed.
    pub(crate) async fn over(&self) {
        while let Some(until) = self.until() {
            if Instant::now() >= until {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
        std::future::pending().await
    }

    #[cfg(test)]
    pub(crate) fn past() -> Self {
        Self::until_at(Instant::now())
    }
}
