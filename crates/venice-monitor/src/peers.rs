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
use std::collections::{BTreeMap, BTreeSet};
use std::sync::MutexGuard;
use std::time::Duration;
use tokio::time::MissedTickBehavior;
use venice_rack::monitor_node::{Membership, Sign};
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

/// A member's record, renewed every second: its sign of life.
#[derive(Debug, Serialize, Deserialize)]
struct MemberRecord {
    /// Address on which the member listens.
    addr: String,
    number: u64,
    /// Nodes whose heartbeats the member does not receive.
    silent: BTreeSet<u32>,
}

impl MemberRecord {
    fn new(addr: String, Sign { number, silent }: Sign) -> Self {
        Self { addr, number, silent: silent.into_iter().map(|node| node.0).collect() }
    }

    fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("member records are plain data")
    }
}

/// This Monitor Node as a member of those of the rack.
#[derive(Debug)]
pub(crate) struct Member {
    own: String,
    addr: String,
    lease: Lease,
    tenure: Tenure,
    /// Address of each peer, by the key of its record.
    peers: BTreeMap<String, String>,
}

impl Member {
    /// Writes the first record. The caller loads the store after this call.
    pub(crate) async fn join(store: &EtcdStore, addr: String) -> Result<Self, MonitorError> {
        let mut id = [0; 8];
        getrandom(&mut id, GetRandomFlags::empty())
            .map_err(|error| MonitorError::Random(error.into()))?;
        let own = format!("{MEMBER_PREFIX}{:016x}", u64::from_le_bytes(id));
        let tenure = Tenure::of_member(own.clone());
        let lease = store.grant_lease(LEASE_DURATION).await?;
        let first = MemberRecord { addr: addr.clone(), number: 0, silent: BTreeSet::new() };
        let change = StoreChange::put_leased(own.clone(), first.to_json(), lease);
        store.commit(Transaction::of(vec![change])).await?;
        Ok(Self { own, addr, lease, tenure, peers: BTreeMap::new() })
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
        let record = value.map(serde_json::from_slice::<MemberRecord>).and_then(Result::ok);
        let addr = record.as_ref().map(|record| record.addr.clone());
        let sign = record.map(|MemberRecord { number, silent, .. }| Sign {
            number,
            silent: silent.into_iter().map(NodeId).collect(),
        });
        let Some((mut membership, _)) = self.tenure.membership() else { return };
        let is_new = membership.handle_sign(key.clone(), sign);
        drop(membership);
        match addr {
            _ if key == self.own => {}
            Some(addr) => {
                if is_new {
                    tracing::info!(other = addr, "another Monitor Node serves beside this one");
                }
                self.peers.insert(key, addr);
            }
            None => drop(self.peers.remove(&key)),
        }
    }

    /// Returns the addresses of the peers.
    pub(crate) fn peers(&self) -> Vec<String> {
        self.peers.values().cloned().collect()
    }

    /// Returns the nodes that no peer receives heartbeats from; `None` without peers.
    pub(crate) fn silent_at_peers(&self) -> Option<BTreeSet<NodeId>> {
        self.tenure.membership()?.0.silent_at_peers()
    }

    /// Sets the silent nodes that the next record lists.
    pub(crate) fn set_silent(&self, silent: impl Iterator<Item = NodeId>) {
        if let Some((mut membership, _)) = self.tenure.membership() {
            membership.set_silent(silent.collect());
        }
    }

    /// Renews the record while polled. Returns when the lease has expired.
    pub(crate) fn keep_renewed(&self, store: EtcdStore) -> impl Future<Output = ()> + Send + use<> {
        let (own, addr, lease) = (self.own.clone(), self.addr.clone(), self.lease);
        let tenure = self.tenure();
        let writer = Writer { store, own, addr, lease, tenure: tenure.clone() };
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
    tenure: Tenure,
}

impl Writer {
    async fn write(&self) -> Result<(), StoreError> {
        self.store.keep_alive(self.lease).await?;
        let next_sign = |(mut membership, now_ns): (MutexGuard<'_, Membership<String>>, u64)| {
            membership.next_sign(now_ns)
        };
        let Some(sign) = self.tenure.membership().map(next_sign) else { return Ok(()) };
        let record = MemberRecord::new(self.addr.clone(), sign);
        let change = StoreChange::put_leased(self.own.clone(), record.to_json(), self.lease);
        self.store.commit(Transaction::of(vec![change])).await.map(drop)
    }
}
