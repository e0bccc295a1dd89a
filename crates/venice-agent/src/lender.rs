//! Lending: performs the outputs of [`DonorNode`] on slabs, ports and services.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, oneshot};
use venice_control::{
    CalledBack, DonorAnswer, DonorCall, DonorReport, LeaseState, Pong, Refusal, TransferStep,
};
use venice_fabric::RecipientId;
use venice_memory::donor::{SharedGrants, Slab, SlabPool};
use venice_ports::monotonic_ns;
use venice_ports::shm::ShmServer;
use venice_rack::donor::{DonorSettings, EndReason};
use venice_rack::donor_node::{DonorNode, FileHold, Output};
use venice_rack::monitor::Token;
use venice_rack::pressure::PressureReport;
use venice_wire::{GrantId, GrantKey};

use crate::ports::Ports;
use crate::services::{Services, end_text};

/// Shortest stall that is logged.
const LOGGED_STALL: Duration = Duration::from_secs(1);
/// Time for which a stopping agent waits until its recipients have been notified.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between two checks whether answers to an old owner are sent.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The result of a call.
type Answered = Result<DonorAnswer, Refusal>;

/// State shared by all tasks of the agent.
#[derive(Debug)]
pub(crate) struct Lender {
    state: Mutex<State>,
    pub(crate) pool: SlabPool,
    pub(crate) services: Services,
    grants: SharedGrants,
    /// Empty once the agent has stopped.
    ports: Mutex<Ports>,
    /// Notified when deadlines may have changed.
    deadlines: Notify,
    /// Notified when there is something to report at once.
    changed: Notify,
    /// Held while slabs are replaced, so that each task replaces its own: otherwise one could count
    /// slabs as free that another is still making.
    pub(crate) replacing: Mutex<()>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) node: DonorNode,
    /// Memory pressure of this machine.
    pub(crate) pressure: PressureReport,
    /// Slabs that no port can reach yet: of prepared grants, and of successors.
    set_aside: BTreeMap<GrantId, Vec<Slab>>,
    /// Calls that wait for their reply.
    calls: BTreeMap<Token, oneshot::Sender<Answered>>,
    last_call: u64,
}

