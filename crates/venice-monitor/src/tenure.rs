//! For how long a Monitor Node may go by what it knows of the store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long after the last sign that it hears what others change a Monitor Node serves no more: longer
/// than a member of etcd that hangs is noticed and another one asked. Far shorter than what
/// revocations reach beyond the moment they are made.
const FRESH_FOR: Duration = Duration::from_secs(6);

/// For how long we hear the others as far as we know, looked at before anything is done that no
/// condition in the store guards: whoever stood still finds here that it is out of date, before it does
/// the next thing.
#[derive(Debug, Clone)]
pub(crate) struct Tenure {
    /// `None`: for ever, since nobody else has the store.
    until: Option<Arc<Mutex<Until>>>,
}

#[derive(Debug)]
struct Until {
    at: Instant,
    /// Whatever is heard from now on.
    is_final: bool,
}

impl Tenure {
    pub(crate) fn for_ever() -> Self {
        Self { until: None }
    }

    /// All that was in the store at that moment is known.
    pub(crate) fn since(known_at: Instant) -> Self {
        Self::until_at(known_at + FRESH_FOR)
    }

    fn until_at(at: Instant) -> Self {
        Self { until: Some(Arc::new(Mutex::new(Until { at, is_final: false }))) }
    }

    /// The same, later.
    pub(crate) fn renew(&self, known_at: Instant) {
        if let Some(mut until) = self.lock()
            && !until.is_final
        {
            until.at = known_at + FRESH_FOR;
        }
    }

    /// The others do not count on us any more, or the store is another: over now, for good.
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

    /// We may go by what we know.
    pub(crate) fn lasts(&self) -> bool {
        self.until().is_none_or(|until| Instant::now() < until)
    }

    /// Waits until that is over.
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
