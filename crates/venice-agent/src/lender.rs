//! Lending: carries out the core's decisions on slabs, grants and ports.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use venice_control::{
    CalledBack, DonorReport, DonorStatus, HeldState, LeaseState, PrepareRequest, Refusal,
};
use venice_fabric::RecipientId;
use venice_memory::donor::{SharedGrants, Slab, SlabPool};
use venice_ports::monotonic_ns;
use venice_ports::shm::ShmServer;
use venice_rack::donor::{DonorAction, DonorCore, DonorSettings, EndReason, Prepared};
use venice_rack::pausable_clock::{PausableClock, TICK_NS};
use venice_rack::pressure::PressureReport;
use venice_wire::{GrantId, GrantKey};

use crate::ports::Ports;
use crate::services::{Services, end_text};

/// Time for which the recipients of an ended grant are still served, to be notified. Their links
/// time out after as much silence: a recipient without a notice notices then.
const NOTIFY_FOR: Duration = Duration::from_secs(2);
/// Shortest stall that is logged.
const LOGGED_STALL: Duration = Duration::from_secs(1);
/// Most ended grants remembered; beyond, the oldest is forgotten early.
const MAX_ENDED: usize = 4096;
/// Time for which a stopping agent waits until its recipients have been notified.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
/// State shared by all tasks of the agent.
#[derive(Debug)]
pub(crate) struct Lender {
    state: Mutex<State>,
    pub(crate) pool: SlabPool,
    pub(crate) services: Services,
    grants: SharedGrants,
    prepare_timeout_ns: u64,
    /// Empty once the agent has stopped.
    ports: Mutex<Ports>,
    /// Notified when deadlines may have changed.
    deadlines: Notify,
    /// Notified when slabs have become free.
    freed: Notify,
    /// Held while slabs are replaced, so that each task replaces its own: otherwise one could count
    /// slabs as free that another is still making.
    pub(crate) replacing: Mutex<()>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) core: DonorCore,
    attention: PausableClock,
    /// Memory pressure of this machine.
    pub(crate) pressure: PressureReport,
    /// Slabs of prepared, uncommitted grants, which no port can reach yet, and of grants that are
    /// changing hands. Device grants stay here with no slabs.
    pub(crate) set_aside: BTreeMap<GrantId, Vec<Slab>>,
    /// Ended grants and the time until which their recipients are notified, the oldest first.
    ended: VecDeque<(u64, GrantId)>,
}

impl State {
    /// Returns the time that leases and handshakes use.
    pub(crate) fn now_ns(&self) -> u64 {
        self.attention.now_ns(monotonic_ns())
    }
}

