//! The Monitor Node as probes and Prometheus see it, over all of its sessions.

use crate::driver::Driver;
use crate::metrics::{Counters, expose_door};
use crate::service::Service;
use std::sync::{Arc, Mutex, PoisonError};
use venice_control::server::TlsServer;
use venice_observe::{Exposition, NotReady, Source};

/// State of a Monitor Node for `--metrics`.
pub(crate) struct Observed {
    /// The server of the present session, or of the last one.
    door: Mutex<Arc<TlsServer>>,
    pub(crate) counters: Arc<Counters>,
    /// The session that serves, or the reason why none does.
    serving: Mutex<Result<Arc<Service>, NotReady>>,
}

impl Observed {
    pub(crate) fn new(door: Arc<TlsServer>) -> Self {
        let serving = Mutex::new(Err(not_ready("the store is not open yet")));
        Self { door: Mutex::new(door), counters: Arc::new(Counters::new()), serving }
    }

    /// Takes the server of later sessions.
    pub(crate) fn set_door(&self, door: &Arc<TlsServer>) {
        *self.door.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(door);
    }

    /// Notes that a session serves.
    pub(crate) fn note_serving(&self, service: &Arc<Service>) {
        self.set(Ok(Arc::clone(service)));
    }

    /// Notes that none serves.
    pub(crate) fn note_away(&self, why: &str) {
        self.set(Err(not_ready(why)));
    }

    fn set(&self, state: Result<Arc<Service>, NotReady>) {
        *self.serving.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn serving(&self) -> Result<Arc<Service>, NotReady> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn obstacle(&self) -> Result<Arc<Service>, NotReady> {
        let service = self.serving()?;
        if !service.tenure.lasts() {
            return Err(not_ready("cut off from its store"));
        }
        match service.query(|driver| driver.node.obstacle().map(str::to_owned)).await {
            Some(None) => Ok(service),
            Some(Some(why)) => Err(NotReady(why)),
            None => Err(not_ready("the Monitor Node is stopping")),
        }
    }
}

fn not_ready(why: &str) -> NotReady {
    NotReady(why.to_owned())
}

impl Source for Observed {
    async fn metrics(&self) -> Exposition {
        let mut metrics = Exposition::new(env!("CARGO_PKG_VERSION"));
        let serving = self.obstacle().await;
        metrics.gauge(
            "venice_monitor_ready",
            "1 if the Monitor Node serves, else 0: /readyz says why",
            f64::from(serving.is_ok()),
        );
        self.counters.expose(&mut metrics);
        let door = Arc::clone(&self.door.lock().unwrap_or_else(PoisonError::into_inner));
        expose_door(&mut metrics, door.connections(), door.refused());
        if let Ok(service) = self.serving()
            && let Some(snapshot) = service.query(Driver::snapshot).await
        {
            snapshot.expose(&mut metrics);
        }
        metrics
    }

    async fn ready(&self) -> Result<(), NotReady> {
        self.obstacle().await.map(drop)
    }
}