impl Lender {
    pub(crate) fn new(
        pool: SlabPool,
        grants: SharedGrants,
        ports: Ports,
        services: Services,
        (prepare_timeout, pong): (Duration, Pong),
    ) -> Self {
        let settings = DonorSettings {
            total_slabs: pool.total_slabs() as u32,
            prepare_timeout_ns: prepare_timeout.as_nanos() as u64,
        };
        let mut node = DonorNode::new(settings, pong, monotonic_ns());
        // Device memory may still be mapped by recipients of an earlier agent.
        node.core_mut().handle_withhold(pool.give_up_missing(usize::MAX) as u32);
        let state = State {
            node,
            pressure: PressureReport::default(),
            set_aside: BTreeMap::new(),
            calls: BTreeMap::new(),
            last_call: 0,
        };
        Self {
            state: Mutex::new(state),
            pool,
            services,
            grants,
            ports: Mutex::new(ports),
            deadlines: Notify::new(),
            changed: Notify::new(),
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
            drop(self.end_at_ports(grant));
        }
        let are_notified = async {
            while !self.ports().are_notified() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let _ = tokio::time::timeout(GOODBYE_TIMEOUT, are_notified).await;
    }

    pub(crate) fn set_epoch(&self, epoch: u64) {
        self.state().node.core_mut().set_epoch(epoch);
    }

    /// Sets whether the node is being drained.
    pub(crate) fn set_draining(&self, is_draining: bool) {
        self.state().node.core_mut().handle_draining(is_draining);
    }

    /// Sets the grants that are preempted for requests of higher priority; others are not.
    pub(crate) fn set_called_back(self: &Arc<Self>, called_back: &[CalledBack]) {
        self.input(|node, clock_ns| {
            let now_ns = node.now_ns(clock_ns);
            node.core_mut().handle_called_back(now_ns, called_back);
        });
    }

    /// Reclaims this many lent slabs, and revokes them after `within`.
    pub(crate) fn reclaim(self: &Arc<Self>, slabs: u32, within: Option<Duration>) {
        let within_ns = within.map(|within| within.as_nanos() as u64);
        self.input(|node, clock_ns| {
            let now_ns = node.now_ns(clock_ns);
            node.core_mut().handle_want_back(now_ns, slabs, within_ns);
        });
    }

    /// Returns the slab counts and every grant, for the heartbeat.
    pub(crate) fn report(&self) -> DonorReport {
        self.state().node.report()
    }

    /// Executes a call of the Monitor Node, whatever becomes of the caller.
    pub(crate) async fn call(self: &Arc<Self>, call: DonorCall) -> Answered {
        self.ask(|node, clock_ns, token| node.handle_call(clock_ns, token, call)).await
    }

    /// Ends the grants whose keys are right; completes when they are free.
    pub(crate) async fn give_back(self: &Arc<Self>, leases: &[(GrantId, GrantKey)]) -> Answered {
        self.ask(|node, clock_ns, token| node.handle_give_back(clock_ns, token, leases)).await
    }

    async fn ask(self: &Arc<Self>, begin: impl FnOnce(&mut DonorNode, u64, Token)) -> Answered {
        let (sender, reply) = oneshot::channel();
        {
            let mut state = self.state();
            state.last_call += 1;
            let token = Token(state.last_call);
            state.calls.insert(token, sender);
            begin(&mut state.node, monotonic_ns(), token);
            self.perform_all(&mut state);
        }
        self.deadlines.notify_one();
        reply.await.expect("every call is replied to")
    }

    pub(crate) fn renew(self: &Arc<Self>, leases: &[(GrantId, GrantKey)]) -> Vec<LeaseState> {
        self.input(|node, clock_ns| node.handle_renew(clock_ns, leases))
    }

    /// Gives the logic an input with the clock's time, and performs the outputs.
    pub(crate) fn input<T>(self: &Arc<Self>, input: impl FnOnce(&mut DonorNode, u64) -> T) -> T {
        let result = {
            let mut state = self.state();
            let result = input(&mut state.node, monotonic_ns());
            self.perform_all(&mut state);
            result
        };
        // There may be another deadline.
        self.deadlines.notify_one();
        result
    }

    /// Compares the key with the grant's; `None` if there is no such grant (any more).
    pub(crate) fn key_fits(&self, (grant, key): &(GrantId, GrantKey)) -> Option<bool> {
        self.state().node.core().grant(*grant).map(|view| view.key == *key)
    }

    /// Returns the accesses to lent memory with a wrong key since the last call.
    pub(crate) fn take_wrong_keys(&self) -> Vec<(GrantId, u64)> {
        self.grants.lock().take_wrong_keys()
    }

    /// Ends leases when they are due; never returns.
    pub(crate) async fn watch_deadlines(self: Arc<Self>) {
        let mut is_watching = false;
        loop {
            let (missed, wait) = self.end_due_leases();
            if is_watching && missed >= LOGGED_STALL {
                tracing::warn!(?missed, "this node stalled: leases are extended by that time");
            }
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

    /// Ends due leases. Returns the time by which they were extended, since this process could not
    /// receive renewals, and the time until the next call.
    fn end_due_leases(self: &Arc<Self>) -> (Duration, Option<Duration>) {
        let mut state = self.state();
        let clock_ns = monotonic_ns();
        let missed_ns = state.node.handle_timeout(clock_ns);
        self.perform_all(&mut state);
        let until = |next_ns: u64| Duration::from_nanos(next_ns.saturating_sub(clock_ns));
        (Duration::from_nanos(missed_ns), state.node.poll_timeout(clock_ns).map(until))
    }

    fn perform_all(self: &Arc<Self>, state: &mut State) {
        while let Some(output) = state.node.poll_output(monotonic_ns()) {
            self.perform(state, output);
        }
    }

    fn perform(self: &Arc<Self>, state: &mut State, output: Output) {
        match output {
            Output::Reply(token, result) => {
                // A caller that hung up needs none.
                let _ = state.calls.remove(&token).map(|caller| caller.send(result));
            }
            Output::SetAside { grant, slabs } => {
                if slabs > 0 {
                    let slabs = self.pool.take(slabs as usize).expect("free slabs are present");
                    state.set_aside.insert(grant, slabs);
                }
            }
            Output::Lend(grant) => self.lend(state, grant),
            Output::HoldFiles(hold) => {
                let is_held = self.hold_files(&hold);
                state.node.handle_files_held(monotonic_ns(), hold, is_held);
            }
            Output::ReleaseFiles(grant) => drop(self.grants.lock().hold_files(grant, 0)),
            Output::Switch(step) => self.switch(state, &step),
            Output::End { grant, slabs, reason } => self.end(state, grant, slabs, reason),
            Output::Forget(grant) => {
                self.grants.lock().forget(grant);
                self.ports().forget(grant);
            }
            Output::Report => self.changed.notify_waiters(),
        }
    }

    /// Lets all ports reach the slabs of a grant, or starts the service of its device.
    fn lend(&self, state: &mut State, grant: GrantId) {
        let core = state.node.core();
        let (Some(view), Some(share)) = (core.grant(grant), core.share(grant)) else { return };
        if let Some(slabs) = state.set_aside.remove(&grant) {
            self.ports().share(grant);
            let recipient = RecipientId(view.recipient);
            self.grants.lock().insert_of(recipient, grant, view.key, slabs);
        } else {
            let secret = self.ports().node_secret();
            self.services.begin(grant, view.key, (share, core.owner(grant)), secret);
        }
    }

    fn hold_files(&self, hold: &FileHold) -> bool {
        let until_ns = hold.for_ns.map_or(u64::MAX, |for_ns| monotonic_ns().saturating_add(for_ns));
        self.grants.lock().hold_files(hold.of(), until_ns)
    }

    /// Gives a grant to its successor: its slabs once no answer to the old owner is to be sent from
    /// them. A device is reached by its service, which the old owner must not reach any more.
    fn switch(self: &Arc<Self>, state: &mut State, step: &TransferStep) {
        let TransferStep { from, grant, key, owner, .. } = step;
        tracing::info!(%from, to = %grant, %owner, "transferred");
        let slabs = state.set_aside.remove(from).or_else(|| self.end_at_ports(*from));
        if let Some(slabs) = slabs {
            state.set_aside.insert(*grant, slabs);
            let (lender, grant) = (Arc::clone(self), *grant);
            tokio::spawn(async move {
                while !lender.begins(grant) {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            });
        } else if let Some(share) = state.node.core().share(*grant) {
            let (secret, why) =
                (self.ports().node_secret(), format!("it was transferred to {owner}"));
            self.services.transfer(*from, (*grant, *key), (share, owner), secret, why);
        }
    }

    /// Begins a successor; false while its slabs are read for the old owner.
    fn begins(self: &Arc<Self>, grant: GrantId) -> bool {
        let is_read = |slabs: &Vec<Slab>| !slabs.iter().all(Slab::is_unlent);
        if self.state().set_aside.get(&grant).is_some_and(is_read) {
            return false;
        }
        self.input(|node, _| node.handle_unused(grant));
        true
    }

    /// Ends a grant, and begins to free its slabs or its device.
    fn end(self: &Arc<Self>, state: &mut State, grant: GrantId, slabs: u32, reason: EndReason) {
        match reason {
            EndReason::LeaseExpired => tracing::warn!(%grant, slabs, "lease expired: revoked"),
            EndReason::TakenBack => {
                tracing::warn!(%grant, slabs, "reclaimed and not returned in time: revoked");
            }
            EndReason::Released | EndReason::Aborted | EndReason::PrepareTimeout => {
                tracing::info!(%grant, slabs, ?reason, "grant ended");
            }
        }
        if slabs == 0 {
            // A device is free once its service is gone.
            if !self.services.end(grant, end_text(reason)) {
                state.node.handle_freed(grant, 0);
            }
            return;
        }
        // Out of the table first: from then on no port reaches the slabs, and no recipient can fetch
        // them again after its connections are cut.
        let slabs = state.set_aside.remove(&grant).or_else(|| self.end_at_ports(grant));
        let (lender, slabs) = (Arc::clone(self), slabs.unwrap_or_default());
        // Making fresh slabs takes long.
        tokio::task::spawn_blocking(move || {
            let withheld = lender.replace(slabs);
            lender.input(|node, _| node.handle_freed(grant, withheld));
        });
    }

    /// Ends a grant at all ports, and returns its slabs; `None`: no port reaches it.
    fn end_at_ports(&self, grant: GrantId) -> Option<Vec<Slab>> {
        let slabs = self.grants.lock().end(grant)?;
        self.ports().revoke(grant);
        Some(slabs)
    }

    /// Returns the memory pressure, as last read.
    pub(crate) fn pressure(&self) -> PressureReport {
        self.state().pressure
    }

    /// Wakes the task that reports to the Monitor Nodes.
    pub(crate) fn notify_change(&self) {
        self.changed.notify_waiters();
    }

    /// Completes when there is something to report at once after this call.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
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
    use venice_control::{
        DonorStatus, Owner, PrepareRequest, ResourceKind, ResourceSpec, Share, TransferStep,
    };
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
            (Duration::from_millis(200), Pong { name: "n1".into(), instance: 1 }),
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

    async fn call(lender: &Arc<Lender>, call: DonorCall) -> Result<DonorStatus, Refusal> {
        match lender.call(call).await? {
            DonorAnswer::Status(status) => Ok(status),
            DonorAnswer::Pong(_) => panic!("no ping"),
        }
    }

    async fn lend(lender: &Arc<Lender>, request: PrepareRequest) {
        let (grant, donor_epoch) = (request.grant, request.donor_epoch);
        call(lender, DonorCall::Prepare(request)).await.unwrap();
        call(lender, DonorCall::Commit { grant, donor_epoch }).await.unwrap();
    }

    async fn release(lender: &Arc<Lender>, grants: &[u64]) -> DonorStatus {
        let grants = grants.iter().copied().map(GrantId).collect();
        call(lender, DonorCall::Release(grants)).await.unwrap()
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
        call(&lender, DonorCall::Prepare(request(1, 2, 60_000))).await.unwrap();
        assert!(!lender.grants.lock().contains(id));
        for _ in 0..2 {
            call(&lender, DonorCall::Commit { grant: id, donor_epoch: 1 }).await.unwrap();
        }
        lender.grants.lock().write(id, KEY, SLAB_BYTES + 5, b"mine").unwrap();
        assert_eq!(
            lender.renew(&[(id, KEY)]),
            [LeaseState::Live { remaining_ms: 60_000, notice: None }]
        );

        let status = release(&lender, &[1]).await;
        assert_eq!(status.free_slabs, 2, "released means free again");
        assert!(lender.grants.lock().write(id, KEY, 0, b"late").is_err());
        assert_eq!(lender.renew(&[(id, KEY)]), [LeaseState::Unknown]);

        lend(&lender, request(2, 2, 60_000)).await;
        let mut seen = [1; 4];
        lender.grants.lock().read(GrantId(2), KEY, SLAB_BYTES + 5, &mut seen).unwrap();
        assert_eq!(seen, [0; 4], "the next recipient gets zeroes");
    }

    #[tokio::test]
    async fn release_waits_for_slabs_in_progress() {
        let lender = lender(4);
        for _ in 0..10 {
            lend(&lender, request(1, 3, 60_000)).await;
            lend(&lender, request(2, 1, 60_000)).await;
            // Ended before, for example by an expired lease.
            lender.input(|node, clock_ns| {
                let now_ns = node.now_ns(clock_ns);
                node.core_mut().handle_release(now_ns, GrantId(1));
            });
            let status = release(&lender, &[1, 2]).await;
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
        lender.state().node.core_mut().offer_devices(0, [spec.clone()]);
        let making = lender.replacing();
        for id in [1, 2] {
            let share = spec.share(0);
            lend(&lender, PrepareRequest { share, ..request(id, 0, 60_000) }).await;
            let ids = [id];
            let released = release(&lender, &ids);
            let released = tokio::time::timeout(Duration::from_secs(20), released);
            released.await.expect("it waits for slabs");
        }
        drop(making);
    }

    #[tokio::test]
    async fn unfinished_handshakes_return_slabs() {
        let lender = lender(1);
        tokio::spawn(Arc::clone(&lender).watch_deadlines());
        call(&lender, DonorCall::Prepare(request(1, 1, 60_000))).await.unwrap();
        let full = call(&lender, DonorCall::Prepare(request(2, 1, 60_000))).await;
        assert_eq!(full, Err(Refusal::NoRoom { free_slabs: 0 }));
        call(&lender, DonorCall::Abort(GrantId(1))).await.unwrap();
        all_free(&lender).await;
        call(&lender, DonorCall::Prepare(request(2, 1, 60_000))).await.unwrap();
        all_free(&lender).await;
        let late = call(&lender, DonorCall::Commit { grant: GrantId(2), donor_epoch: 1 }).await;
        assert_eq!(late, Err(Refusal::UnknownGrant));
    }

    #[tokio::test]
    async fn cancelled_commit_begins_successor() {
        let lender = lender(1);
        let (old, new) = (GrantId(1), GrantId(2));
        lend(&lender, request(1, 1, 60_000)).await;
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
        let key = step.key;
        let switch = lender.call(DonorCall::CommitTransfer(step));
        let switch = tokio::time::timeout(Duration::from_millis(20), switch);
        switch.await.expect_err("the answer reads the memory");
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
        lender.grants.lock().read(new, key, 0, &mut seen).unwrap();
        assert_eq!(&seen, b"data");
    }

    #[tokio::test]
    async fn unrenewed_lease_expires() {
        let lender = lender(1);
        tokio::spawn(Arc::clone(&lender).watch_deadlines());
        lend(&lender, request(1, 1, 50)).await;
        all_free(&lender).await;
        assert!(!lender.grants.lock().contains(GrantId(1)));
    }

    #[tokio::test]
    async fn stall_extends_leases() {
        let lender = lender(1);
        tokio::spawn(Arc::clone(&lender).watch_deadlines());
        let id = GrantId(1);
        lend(&lender, request(1, 1, 2_000)).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        // One thread runs all tasks here: they stall, like on a suspended machine.
        std::thread::sleep(Duration::from_millis(2_500));
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(matches!(lender.renew(&[(id, KEY)])[..], [LeaseState::Live { .. }]));
        all_free(&lender).await;
    }
}