impl Lender {
    pub(crate) fn new(
        pool: SlabPool,
        grants: SharedGrants,
        ports: Ports,
        services: Services,
        prepare_timeout: Duration,
    ) -> Self {
        let settings = DonorSettings {
            total_slabs: pool.total_slabs() as u32,
            prepare_timeout_ns: prepare_timeout.as_nanos() as u64,
        };
        let mut core = DonorCore::new(settings);
        // Device memory may still be mapped by recipients of an earlier agent.
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
            services,
            grants,
            prepare_timeout_ns: settings.prepare_timeout_ns,
            ports: Mutex::new(ports),
            deadlines: Notify::new(),
            freed: Notify::new(),
            replacing: Mutex::new(()),
        }
    }

    /// Closes the ports. One-sided ports thereby notify their recipients that this donor is gone.
    /// Tasks that still hold the lender then do no harm.
    pub(crate) fn close(&self) {
        *self.ports() = Ports::default();
        self.services.close();
    }

    /// Ends all grants of a stopping donor; returns when the recipients over frames have
    /// acknowledged that, or after a timeout. The one-sided ports notify theirs by closing.
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
        let _ = tokio::time::timeout(GOODBYE_TIMEOUT, are_notified).await;
    }

    pub(crate) fn set_epoch(&self, epoch: u64) {
        self.state().core.set_epoch(epoch);
    }

    /// Sets whether the node is being drained.
    pub(crate) fn set_draining(&self, is_draining: bool) {
        self.state().core.handle_draining(is_draining);
    }

    /// Sets the grants that are preempted for requests of higher priority; others are not.
    pub(crate) fn set_called_back(&self, called_back: &[CalledBack]) {
        let mut state = self.state();
        let now_ns = state.now_ns();
        state.core.handle_called_back(now_ns, called_back);
        drop(state);
        // There may be a new deadline.
        self.deadlines.notify_one();
    }

    /// Reclaims this many lent slabs, and revokes them after `within`.
    pub(crate) fn reclaim(self: &Arc<Self>, slabs: u32, within: Option<Duration>) {
        let mut state = self.state();
        let now_ns = state.now_ns();
        let within_ns = within.map(|within| within.as_nanos() as u64);
        state.core.handle_want_back(now_ns, slabs, within_ns);
        drop(state);
        // There may be a new deadline.
        self.deadlines.notify_one();
    }

    /// Returns the slab counts and every grant, for the heartbeat. A successor whose memory is still
    /// set aside is left out: the Monitor Node would give its key to the new owner.
    pub(crate) fn report(&self) -> DonorReport {
        let state = self.state();
        let mut report = state.core.report();
        report.held.retain(|held| {
            let is_memory = held.share.slabs() > 0 && held.state == HeldState::Committed;
            !is_memory || !state.set_aside.contains_key(&held.id)
        });
        report
    }

    pub(crate) fn prepare(
        self: &Arc<Self>,
        request: PrepareRequest,
    ) -> Result<DonorStatus, Refusal> {
        let (grant, slabs) = (request.grant, request.share.slabs() as usize);
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
        let view = state.core.grant(grant).filter(|_| result.is_ok());
        if let Some(view) = view.filter(|view| view.slabs == 0)
            && let Some(share) = state.core.share(grant)
        {
            let share = (share, state.core.owner(grant));
            self.services.begin(grant, view.key, share, self.ports().node_secret());
        }
        if let Some(view) = view.filter(|view| view.slabs > 0)
            && let Some(slabs) = state.set_aside.remove(&grant)
        {
            self.share(RecipientId(view.recipient), grant, view.key, slabs);
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

    /// Revokes grants; completes when their slabs are free again, whoever ended the grants.
    pub(crate) async fn release(self: &Arc<Self>, grants: &[GrantId]) -> DonorStatus {
        self.start_release(grants);
        loop {
            // Before the check, so that no notification between the two is missed.
            let freed = self.freed();
            if let Some(status) = self.status_if_freed(grants) {
                return status;
            }
            freed.await;
        }
    }

    pub(crate) fn start_release(self: &Arc<Self>, grants: &[GrantId]) {
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

    /// Compares the key with the grant's; `None` if there is no such grant (any more).
    pub(crate) fn key_fits(&self, (grant, key): &(GrantId, GrantKey)) -> Option<bool> {
        self.state().core.grant(*grant).map(|view| view.key == *key)
    }

    /// Returns the accesses to lent memory with a wrong key since the last call.
    pub(crate) fn take_wrong_keys(&self) -> Vec<(GrantId, u64)> {
        self.grants.lock().take_wrong_keys()
    }

    /// Ends leases when they are due; never returns.
    pub(crate) async fn watch_deadlines(self: Arc<Self>) {
        let mut is_watching = false;
        loop {
            let missed = self.tick_clock();
            if is_watching && missed >= LOGGED_STALL {
                tracing::warn!(?missed, "this node stalled: leases are extended by that time");
            }
            let wait = self.end_due_leases();
            is_watching = wait.is_some();
            // `Notify` stores a notification that arrives before the wait.
            match wait {
                Some(wait) => {
                    let _ = tokio::time::timeout(wait, self.deadlines.notified()).await;
                }
                None => self.deadlines.notified().await,
            }
        }
    }

    /// Extends all leases by the time in which this process could not receive renewals, and returns
    /// that time.
    fn tick_clock(&self) -> Duration {
        Duration::from_nanos(self.state().attention.handle_tick(monotonic_ns()))
    }

    /// Ends due leases; returns the time until the next call.
    fn end_due_leases(self: &Arc<Self>) -> Option<Duration> {
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

    /// Forgets ended grants; from then on their keys are refused.
    fn forget_ended(&self, now_ns: u64, ended: &mut VecDeque<(u64, GrantId)>) {
        while let Some((until_ns, grant)) = ended.front().copied()
            && (until_ns <= now_ns || ended.len() > MAX_ENDED)
        {
            ended.pop_front();
            self.grants.lock().forget(grant);
            self.ports().forget(grant);
        }
    }

    /// Carries out the core's actions, and unlocks it. Making fresh slabs takes long and happens on
    /// other threads.
    pub(crate) fn carry_out(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let mut ended = Vec::new();
        while let Some(action) = state.core.poll_action() {
            let DonorAction::FreeSlabs { grant, slabs: count, reason } = action;
            let set_aside = state.set_aside.remove(&grant);
            // Out of the table first: from then on no port reaches the slabs, and no recipient can
            // fetch them again after its connections are cut.
            let slabs = match set_aside {
                Some(slabs) => slabs,
                None => self.end_at_ports(&mut state, grant).unwrap_or_default(),
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

    /// Lets all ports reach the slabs by that grant and key.
    pub(crate) fn share(
        &self,
        recipient: RecipientId,
        grant: GrantId,
        key: GrantKey,
        slabs: Vec<Slab>,
    ) {
        self.ports().share(grant);
        self.grants.lock().insert_of(recipient, grant, key, slabs);
    }

    /// Ends a grant at all ports, and returns its slabs; `None` for a device's grant. Its recipients
    /// are notified for a while.
    pub(crate) fn end_at_ports(&self, state: &mut State, grant: GrantId) -> Option<Vec<Slab>> {
        let slabs = self.grants.lock().end(grant);
        let until_ns = state.now_ns().saturating_add(NOTIFY_FOR.as_nanos() as u64);
        state.ended.push_back((until_ns, grant));
        self.ports().revoke(grant);
        slabs
    }

    pub(crate) fn grants(&self) -> &SharedGrants {
        &self.grants
    }

    /// Time slabs stay set aside, and promises last, without a commit.
    pub(crate) fn prepare_timeout_ns(&self) -> u64 {
        self.prepare_timeout_ns
    }

    pub(crate) fn notify_deadlines(&self) {
        self.deadlines.notify_one();
    }

    /// Frees the slabs of an ended grant; `None` for a device's grant.
    fn free(self: &Arc<Self>, grant: GrantId, reason: EndReason, slabs: Option<Vec<Slab>>) {
        let count = slabs.as_ref().map_or(0, Vec::len);
        match reason {
            EndReason::LeaseExpired => {
                tracing::warn!(%grant, slabs = count, "lease expired: revoked");
            }
            EndReason::TakenBack => {
                tracing::warn!(%grant, slabs = count, "reclaimed and not returned in time: revoked");
            }
            _ => tracing::info!(%grant, slabs = count, ?reason, "grant ended"),
        }
        let Some(slabs) = slabs else {
            // A device is free once its service is gone.
            if !self.services.end(grant, end_text(reason)) {
                self.note_device_freed(grant);
            }
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

    /// Notes that a device is free again.
    pub(crate) fn note_device_freed(&self, grant: GrantId) {
        self.state().core.handle_freed(grant);
        self.freed.notify_waiters();
    }

    /// Returns the memory pressure, as last read.
    pub(crate) fn pressure(&self) -> PressureReport {
        self.state().pressure
    }

    /// Wakes the task that reports to the Monitor Node.
    pub(crate) fn notify_change(&self) {
        self.freed.notify_waiters();
    }

    /// Returns the grants whose memory is mapped by their recipients.
    pub(crate) fn mapped(&self) -> Vec<GrantId> {
        self.ports().shm.as_ref().map_or_else(Vec::new, ShmServer::mapped)
    }

    pub(crate) fn ports(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock().expect("no task panics with the ports")
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no task panics with the donor's state")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use venice_control::{Owner, ResourceKind, ResourceSpec, Share, TransferStep};
    use venice_fabric::GrantedMemory;
    use venice_wire::SLAB_BYTES;

    const KEY: GrantKey = GrantKey(9);

    fn lender(slabs: u64) -> Arc<Lender> {
        let pool = SlabPool::new(slabs * SLAB_BYTES).unwrap();
        let lender = Lender::new(
            pool,
            SharedGrants::default(),
            Ports::default(),
            Services::default(),
            Duration::from_millis(200),
        );
        lender.set_epoch(1);
        Arc::new(lender)
    }

    fn request(id: u64, slabs: u32, lease_ms: u64) -> PrepareRequest {
        PrepareRequest {
            grant: GrantId(id),
            key: KEY,
            share: Share::of_slabs(slabs),
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
    async fn memory_is_reachable_only_while_committed() {
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
    async fn release_waits_for_slabs_in_progress() {
        let lender = lender(4);
        for _ in 0..10 {
            lender.prepare(request(1, 3, 60_000)).unwrap();
            lender.prepare(request(2, 1, 60_000)).unwrap();
            lender.commit(GrantId(1), 1).unwrap();
            lender.commit(GrantId(2), 1).unwrap();
            // Ended before, for example by an expired lease or a caller that did not wait.
            lender.start_release(&[GrantId(1), GrantId(2)]);
            let status = lender.release(&[GrantId(1), GrantId(2)]).await;
            assert_eq!(status.free_slabs, 4);
            assert_eq!(lender.pool.free_slabs(), 4, "free slabs are present");
        }
    }

    #[tokio::test]
    #[expect(clippy::await_holding_lock, reason = "slabs are being made all the while")]
    async fn device_release_does_not_wait_for_slabs() {
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
            let share = spec.share(0);
            lender.prepare(PrepareRequest { share, ..request(id, 0, 60_000) }).unwrap();
            lender.commit(GrantId(id), 1).unwrap();
            let ids = [GrantId(id)];
            let release = tokio::time::timeout(Duration::from_secs(20), lender.release(&ids));
            release.await.expect("it waits for slabs");
        }
        drop(making);
    }

    #[tokio::test]
    async fn unfinished_handshakes_return_slabs() {
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
    async fn ended_grant_is_remembered() {
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
        tokio::time::timeout(Duration::from_secs(20), forgotten)
            .await
            .expect("the grant is never forgotten");
        assert!(ended.elapsed() >= NOTIFY_FOR, "too short to notify recipients");
        lender.prepare(request(1, 1, 60_000)).unwrap();
        lender.commit(id, 1).unwrap();
        assert!(lender.grants.lock().contains(id), "a grant id may be reused");
    }

    #[tokio::test]
    async fn cancelled_commit_begins_successor() {
        let lender = lender(1);
        let (old, new) = (GrantId(1), GrantId(2));
        lender.prepare(request(1, 1, 60_000)).unwrap();
        lender.commit(old, 1).unwrap();
        lender.grants.lock().write(old, KEY, 0, b"data").unwrap();
        // An answer to the old owner that is still to be sent.
        let answer = lender.grants.clone().lend(old, KEY, 0, 4096).unwrap();
        assert!(answer.is_some());
        let step = TransferStep {
            from: old,
            grant: new,
            key: GrantKey(10),
            donor_epoch: 1,
            ownership: 2,
            claim_ms: 60_000,
            owner: Owner { node: "n2".into(), user: "bob".into(), is_bound: false },
        };
        let call = tokio::time::timeout(Duration::from_millis(20), lender.commit_transfer(&step));
        call.await.expect_err("the answer reads the memory");
        assert_eq!(lender.report().held, [], "no key for the new owner yet");
        drop(answer);
        let begun = async {
            while !lender.grants.lock().contains(new) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), begun).await.expect("it never begins");
        assert_eq!(lender.report().held[0].id, new);
        let mut seen = [0; 4];
        lender.grants.lock().read(new, step.key, 0, &mut seen).unwrap();
        assert_eq!(&seen, b"data");
    }

    #[tokio::test]
    async fn unrenewed_lease_expires() {
        let lender = lender(1);
        tokio::spawn(Arc::clone(&lender).watch_deadlines());
        lender.prepare(request(1, 1, 50)).unwrap();
        lender.commit(GrantId(1), 1).unwrap();
        all_free(&lender).await;
        assert!(!lender.grants.lock().contains(GrantId(1)));
    }

    #[tokio::test]
    async fn stall_extends_leases() {
        let lender = lender(1);
        tokio::spawn(Arc::clone(&lender).watch_deadlines());
        let id = GrantId(1);
        lender.prepare(request(1, 1, 2_000)).unwrap();
        lender.commit(id, 1).unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        // One thread runs all tasks here: they stall, like on a suspended machine.
        std::thread::sleep(Duration::from_millis(2_500));
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(matches!(lender.renew(&[(id, KEY)])[..], [LeaseState::Live { .. }]));
        all_free(&lender).await;
    }
}
