//! The lending itself: the core's decisions carried out on slabs, grants and ports.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use venice_control::{DonorReport, DonorStatus, LeaseState, PrepareRequest, Refusal};
use venice_memory::donor::{SharedGrants, Slab, SlabPool};
use venice_ports::monotonic_ns;
use venice_ports::shm::ShmServer;
use venice_ports::verbs::VerbsServer;
use venice_rack::donor::{DonorAction, DonorCore, DonorSettings, EndReason, Prepared};
use venice_wire::{GrantId, GrantKey};

/// How long to wait before another attempt at slabs for which there was no memory.
const REPLENISH_PAUSE: Duration = Duration::from_secs(1);

/// What all tasks of the agent share.
#[derive(Debug)]
pub(crate) struct Lender {
    state: Mutex<State>,
    pool: SlabPool,
    grants: SharedGrants,
    /// `None` without such a port, and once the agent has stopped.
    shm: Mutex<Option<ShmServer>>,
    /// As `shm`.
    verbs: Mutex<Option<VerbsServer>>,
    /// Deadlines may have changed.
    deadlines: Notify,
    /// Slabs have become free again.
    freed: Notify,
    /// Held while slabs are replaced, so that everybody replaces their own: or one would call
    /// slabs free that another is still making.
    replacing: Mutex<()>,
}

#[derive(Debug)]
struct State {
    core: DonorCore,
    /// Slabs of grants that are prepared and not committed: nobody can reach them yet.
    set_aside: BTreeMap<GrantId, Vec<Slab>>,
}

impl Lender {
    pub(crate) fn new(
        pool: SlabPool,
        grants: SharedGrants,
        shm: Option<ShmServer>,
        verbs: Option<VerbsServer>,
        prepare_timeout: Duration,
    ) -> Self {
        let settings = DonorSettings {
            total_slabs: pool.total_slabs() as u32,
            prepare_timeout_ns: prepare_timeout.as_nanos() as u64,
        };
        let core = DonorCore::new(settings);
        let state = Mutex::new(State { core, set_aside: BTreeMap::new() });
        Self {
            state,
            pool,
            grants,
            shm: Mutex::new(shm),
            verbs: Mutex::new(verbs),
            deadlines: Notify::new(),
            freed: Notify::new(),
            replacing: Mutex::new(()),
        }
    }

    /// Closes the one-sided ports, which tells their recipients that this donor is gone. Tasks
    /// that still hold the lender then do no harm.
    pub(crate) fn close(&self) {
        *self.shm() = None;
        *self.verbs() = None;
    }

    pub(crate) fn set_epoch(&self, epoch: u64) {
        self.state().core.set_epoch(epoch);
    }

    pub(crate) fn report(&self) -> DonorReport {
        self.state().core.report()
    }

    pub(crate) fn prepare(
        self: &Arc<Self>,
        request: PrepareRequest,
    ) -> Result<DonorStatus, Refusal> {
        let (grant, slabs) = (request.grant, request.slabs as usize);
        let mut state = self.state();
        let prepared = state.core.handle_prepare(monotonic_ns(), request);
        let result = match prepared {
            Ok(Prepared::Repeated(status)) => Ok(status),
            Ok(Prepared::New(status)) => match self.pool.take(slabs) {
                Some(slabs) => {
                    state.set_aside.insert(grant, slabs);
                    Ok(status)
                }
                None => {
                    state.core.handle_abort(monotonic_ns(), grant);
                    Err(Refusal::Failed("its slabs are still being made".into()))
                }
            },
            Err(refusal) => Err(refusal),
        };
        self.carry_out(state);
        self.deadlines.notify_one();
        result
    }

    pub(crate) fn commit(
        self: &Arc<Self>,
        grant: GrantId,
        epoch: u64,
    ) -> Result<DonorStatus, Refusal> {
        let mut state = self.state();
        let result = state.core.handle_commit(monotonic_ns(), grant, epoch);
        if result.is_ok()
            && let Some(slabs) = state.set_aside.remove(&grant)
        {
            let view = state.core.grant(grant).expect("it was committed just now");
            self.grants.lock().insert(grant, view.key, slabs);
        }
        self.carry_out(state);
        self.deadlines.notify_one();
        result
    }

    pub(crate) fn abort(self: &Arc<Self>, grant: GrantId) -> DonorStatus {
        let mut state = self.state();
        let status = state.core.handle_abort(monotonic_ns(), grant);
        self.carry_out(state);
        status
    }

