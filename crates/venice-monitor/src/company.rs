//! Several Monitor Nodes with one store, all of which serve: each gives a sign of life in the store every
//! second, in a record that ends with it, and says there whom it does not hear.
//!
//! What is changed in the store is told in order. So whoever is told of its own sign has heard of all
//! that was changed before it gave it: that is what its [`Tenure`] goes by.
//!
//! All that it changes it changes on condition that its record is still there, with the lease that it
//! was first put with. So who was given up for lost changes nothing; nor does who knows a store that has
//! been begun anew since, whose revisions may be the same by chance.

use crate::error::MonitorError;
use crate::tenure::Tenure;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior};
use venice_store::{
    Condition, Entry, EtcdStore, Lease, Store, StoreChange, StoreError, Transaction,
};
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

impl Sign {
    fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("signs are plain data")
    }
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
    addr: String,
    lease: Lease,
    given: Arc<Mutex<Given>>,
    tenure: Tenure,
    /// By their record: the nodes that they do not hear.
    others: BTreeMap<String, BTreeSet<NodeId>>,
}

impl Company {
    /// Gives the first sign. What is in the store is to be read after it.
    pub(crate) async fn join(store: &EtcdStore, addr: String) -> Result<Self, MonitorError> {
        let mut id = [0; 8];
        getrandom(&mut id, GetRandomFlags::empty())
            .map_err(|error| MonitorError::Random(error.into()))?;
        let own = format!("{SIGNS}{:016x}", u64::from_le_bytes(id));
        let tenure = Tenure::since(Instant::now());
        let lease = store.grant_lease(LEASE).await?;
        let first = Sign { addr: addr.clone(), number: 0, silent: BTreeSet::new() };
        let change = StoreChange::put_leased(own.clone(), first.to_json(), lease);
        store.commit(Transaction::of(vec![change])).await?;
        Ok(Self { own, addr, lease, given: Arc::default(), tenure, others: BTreeMap::new() })
    }

    /// We are one of those who serve.
    pub(crate) fn condition(&self) -> Condition {
        Condition::ends_with(self.own.clone(), self.lease)
    }

    /// It is not that which did not hold, where these were the records.
    pub(crate) fn is_among(&self, found: &[Entry]) -> bool {
        found.iter().any(|entry| entry.key == self.own)
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

    /// Gives signs for as long as it is polled, or until the others do not count on us any more.
    pub(crate) fn give_signs(&self, store: EtcdStore) -> impl Future<Output = ()> + Send + use<> {
        let (own, addr, lease) = (self.own.clone(), self.addr.clone(), self.lease);
        let mut giver =
            Giver { store, own, addr, lease, given: Arc::clone(&self.given), number: 0 };
        let tenure = self.tenure();
        async move {
            let mut ticks = tokio::time::interval(SIGN_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                match giver.give().await {
                    Ok(()) => {}
                    Err(StoreError::LeaseOver) => return tenure.end(),
                    Err(error) => tracing::warn!(%error, "cannot give a sign of life in the store"),
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
    lease: Lease,
    given: Arc<Mutex<Given>>,
    number: u64,
}

impl Giver {
    async fn give(&mut self) -> Result<(), StoreError> {
        self.store.keep_alive(self.lease).await?;
        self.number += 1;
        let sign = {
            let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
            given.waiting.push_back((self.number, Instant::now()));
            let (addr, silent) = (self.addr.clone(), given.silent.clone());
            Sign { addr, number: self.number, silent }
        };
        let change = StoreChange::put_leased(self.own.clone(), sign.to_json(), self.lease);
        self.store.commit(Transaction::of(vec![change])).await.map(drop)
    }
}
