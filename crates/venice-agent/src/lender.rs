//! The lending itself: the core's decisions carried out on slabs, grants and ports.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use venice_control::{CalledBack, DonorReport, DonorStatus, LeaseState, PrepareRequest, Refusal};
use venice_fabric::RecipientId;
use venice_memory::donor::{SharedGrants, Slab, SlabPool};
use venice_ports::monotonic_ns;
use venice_ports::shm::ShmServer;
use venice_rack::donor::{DonorAction, DonorCore, DonorSettings, EndReason, Prepared};
use venice_rack::pausable_clock::{PausableClock, TICK_NS};
use venice_rack::pressure::PressureReport;
use venice_wire::{GrantId, GrantKey};

use crate::ports::Ports;

/// How long those who use a grant are heard after its end, to be told. Their link is given up after
/// as long a silence: whoever has not heard by then finds out that way.
const TELL_FOR: Duration = Duration::from_secs(2);
/// A standstill that an operator wants to know of.
const WORTH_TELLING: Duration = Duration::from_secs(1);
/// Grants that have ended and are remembered at once; beyond, the oldest is forgotten early.
const MAX_ENDED: usize = 4096;
/// How long an agent that stops waits for those who use its memory to hear of it.
const GOODBYE: Duration = Duration::from_secs(1);
/// What all tasks of the agent share.
#[derive(Debug)]
pub(crate) struct Lender {
    state: Mutex<State>,
    pub(crate) pool: SlabPool,
    grants: SharedGrants,
    /// None once the agent has stopped.
    ports: Mutex<Ports>,
    /// Deadlines may have changed.
    deadlines: Notify,
    /// Slabs have become free again.
    freed: Notify,
    /// Held while slabs are replaced, so that everybody replaces their own: or one would call
    /// slabs free that another is still making.
    pub(crate) replacing: Mutex<()>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) core: DonorCore,
    attention: PausableClock,
    /// How short of memory this machine is.
    pub(crate) pressure: PressureReport,
    /// Slabs of grants that are prepared and not committed: nobody can reach them yet. Those of
    /// devices stay here, with none.
    set_aside: BTreeMap<GrantId, Vec<Slab>>,
    /// Grants that have ended, and until when their recipients are told. The oldest first.
    ended: VecDeque<(u64, GrantId)>,
}

impl State {
    /// The time that counts for leases and handshakes.
    pub(crate) fn now_ns(&self) -> u64 {
        self.attention.now_ns(monotonic_ns())
    }
}

impl Lender {
    pub(crate) fn new(
        pool: SlabPool,
        grants: SharedGrants,
        ports: Ports,
        prepare_timeout: Duration,
    ) -> Self {
        let settings = DonorSettings {
            total_slabs: pool.total_slabs() as u32,
            prepare_timeout_ns: prepare_timeout.as_nanos() as u64,
        };
        let mut core = DonorCore::new(settings);
        // Of devices some may be mapped by those who had them of an agent before this one.
        core.handle_withhold(pool.give_up_missing() as u32);
        let state = State {
            core,
            attention: PausableClock::new(monotonic_ns()),
            pressure: PressureReport::default(),
            set_aside: BTreeMap::new(),
            ended: VecDeque::new(),
        };
        Self {
            state: Mutex::new(state),
            pool,
            grants,
            ports: Mutex::new(ports),
            deadlines: Notify::new(),
            freed: Notify::new(),
            replacing: Mutex::new(()),
        }
    }

    /// Closes the ports; those that are one-sided tell their recipients thereby that this donor is
    /// gone. Tasks that still hold the lender then do no harm.
    pub(crate) fn close(&self) {
        *self.ports() = Ports::default();
    }

