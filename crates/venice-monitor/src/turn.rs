//! Several Monitor Nodes with one store: one serves the rack, the others stand by, and one of them
//! goes on when its turn has come.
//!
//! Whoever serves keeps a record alive in the store, and every transaction of its is made on condition
//! that the record is still the one it put. So one that is late, stopped or cut off changes nothing
//! any more, whatever it believes.

use crate::error::MonitorError;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior};
use venice_store::{
    Condition, Entry, EtcdStore, Lease, Outcome, Revision, Store, StoreChange, StoreError,
    Transaction,
};

/// The record of whoever serves: where it listens.
pub(crate) const SERVING_KEY: &str = "monitor/serving";
/// How long after its last word one that is silent is followed by another.
const LEASE: Duration = Duration::from_secs(5);
/// How often it gives word.
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// How long before the lease ends it serves no more: clocks run at different speeds.
const MARGIN: Duration = Duration::from_secs(1);

/// Our turn to serve.
pub(crate) struct Turn {
    store: EtcdStore,
    lease: Lease,
    since: Revision,
    tenure: Tenure,
}

/// For how long it is our turn as far as we know, looked at before anything is done that no condition
/// in the store guards: whoever stood still finds here that its turn is over, before it does the next
/// thing.
#[derive(Debug, Clone)]
pub(crate) struct Tenure {
    /// `None`: for ever, since nobody else has the store.
    until: Option<Arc<Mutex<Instant>>>,
}

impl Tenure {
    pub(crate) fn for_ever() -> Self {
        Self { until: None }
    }

    /// Of a lease that was asked for, or renewed, at that moment.
    fn of_lease(asked: Instant) -> Self {
        Self { until: Some(Arc::new(Mutex::new(asked + LEASE - MARGIN))) }
    }

    fn renew(&self, asked: Instant) {
        if let Some(until) = &self.until {
            *until.lock().unwrap_or_else(PoisonError::into_inner) = asked + LEASE - MARGIN;
        }
    }

    fn until(&self) -> Option<Instant> {
        let until = self.until.as_ref()?;
        Some(*until.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// It is our turn at this moment.
    pub(crate) fn lasts(&self) -> bool {
        self.until().is_none_or(|until| Instant::now() < until)
    }

    #[cfg(test)]
    pub(crate) fn over() -> Self {
        Self { until: Some(Arc::new(Mutex::new(Instant::now()))) }
    }
}

impl Turn {
    /// Waits until nobody else serves.
    pub(crate) async fn wait(store: EtcdStore, listen: &str) -> Result<Self, MonitorError> {
        let mut told = None;
        loop {
            let granted = Instant::now();
            let lease = store.grant_lease(LEASE).await?;
            let conditions = vec![Condition::is_absent(SERVING_KEY)];
            let changes = vec![StoreChange::put_leased(SERVING_KEY, listen, lease)];
            let other = match store.commit(Transaction { conditions, changes }).await {
                Ok(Outcome::Committed(since)) => {
                    return Ok(Self { store, lease, since, tenure: Tenure::of_lease(granted) });
                }
                Ok(Outcome::Conflict(found)) => found.into_iter().next(),
                // It took longer than it was to last.
                Err(StoreError::LeaseOver) => continue,
                Err(error) => return Err(error.into()),
            };
            store.end_lease(lease).await?;
            if let Some(other) = other {
                tell(&mut told, &other);
                until_it_ends(&store, &other).await?;
            }
        }
    }

    pub(crate) fn store(&self) -> &EtcdStore {
        &self.store
    }

    /// That it is still our turn.
    pub(crate) fn condition(&self) -> Condition {
        Condition::is_as_at(SERVING_KEY, self.since).under(self.lease)
    }

    pub(crate) fn tenure(&self) -> Tenure {
        self.tenure.clone()
    }

    /// Gives word again and again; returns when that was not possible in time.
    pub(crate) fn keep(&self) -> impl Future<Output = ()> + Send + use<> {
        let (store, lease, tenure) = (self.store.clone(), self.lease, self.tenure());
        async move {
            let mut ticks = tokio::time::interval(RENEW_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while let Some(deadline) = tenure.until() {
                let renewal = async {
                    ticks.tick().await;
                    (Instant::now(), store.keep_alive(lease).await)
                };
                match tokio::time::timeout_at(deadline, renewal).await {
                    Ok((asked, Ok(()))) => tenure.renew(asked),
                    Ok((_, Err(StoreError::LeaseOver))) | Err(_) => return,
                    Ok((_, Err(error))) => tracing::warn!(%error, "the store does not answer"),
                }
            }
        }
    }

    /// Lets another one serve at once.
    pub(crate) async fn end(self) {
        if let Err(error) = self.store.end_lease(self.lease).await {
            tracing::warn!(%error, "another Monitor Node has to wait until this turn ends by itself");
        }
    }
}

fn tell(told: &mut Option<Vec<u8>>, other: &Entry) {
    if told.as_ref() != Some(&other.value) {
        let addr = String::from_utf8_lossy(&other.value);
        tracing::info!(serving = %addr, "stands by: another Monitor Node serves the rack");
        *told = Some(other.value.clone());
    }
}

/// Waits until that record is gone, or it is not known whether it is.
async fn until_it_ends(store: &EtcdStore, other: &Entry) -> Result<(), MonitorError> {
    let mut watch = store.watch(other.changed_at);
    loop {
        match watch.next().await {
            Ok(batch) if batch.changes.iter().any(|change| change.key == SERVING_KEY) => {
                return Ok(());
            }
            Ok(_) => {}
            Err(StoreError::Behind) => {
                tokio::time::sleep(RENEW_EVERY).await;
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    }
}
