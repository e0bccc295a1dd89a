//! Several Monitor Nodes with one store, all of which serve: each gives a sign of life in the store every
//! second, in a record that ends with it, and says there whom it does not hear.
//!
//! What is changed in the store is told in order. So whoever is told of its own sign has heard of all
//! that was changed before it gave it: that is what its [`Tenure`] goes by.

use crate::error::MonitorError;
use crate::tenure::Tenure;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior};
use venice_store::{EtcdStore, Lease, Store, StoreChange, StoreError, Transaction};
use venice_wire::NodeId;

/// Where the signs are.
pub(crate) const SIGNS: &str = "monitor/";
/// The record of whoever served alone, in a Venice whose Monitor Nodes took turns.
pub(crate) const SERVES_ALONE: &str = "monitor/serving";
const SIGN_EVERY: Duration = Duration::from_secs(1);
/// How long after its last sign the others count on one no more.
const LEASE: Duration = Duration::from_secs(5);

/// A sign of life.
#[derive(Debug, Serialize, Deserialize)]
struct Sign {
    /// Where it listens.
    addr: String,
    number: u64,
    /// The nodes that it does not hear.
    silent: BTreeSet<u32>,
}

/// What the one who gives signs and the one who hears them share.
#[derive(Debug, Default)]
struct Given {
    /// Signs that were not heard of yet: their numbers, and when they were given.
    waiting: VecDeque<(u64, Instant)>,
    silent: BTreeSet<u32>,
}

/// The other Monitor Nodes, and ourselves among them.
#[derive(Debug)]
pub(crate) struct Company {
    own: String,
    given: Arc<Mutex<Given>>,
    tenure: Tenure,
    /// By their record: the nodes that they do not hear.
    others: BTreeMap<String, BTreeSet<NodeId>>,
}

impl Company {
    /// All that was in the store at that moment is known.
    pub(crate) fn since(known_at: Instant) -> Result<Self, MonitorError> {
        let mut id = [0; 8];
        getrandom(&mut id, GetRandomFlags::empty())
            .map_err(|error| MonitorError::Random(error.into()))?;
        let own = format!("{SIGNS}{:016x}", u64::from_le_bytes(id));
        let tenure = Tenure::since(known_at);
        Ok(Self { own, given: Arc::default(), tenure, others: BTreeMap::new() })
    }

    pub(crate) fn tenure(&self) -> Tenure {
        self.tenure.clone()
    }

    /// A sign was given, or its giver is no more.
    pub(crate) fn hear(&mut self, key: String, value: Option<&[u8]>) {
        let sign: Option<Sign> = value.and_then(|value| serde_json::from_slice(value).ok());
        match sign {
            Some(sign) if key == self.own => self.hear_ourselves(sign.number),
            Some(sign) => {
                let silent = sign.silent.into_iter().map(NodeId).collect();
                if self.others.insert(key, silent).is_none() {
                    tracing::info!(
                        other = sign.addr,
                        "another Monitor Node serves beside this one"
                    );
                }
            }
            None => drop(self.others.remove(&key)),
        }
    }

    fn hear_ourselves(&self, number: u64) {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        while given.waiting.front().is_some_and(|(of, _)| *of <= number) {
            if let Some((of, at)) = given.waiting.pop_front()
                && of == number
            {
                self.tenure.renew(at);
            }
        }
    }

    /// The nodes that none of the others hears; `None`: there are no others.
    pub(crate) fn silent_elsewhere(&self) -> Option<BTreeSet<NodeId>> {
        self.others.values().cloned().reduce(|all, one| &all & &one)
    }

    /// Tells the others, with the next sign, whom we do not hear.
    pub(crate) fn tell_silent(&self, silent: impl Iterator<Item = NodeId>) {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.silent = silent.map(|node| node.0).collect();
    }

    /// Gives signs for as long as it is polled.
    pub(crate) fn give_signs(
        &self,
        store: EtcdStore,
        addr: String,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (own, given) = (self.own.clone(), Arc::clone(&self.given));
        async move {
            let mut giver = Giver { store, own, addr, given, number: 0, lease: None };
            let mut ticks = tokio::time::interval(SIGN_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                if let Err(error) = giver.give().await {
                    tracing::warn!(%error, "the store does not answer");
                }
            }
        }
    }

    /// The others need not wait until they find out. Ends soon in any case.
    pub(crate) fn farewell(&self, store: EtcdStore) -> impl Future<Output = ()> + Send + use<> {
        let own = self.own.clone();
        async move {
            let gone = store.commit(Transaction::of(vec![StoreChange::remove(own)]));
            // It ends by itself soon.
            let _ = tokio::time::timeout(SIGN_EVERY, gone).await;
        }
    }
}

struct Giver {
    store: EtcdStore,
    own: String,
    addr: String,
    given: Arc<Mutex<Given>>,
    number: u64,
    lease: Option<Lease>,
}

impl Giver {
    async fn give(&mut self) -> Result<(), StoreError> {
        let lease = self.lease().await?;
        self.number += 1;
        let sign = {
            let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
            given.waiting.push_back((self.number, Instant::now()));
            let (addr, silent) = (self.addr.clone(), given.silent.clone());
            Sign { addr, number: self.number, silent }
        };
        let value = serde_json::to_vec(&sign).expect("signs are plain data");
        let change = StoreChange::put_leased(self.own.clone(), value, lease);
        match self.store.commit(Transaction::of(vec![change])).await {
            Err(StoreError::LeaseOver) => {
                self.lease = None;
                Ok(())
            }
            done => done.map(drop),
        }
    }

    async fn lease(&mut self) -> Result<Lease, StoreError> {
        if let Some(lease) = self.lease {
            match self.store.keep_alive(lease).await {
                Ok(()) => return Ok(lease),
                Err(StoreError::LeaseOver) => {}
                Err(error) => return Err(error),
            }
        }
        let lease = self.store.grant_lease(LEASE).await?;
        self.lease = Some(lease);
        Ok(lease)
    }
}