    /// Ends all grants, as a donor does that stops, and returns when those who use them by frames
    /// have said that they know, or soon. The one-sided ports tell theirs by closing.
    pub(crate) async fn say_goodbye(&self) {
        let grants = self.grants.lock().ids();
        for grant in grants {
            let slabs = self.grants.lock().end(grant);
            self.ports().revoke(grant);
            drop(slabs);
        }
        let are_notified = async {
            while !self.ports().are_notified() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let _ = tokio::time::timeout(GOODBYE, are_notified).await;
    }

    pub(crate) fn set_epoch(&self, epoch: u64) {
        self.state().core.set_epoch(epoch);
    }

    /// Whether what is lent is to go elsewhere, for the node's maintenance.
    pub(crate) fn set_draining(&self, is_draining: bool) {
        self.state().core.handle_draining(is_draining);
    }

    /// These grants, and no others, are called back for requests of higher priority.
    pub(crate) fn set_called_back(&self, called_back: &[CalledBack]) {
        let mut state = self.state();
        let now_ns = state.now_ns();
        state.core.handle_called_back(now_ns, called_back);
        drop(state);
        // There may be a deadline that nobody waits for yet.
        self.deadlines.notify_one();
    }

    /// This machine wants so many of the lent slabs back, and takes them after `within`.
    pub(crate) fn want_back(self: &Arc<Self>, slabs: u32, within: Option<Duration>) {
        let mut state = self.state();
        let now_ns = state.now_ns();
        let within_ns = within.map(|within| within.as_nanos() as u64);
        state.core.handle_want_back(now_ns, slabs, within_ns);
        drop(state);
        // There may be a deadline that nobody waits for yet.
        self.deadlines.notify_one();
    }

    pub(crate) fn report(&self) -> DonorReport {
        self.state().core.report()
    }

    pub(crate) fn prepare(
        self: &Arc<Self>,
        request: PrepareRequest,
    ) -> Result<DonorStatus, Refusal> {
        let (grant, slabs) = (request.grant, request.slabs as usize);
        let at_once = request.at_once.then_some(request.donor_epoch);
        let mut state = self.state();
        let now_ns = state.now_ns();
        let prepared = state.core.handle_prepare(now_ns, request);
        let result = match prepared {
            Ok(Prepared::Repeated(status)) => Ok(status),
            Ok(Prepared::New(status)) => match self.pool.take(slabs) {
                Some(slabs) => {
                    state.set_aside.insert(grant, slabs);
                    Ok(status)
                }
                None => {
                    state.core.handle_abort(now_ns, grant);
                    Err(Refusal::Failed("its slabs are still being made".into()))
                }
            },
            Err(refusal) => Err(refusal),
        };
        self.carry_out(state);
        self.deadlines.notify_one();
        match at_once {
            Some(epoch) => result.and_then(|_| self.commit(grant, epoch)),
            None => result,
        }
    }

    pub(crate) fn commit(
        self: &Arc<Self>,
        grant: GrantId,
        epoch: u64,
    ) -> Result<DonorStatus, Refusal> {
        let mut state = self.state();
        let now_ns = state.now_ns();
        let result = state.core.handle_commit(now_ns, grant, epoch);
        let view = state.core.grant(grant).filter(|view| result.is_ok() && view.slabs > 0);
        if let Some(view) = view
            && let Some(slabs) = state.set_aside.remove(&grant)
        {
            self.ports().share(grant);
            let recipient = RecipientId(view.recipient);
            self.grants.lock().insert_of(recipient, grant, view.key, slabs);
        }
        self.carry_out(state);
        self.deadlines.notify_one();
        result
    }

    pub(crate) fn abort(self: &Arc<Self>, grant: GrantId) -> DonorStatus {
        let mut state = self.state();
        let now_ns = state.now_ns();
        let status = state.core.handle_abort(now_ns, grant);
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
        let now_ns = state.now_ns();
        for grant in grants {
            state.core.handle_release(now_ns, *grant);
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
        let now_ns = state.now_ns();
        let states =
            leases.iter().map(|(grant, key)| state.core.handle_renew(now_ns, *grant, *key));
        let states = states.collect();
        self.carry_out(state);
        states
    }

    /// Whether the key is the grant's; `None`: there is no such grant (any more).
    pub(crate) fn key_fits(&self, (grant, key): &(GrantId, GrantKey)) -> Option<bool> {
        self.state().core.grant(*grant).map(|view| view.key == *key)
    }

    /// Accesses to lent memory with a wrong key, since the last call.
    pub(crate) fn take_wrong_keys(&self) -> Vec<(GrantId, u64)> {
        self.grants.lock().take_wrong_keys()
    }

    /// Ends leases when they are due, for ever.
    pub(crate) async fn watch_deadlines(self: Arc<Self>) {
        let mut is_watching = false;
        loop {
            let missed = self.pay_attention();
            if is_watching && missed >= WORTH_TELLING {
                tracing::warn!(?missed, "this node stood still: leases last so much longer");
            }
            let wait = self.end_what_is_due();
            is_watching = wait.is_some();
            // `Notify` keeps a notice that comes before we wait for it.
            match wait {
                Some(wait) => {
                    let _ = tokio::time::timeout(wait, self.deadlines.notified()).await;
                }
                None => self.deadlines.notified().await,
            }
        }
    }

    /// Nobody loses a lease for the time in which this process could not hear of renewals, which
    /// is what this returns.
    fn pay_attention(&self) -> Duration {
        Duration::from_nanos(self.state().attention.handle_tick(monotonic_ns()))
    }

    /// Returns how long until it is to be called again.
    fn end_what_is_due(self: &Arc<Self>) -> Option<Duration> {
        let mut state = self.state();
        let now_ns = state.now_ns();
        state.core.handle_timeout(now_ns);
        self.forget_ended(now_ns, &mut state.ended);
        let next_ns = state.core.poll_timeout();
        let next_ns =
            next_ns.into_iter().chain(state.ended.front().map(|(until_ns, _)| *until_ns)).min();
        self.carry_out(state);
        next_ns.map(|next_ns| Duration::from_nanos(next_ns.saturating_sub(now_ns).min(TICK_NS)))
    }

    /// From here on nobody is heard under their keys.
    fn forget_ended(&self, now_ns: u64, ended: &mut VecDeque<(u64, GrantId)>) {
        while let Some((until_ns, grant)) = ended.front().copied()
            && (until_ns <= now_ns || ended.len() > MAX_ENDED)
        {
            ended.pop_front();
            self.grants.lock().forget(grant);
        }
    }

    /// Does what the core wants done, and unlocks it. Making fresh slabs takes long and happens
    /// on other threads.
    pub(crate) fn carry_out(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let mut ended = Vec::new();
        while let Some(action) = state.core.poll_action() {
            let DonorAction::FreeSlabs { grant, slabs: count, reason } = action;
            let set_aside = state.set_aside.remove(&grant);
            // Out of the table first: from then on no port reaches the slabs, and no recipient
            // can fetch them anew after its connections are cut.
            let slabs = match set_aside {
                Some(slabs) => slabs,
                None => {
                    let slabs = self.grants.lock().end(grant).unwrap_or_default();
                    let until_ns = state.now_ns().saturating_add(TELL_FOR.as_nanos() as u64);
                    state.ended.push_back((until_ns, grant));
                    self.ports().revoke(grant);
                    slabs
                }
            };
            ended.push((grant, reason, (count > 0).then_some(slabs)));
        }
        drop(state);
        if !ended.is_empty() {
            self.deadlines.notify_one();
        }
        for (grant, reason, slabs) in ended {
            self.free(grant, reason, slabs);
        }
    }

    /// `slabs`: `None` for a device's grant.
    fn free(self: &Arc<Self>, grant: GrantId, reason: EndReason, slabs: Option<Vec<Slab>>) {
        let count = slabs.as_ref().map_or(0, Vec::len);
        match reason {
            EndReason::LeaseExpired => {
                tracing::warn!(%grant, slabs = count, "lease expired: taken back");
            }
            EndReason::TakenBack => {
                tracing::warn!(%grant, slabs = count, "wanted back, and not given back in time: taken back");
            }
            _ => tracing::info!(%grant, slabs = count, ?reason, "taken back"),
        }
        let Some(slabs) = slabs else {
            // A device waits for no memory.
            self.state().core.handle_freed(grant);
            self.freed.notify_waiters();
            return;
        };
        let lender = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            let withheld = lender.replace(slabs);
            let mut state = lender.state();
            state.core.handle_freed(grant);
            state.core.handle_withhold(withheld);
            drop(state);
            lender.freed.notify_waiters();
        });
    }

