//! Membership of several active Monitor Nodes that share one store. Each member writes a record
//! every second under its own lease. The record lists the nodes whose heartbeats the member does
//! not receive.
//!
//! Invariants:
//! - The store delivers changes in order. A member that reads its own record back has therefore
//!   seen all changes made before it wrote the record. [`Tenure`] is based on this.
//! - Every change is conditional on the member's record, with the lease it was created with. A
//!   member whose lease has expired changes nothing. Neither does a member whose store was
//!   re-created, where revisions may match by chance.

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

/// Prefix of the members' records.
pub(crate) const MEMBER_PREFIX: &str = "monitor/";
/// Key of the sole Monitor Node of an older Venice, whose Monitor Nodes took turns.
pub(crate) const SOLE_MONITOR_KEY: &str = "monitor/serving";
const RENEW_INTERVAL: Duration = Duration::from_secs(1);
/// Time after its last renewal at which a member counts as gone.
const LEASE_DURATION: Duration = Duration::from_secs(5);

/// A member's record, renewed every second.
#[derive(Debug, Serialize, Deserialize)]
struct MemberRecord {
    /// Address on which the member listens.
    addr: String,
    number: u64,
    /// Nodes whose heartbeats the member does not receive.
    silent: BTreeSet<u32>,
}

impl MemberRecord {
    fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("member records are plain data")
    }
}

/// State shared by the task that writes the record and the one that reads it back.
#[derive(Debug, Default)]
struct Written {
    /// Records not read back yet: their numbers, and the times they were written.
    unconfirmed: VecDeque<(u64, Instant)>,
    silent: BTreeSet<u32>,
}

/// The Monitor Nodes of the rack, this one included.
#[derive(Debug)]
pub(crate) struct Membership {
    own: String,
    addr: String,
    lease: Lease,
    written: Arc<Mutex<Written>>,
    tenure: Tenure,
    /// Address and silent nodes of each peer, by the key of its record.
    peers: BTreeMap<String, (String, BTreeSet<NodeId>)>,
}

impl Membership {
    /// Writes the first record. The caller loads the store after this call.
    pub(crate) async fn join(store: &EtcdStore, addr: String) -> Result<Self, MonitorError> {
        let mut id = [0; 8];
        getrandom(&mut id, GetRandomFlags::empty())
            .map_err(|error| MonitorError::Random(error.into()))?;
        let own = format!("{MEMBER_PREFIX}{:016x}", u64::from_le_bytes(id));
        let tenure = Tenure::since(Instant::now());
        let lease = store.grant_lease(LEASE_DURATION).await?;
        let first = MemberRecord { addr: addr.clone(), number: 0, silent: BTreeSet::new() };
        let change = StoreChange::put_leased(own.clone(), first.to_json(), lease);
        store.commit(Transaction::of(vec![change])).await?;
        Ok(Self { own, addr, lease, written: Arc::default(), tenure, peers: BTreeMap::new() })
    }

    /// Returns the condition that this member's record still exists under its lease.
    pub(crate) fn condition(&self) -> Condition {
        Condition::ends_with(self.own.clone(), self.lease)
    }

    /// True if this member's record is among `found`, so that its condition held.
    pub(crate) fn is_current(&self, found: &[Entry]) -> bool {
        found.iter().any(|entry| entry.key == self.own)
    }

    pub(crate) fn tenure(&self) -> Tenure {
        self.tenure.clone()
    }

    /// Handles a member's record, or its removal.
    pub(crate) fn handle_record(&mut self, key: String, value: Option<&[u8]>) {
        let record: Option<MemberRecord> =
            value.and_then(|value| serde_json::from_slice(value).ok());
        match record {
            Some(record) if key == self.own => self.confirm(record.number),
            Some(record) => {
                let silent = record.silent.into_iter().map(NodeId).collect();
                let addr = record.addr.clone();
                if self.peers.insert(key, (addr, silent)).is_none() {
                    tracing::info!(
                        other = record.addr,
                        "another Monitor Node serves beside this one"
                    );
                }
            }
            None => drop(self.peers.remove(&key)),
        }
    }

    fn confirm(&self, number: u64) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        while written.unconfirmed.front().is_some_and(|(of, _)| *of <= number) {
            if let Some((of, at)) = written.unconfirmed.pop_front()
                && of == number
            {
                self.tenure.renew(at);
            }
        }
    }

    /// Returns the addresses of the peers.
    pub(crate) fn peers(&self) -> Vec<String> {
        self.peers.values().map(|(addr, _)| addr.clone()).collect()
    }

    /// Returns the nodes that no peer receives heartbeats from; `None` without peers.
    pub(crate) fn silent_at_peers(&self) -> Option<BTreeSet<NodeId>> {
        let silent = self.peers.values().map(|(_, silent)| silent.clone());
        silent.reduce(|all, one| &all & &one)
    }

    /// Sets the silent nodes that the next record lists.
    pub(crate) fn set_silent(&self, silent: impl Iterator<Item = NodeId>) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.silent = silent.map(|node| node.0).collect();
    }

    /// Renews the record while polled. Returns when the lease has expired.
    pub(crate) fn keep_renewed(&self, store: EtcdStore) -> impl Future<Output = ()> + Send + use<> {
        let (own, addr, lease) = (self.own.clone(), self.addr.clone(), self.lease);
        let mut writer =
            Writer { store, own, addr, lease, written: Arc::clone(&self.written), number: 0 };
        let tenure = self.tenure();
        async move {
            let mut ticks = tokio::time::interval(RENEW_INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                match writer.write().await {
                    Ok(()) => {}
                    Err(StoreError::LeaseOver) => return tenure.end(),
                    Err(error) => {
                        tracing::warn!(%error, "cannot renew the member record in the store")
                    }
                }
            }
        }
    }

    /// Removes the record, so that the peers need not wait for the lease to expire. Ends within
    /// [`RENEW_INTERVAL`].
    pub(crate) fn withdraw(&self, store: EtcdStore) -> impl Future<Output = ()> + Send + use<> {
        let own = self.own.clone();
        async move {
            let removal = store.commit(Transaction::of(vec![StoreChange::remove(own)]));
            // The lease expires soon in any case.
            let _ = tokio::time::timeout(RENEW_INTERVAL, removal).await;
        }
    }
}

struct Writer {
    store: EtcdStore,
    own: String,
    addr: String,
    lease: Lease,
    written: Arc<Mutex<Written>>,
    number: u64,
}

impl Writer {
    async fn write(&mut self) -> Result<(), StoreError> {
        self.store.keep_alive(self.lease).await?;
        self.number += 1;
        let record = {
            let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            written.unconfirmed.push_back((self.number, Instant::now()));
            let (addr, silent) = (self.addr.clone(), written.silent.clone());
            MemberRecord { addr, number: self.number, silent }
        };
        let change = StoreChange::put_leased(self.own.clone(), record.to_json(), self.lease);
        self.store.commit(Transaction::of(vec![change])).await.map(drop)
    }
}