    /// Takes grants back; completes when their slabs are free again, whoever ended the grants.
    pub(crate) async fn release(self: &Arc<Self>, grants: &[GrantId]) -> DonorStatus {
        self.start_release(grants);
        loop {
            // Before the look, so that nothing is missed between the two.
            let freed = self.freed();
            if let Some(status) = self.status_if_freed(grants) {
                return status;
            }
            freed.await;
        }
    }

    fn start_release(self: &Arc<Self>, grants: &[GrantId]) {
        let mut state = self.state();
        for grant in grants {
            state.core.handle_release(monotonic_ns(), *grant);
        }
        self.carry_out(state);
    }

    fn status_if_freed(&self, grants: &[GrantId]) -> Option<DonorStatus> {
        let state = self.state();
        let any_left = grants.iter().any(|grant| state.core.is_freeing(*grant));
        (!any_left).then(|| state.core.status())
    }

    /// Completes when slabs become free again after this call.
    pub(crate) fn freed(&self) -> Notified<'_> {
        self.freed.notified()
    }

    pub(crate) fn renew(self: &Arc<Self>, leases: &[(GrantId, GrantKey)]) -> Vec<LeaseState> {
        let mut state = self.state();
        let now_ns = monotonic_ns();
        let states =
            leases.iter().map(|(grant, key)| state.core.handle_renew(now_ns, *grant, *key));
        let states = states.collect();
        self.carry_out(state);
        states
    }

    /// Ends leases when they are due, for ever.
    pub(crate) async fn watch_deadlines(self: Arc<Self>) {
        loop {
            // `Notify` keeps a notice that comes before we wait for it.
            match self.end_what_is_due() {
                Some(wait) => {
                    let _ = tokio::time::timeout(wait, self.deadlines.notified()).await;
                }
                None => self.deadlines.notified().await,
            }
        }
    }

    /// Returns how long until the next deadline.
    fn end_what_is_due(self: &Arc<Self>) -> Option<Duration> {
        let now_ns = monotonic_ns();
        let mut state = self.state();
        state.core.handle_timeout(now_ns);
        let next_ns = state.core.poll_timeout();
        self.carry_out(state);
        next_ns.map(|next_ns| Duration::from_nanos(next_ns.saturating_sub(now_ns)))
    }

    /// Does what the core wants done, and unlocks it. Making fresh slabs takes long and happens
    /// on other threads.
    fn carry_out(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let mut ended = Vec::new();
        while let Some(action) = state.core.poll_action() {
            let DonorAction::FreeSlabs { grant, reason, .. } = action;
            let set_aside = state.set_aside.remove(&grant);
            // Out of the table first: from then on no port reaches the slabs, and no recipient
            // can fetch them anew after its connections are cut.
            let slabs = set_aside.or_else(|| self.grants.lock().remove(grant)).unwrap_or_default();
            if let Some(shm) = &*self.shm() {
                shm.revoke(grant);
            }
            if let Some(verbs) = &*self.verbs() {
                verbs.revoke(grant);
            }
            ended.push((grant, reason, slabs));
        }
        drop(state);
        for (grant, reason, slabs) in ended {
            self.free(grant, reason, slabs);
        }
    }

    fn free(self: &Arc<Self>, grant: GrantId, reason: EndReason, slabs: Vec<Slab>) {
        match reason {
            EndReason::LeaseExpired => {
                tracing::warn!(%grant, slabs = slabs.len(), "lease expired: memory taken back");
            }
            _ => tracing::info!(%grant, slabs = slabs.len(), ?reason, "memory taken back"),
        }
        let lender = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            let mut result = {
                let _mine = lender.replacing();
                lender.pool.give_back(slabs)
            };
            while let Err(error) = result {
                tracing::warn!(%error, "no memory for fresh slabs; trying again");
                std::thread::sleep(REPLENISH_PAUSE);
                let _mine = lender.replacing();
                result = lender.pool.replenish();
            }
            lender.state().core.handle_freed(grant);
            lender.freed.notify_waiters();
        });
    }

    fn replacing(&self) -> MutexGuard<'_, ()> {
        self.replacing.lock().expect("no task panics while it replaces slabs")
    }

    fn shm(&self) -> MutexGuard<'_, Option<ShmServer>> {
        self.shm.lock().expect("no task panics with the shm server")
    }

    fn verbs(&self) -> MutexGuard<'_, Option<VerbsServer>> {
        self.verbs.lock().expect("no task panics with the verbs server")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no task panics with the donor's state")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use venice_wire::SLAB_BYTES;

    const KEY: GrantKey = GrantKey(9);

    fn lender(slabs: u64) -> Arc<Lender> {
        let pool = SlabPool::new(slabs * SLAB_BYTES).unwrap();
        let lender =
            Lender::new(pool, SharedGrants::default(), None, None, Duration::from_millis(200));
        lender.set_epoch(1);
        Arc::new(lender)
    }

    fn request(id: u64, slabs: u32, lease_ms: u64) -> PrepareRequest {
        PrepareRequest {
            grant: GrantId(id),
            key: KEY,
            slabs,
            donor_epoch: 1,
            lease_ms,
            recipient: "r".into(),
            purpose: "p".into(),
        }
    }

    async fn all_free(lender: &Arc<Lender>) {
        let wait = async {
            while lender.report().status.free_slabs != lender.report().status.total_slabs {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect("slabs never came back");
    }

    #[tokio::test]
    async fn memory_can_be_reached_between_commit_and_release_only() {
        let lender = lender(2);
        let id = GrantId(1);
        lender.prepare(request(1, 2, 60_000)).unwrap();
        assert!(!lender.grants.lock().contains(id));
        lender.commit(id, 1).unwrap();
        lender.commit(id, 1).unwrap();
        lender.grants.lock().write(id, KEY, SLAB_BYTES + 5, b"mine").unwrap();
        assert_eq!(lender.renew(&[(id, KEY)]), [LeaseState::Live { remaining_ms: 60_000 }]);

        let status = lender.release(&[id]).await;
        assert_eq!(status.free_slabs, 2, "released means free again");
        assert!(lender.grants.lock().write(id, KEY, 0, b"late").is_err());
        assert_eq!(lender.renew(&[(id, KEY)]), [LeaseState::Unknown]);

        lender.prepare(request(2, 2, 60_000)).unwrap();
        lender.commit(GrantId(2), 1).unwrap();
        let mut seen = [1; 4];
        lender.grants.lock().read(GrantId(2), KEY, SLAB_BYTES + 5, &mut seen).unwrap();
        assert_eq!(seen, [0; 4], "the next recipient gets zeroes");
    }

    #[tokio::test]
    async fn a_release_waits_for_slabs_that_were_on_their_way_already() {
        let lender = lender(4);
        for _ in 0..10 {
            lender.prepare(request(1, 3, 60_000)).unwrap();
            lender.prepare(request(2, 1, 60_000)).unwrap();
            lender.commit(GrantId(1), 1).unwrap();
            lender.commit(GrantId(2), 1).unwrap();
            // Ended before, as by a lease that ran out or a caller that did not wait.
            lender.start_release(&[GrantId(1), GrantId(2)]);
            let status = lender.release(&[GrantId(1), GrantId(2)]).await;
            assert_eq!(status.free_slabs, 4);
            assert_eq!(lender.pool.free_slabs(), 4, "what is called free is there");
        }
    }

    #[tokio::test]
    async fn aborted_and_forgotten_handshakes_give_the_slabs_back() {
        let lender = lender(1);
        tokio::spawn(Arc::clone(&lender).watch_deadlines());
        lender.prepare(request(1, 1, 60_000)).unwrap();
        assert!(matches!(
            lender.prepare(request(2, 1, 60_000)),
            Err(Refusal::NoRoom { free_slabs: 0 })
        ));
        lender.abort(GrantId(1));
        all_free(&lender).await;
        lender.prepare(request(2, 1, 60_000)).unwrap();
        all_free(&lender).await;
        assert_eq!(lender.commit(GrantId(2), 1), Err(Refusal::UnknownGrant));
    }

    #[tokio::test]
    async fn a_lease_that_is_not_renewed_ends_by_itself() {
        let lender = lender(1);
        tokio::spawn(Arc::clone(&lender).watch_deadlines());
        lender.prepare(request(1, 1, 50)).unwrap();
        lender.commit(GrantId(1), 1).unwrap();
        all_free(&lender).await;
        assert!(!lender.grants.lock().contains(GrantId(1)));
    }
}