    /// How short of memory this machine is, as last read.
    pub(crate) fn pressure(&self) -> PressureReport {
        self.state().pressure
    }

    /// The Monitor Node is to hear of a change.
    pub(crate) fn tell_change(&self) {
        self.freed.notify_waiters();
    }

    /// The grants whose memory their recipients have mapped.
    pub(crate) fn mapped(&self) -> Vec<GrantId> {
        self.ports().shm.as_ref().map_or_else(Vec::new, ShmServer::mapped)
    }

    fn ports(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock().expect("no task panics with the ports")
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no task panics with the donor's state")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use venice_control::{ResourceKind, ResourceSpec};
    use venice_wire::SLAB_BYTES;

    const KEY: GrantKey = GrantKey(9);

    fn lender(slabs: u64) -> Arc<Lender> {
        let pool = SlabPool::new(slabs * SLAB_BYTES).unwrap();
        let lender = Lender::new(
            pool,
            SharedGrants::default(),
            Ports::default(),
            Duration::from_millis(200),
        );
        lender.set_epoch(1);
        Arc::new(lender)
    }

    fn request(id: u64, slabs: u32, lease_ms: u64) -> PrepareRequest {
        PrepareRequest {
            grant: GrantId(id),
            key: KEY,
            slabs,
            device: None,
            donor_epoch: 1,
            lease_ms,
            owner: None,
            recipient: "r".into(),
            purpose: "p".into(),
            priority: 100,
            at_once: false,
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
        assert_eq!(
            lender.renew(&[(id, KEY)]),
            [LeaseState::Live { remaining_ms: 60_000, notice: None }]
        );

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
    #[expect(clippy::await_holding_lock, reason = "slabs are being made all the while")]
    async fn a_device_comes_back_while_slabs_are_still_being_made() {
        let lender = lender(1);
        let spec = ResourceSpec {
            kind: ResourceKind::Accelerator,
            address: "/dev/gpu0".into(),
            bytes: 0,
            slab_bytes: 0,
            capabilities: vec![],
        };
        lender.state().core.offer_devices(0, [spec.clone()]);
        let making = lender.replacing();
        for id in [1, 2] {
            let device = Some(spec.share(0));
            lender.prepare(PrepareRequest { device, ..request(id, 0, 60_000) }).unwrap();
            lender.commit(GrantId(id), 1).unwrap();
            let ids = [GrantId(id)];
            let release = tokio::time::timeout(Duration::from_secs(20), lender.release(&ids));
            release.await.expect("it waits for slabs");
        }
        drop(making);
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
    async fn a_grant_that_has_ended_is_remembered_a_while() {
        let lender = lender(1);
        tokio::spawn(Arc::clone(&lender).watch_deadlines());
        let id = GrantId(1);
        lender.prepare(request(1, 1, 60_000)).unwrap();
        lender.commit(id, 1).unwrap();
        let ended = std::time::Instant::now();
        lender.release(&[id]).await;
        let forgotten = async {
            while lender.grants.lock().remembers(id) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), forgotten).await.expect("it is never over");
        assert!(ended.elapsed() >= TELL_FOR, "nobody could be told");
        lender.prepare(request(1, 1, 60_000)).unwrap();
        lender.commit(id, 1).unwrap();
        assert!(lender.grants.lock().contains(id), "a number may come again");
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

    #[tokio::test]
    async fn no_lease_ends_while_nobody_can_be_heard() {
        let lender = lender(1);
        tokio::spawn(Arc::clone(&lender).watch_deadlines());
        let id = GrantId(1);
        lender.prepare(request(1, 1, 2_000)).unwrap();
        lender.commit(id, 1).unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        // One thread runs all tasks here: they stand still, as with a machine that is suspended.
        std::thread::sleep(Duration::from_millis(2_500));
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(matches!(lender.renew(&[(id, KEY)])[..], [LeaseState::Live { .. }]));
        all_free(&lender).await;
    }
}
