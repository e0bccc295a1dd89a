//! The parts of the rack, driven by [`Op`]s.

mod asking;
mod bandwidth;
mod devices;
mod ending;
mod etcd;
mod peace;
mod quotas;
mod starting;
mod waiting;

use super::{DONORS, Fate, LEASE_MS, MS, Op, USERS, WANT_BACK_WITHIN_MS, Waits};
pub use devices::DEVICES;
use devices::device_want;
use ending::Ended;
use etcd::{Etcd, Monitor, PendingCall};
use quotas::QuotaChecker;
use starting::fresh_core;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use venice_rack::caller::Owner;
use venice_rack::donor::{DonorAction, DonorCore, EndReason};
use venice_rack::monitor::{Action, CallError, MonitorCore, Token};
use venice_rack::monitor_node::{DonorAnswer, DonorCall, Reply};
use venice_rack::types::{
    AllocationRequest, DonorReport, Grant, HeartbeatReport, HeldState, Identity, LeaseState,
    Notice, NoticeReason, Pong, PortReport, RackError,
};
use venice_wire::{GrantId, GrantKey};
use waiting::QueueChecker;

struct Donor {
    core: DonorCore,
    instance: u64,
    alive: bool,
    identity: Option<Identity>,
}

/// A call on its way to a donor, with the life of the Monitor Node that made it: after a crash no
/// one receives the answer.
#[derive(Clone)]
struct Call {
    life: u64,
    donor: Identity,
    call: DonorCall,
}

struct Recipient {
    owner: Owner,
    request: AllocationRequest,
    /// Time of its first request.
    asked_ns: u64,
    /// The answer; `None` while there is none.
    answer: Option<Result<(), RackError>>,
    /// The Monitor Node it called last.
    asked: usize,
    /// Its last grants, received or not, and not released.
    granted: Vec<Grant>,
    /// Grants it released.
    given_back: BTreeSet<GrantId>,
    /// Grants it renews.
    held: Vec<Grant>,
    alive: bool,
}

type Promises = BTreeMap<GrantId, Vec<(NoticeReason, u64)>>;

pub struct World {
    now_ns: u64,
    lives: u64,
    monitors: Vec<Monitor>,
    /// The selected Monitor Node.
    at: usize,
    etcd: Etcd,
    donors: Vec<Donor>,
    recipients: Vec<Recipient>,
    calls: Vec<Call>,
    strays: Vec<Call>,
    slow_heartbeats: Vec<HeartbeatReport>,
    grants_seen: BTreeMap<GrantId, GrantKey>,
    /// Grants whose donors are called once more, after a crash.
    asked_again: BTreeSet<GrantId>,
    /// Donors whose drain was answered, and not ended since.
    drained: BTreeSet<usize>,
    /// The last drain call of each donor.
    drain_calls: BTreeMap<usize, (Token, bool)>,
    /// Donors that have deregistered.
    ended: Ended,
    /// Deadlines stated in reclaim notices, by grant.
    promised_ns: Promises,
    /// Grants under a reclaim notice at their last renewal.
    wanted: BTreeSet<GrantId>,
    /// Checks quotas.
    quotas: QuotaChecker,
    /// Bandwidth need of each slab, in bits a second.
    slab_bps: u64,
    /// Checks the queue.
    queue: QueueChecker,
    /// Actions of the Monitor Node not yet performed.
    actions: VecDeque<Action>,
    next_instance: u64,
    next_token: u64,
}

impl World {
    pub fn new() -> Self {
        Self::with_monitors(1)
    }

    pub fn with_monitors(count: usize) -> Self {
        let mut world = Self {
            now_ns: 1_000 * MS,
            lives: 0,
            monitors: Vec::new(),
            at: 0,
            etcd: Etcd::new(count > 1),
            donors: Vec::new(),
            recipients: Vec::new(),
            calls: Vec::new(),
            strays: Vec::new(),
            slow_heartbeats: Vec::new(),
            grants_seen: BTreeMap::new(),
            asked_again: BTreeSet::new(),
            drained: BTreeSet::new(),
            drain_calls: BTreeMap::new(),
            ended: Ended::default(),
            promised_ns: BTreeMap::new(),
            wanted: BTreeSet::new(),
            quotas: QuotaChecker::default(),
            slab_bps: 0,
            queue: QueueChecker::default(),
            actions: VecDeque::new(),
            next_instance: 1,
            // Registrations use the instance numbers of their agents.
            next_token: 1 << 32,
        };
        for _ in 0..DONORS {
            let donor = Donor { core: fresh_core(0), instance: 0, alive: false, identity: None };
            world.donors.push(donor);
        }
        for _ in 0..count {
            let monitor = world.start_monitor();
            world.monitors.push(monitor);
        }
        for index in 0..DONORS {
            world.start_donor(index);
        }
        world.settle();
        world
    }

    pub fn apply(&mut self, op: Op) {
        match op {
            Op::Device(op) => self.device(op),
            Op::Request { slabs, named } => self.request(self.memory(slabs), named, None),
            Op::Both { slabs, which, units, waits } => {
                let wants = [self.memory(slabs), vec![device_want(which, units)]].concat();
                self.request(wants, None, waits);
            }
            Op::Wait { slabs, named, wait_ms, priority, preempts } => {
                let waits = Some(Waits { wait_ms, priority, preempts });
                self.request(self.memory(slabs), named, waits);
            }
            Op::Leave(pick) => self.leave(pick),
            Op::AskAgain(pick) => self.ask_again(pick),
            Op::Repeat(pick) => self.repeat(pick),
            Op::Release(pick) => self.release(pick),
            Op::Forge(pick) => self.forge(pick),
            Op::Abandon(pick) => self.abandon(pick),
            Op::Act => {
                self.act();
            }
            Op::Deliver(pick, fate) => self.deliver(pick, fate),
            Op::DeliverStray(pick) => {
                if let Some(call) = take(&mut self.strays, pick) {
                    let _ = self.process(&call);
                }
            }
            Op::Heartbeat(index) => {
                if let Some(report) = self.report(index) {
                    self.heartbeat(report);
                }
            }
            Op::SlowHeartbeat(index) => {
                let report = self.report(index);
                self.slow_heartbeats.extend(report);
            }
            Op::DeliverSlowHeartbeat(pick) => {
                if let Some(report) = take(&mut self.slow_heartbeats, pick) {
                    self.heartbeat(report);
                }
            }
            Op::Wipe(index) => self.wipe(index),
            Op::RenewAll => self.renew_all(),
            Op::Drain(index, drains) => self.drain(index, drains),
            Op::WantBack(index, slabs) => self.want_back(index, slabs),
            Op::SetQuota(whose, slabs) => self.set_quota(whose, slabs),
            Op::SetDeviceQuota(whose, which, most) => self.set_device_quota(whose, which, most),
            Op::RemoveQuota(whose) => self.remove_quota(whose),
            Op::Pass { ms } => self.pass(ms),
            Op::CrashMonitor => self.crash_monitor(),
            Op::Turn(at) => self.at = at,
            Op::Hear(at) => drop(self.receive_from_peers(at)),
            Op::KillDonor(index) => self.kill_donor(index),
            Op::EndDonor(index) => self.end_donor(index),
            Op::StartDonor(index) => self.start_donor(index),
        }
        self.collect_actions();
        self.note_silent_nodes();
        self.note_limits();
        self.check_quotas();
        self.check_devices();
        self.check_ended();
    }

    fn core(&mut self) -> &mut MonitorCore {
        &mut self.monitors[self.at].core
    }

    fn release(&mut self, pick: usize) {
        if let Some(recipient) = self.pick_holder(pick) {
            recipient.granted.clear();
            let held = recipient.held.drain(..);
            let leases: Vec<_> = held.map(|grant| (grant.id, grant.key)).collect();
            recipient.given_back.extend(leases.iter().map(|(id, _)| *id));
            self.put(PendingCall::Release(leases));
        }
    }

    /// A third party that knows a grant's number tries to end it.
    fn forge(&mut self, pick: usize) {
        if let Some(recipient) = self.pick_holder(pick) {
            let forge = |grant: &Grant| (grant.id, GrantKey(!grant.key.0));
            let leases: Vec<_> = recipient.held.iter().map(forge).collect();
            self.put(PendingCall::Release(leases));
        }
    }

    fn abandon(&mut self, pick: usize) {
        if let Some(recipient) = self.pick_holder(pick) {
            recipient.held.clear();
            recipient.alive = false;
        }
    }

    fn drain(&mut self, index: usize, drains: bool) {
        self.drained.remove(&index);
        let token = self.put(PendingCall::Drain(name_of(index), drains));
        self.drain_calls.insert(index, (token, drains));
        self.collect_actions();
    }

    fn want_back(&mut self, index: usize, slabs: u32) {
        let within_ns = Some(WANT_BACK_WITHIN_MS * MS);
        self.donors[index].core.handle_want_back(self.now_ns, slabs, within_ns);
    }

    fn pick_holder(&mut self, pick: usize) -> Option<&mut Recipient> {
        let holders = self.recipients.iter_mut().filter(|recipient| !recipient.held.is_empty());
        let mut holders: Vec<_> = holders.collect();
        let count = holders.len();
        if count == 0 { None } else { Some(holders.swap_remove(pick % count)) }
    }

    /// Performs the Monitor Node's next action; returns false if there is none.
    fn act(&mut self) -> bool {
        self.collect_actions();
        let action = match self.monitors.len() {
            1 => self.actions.pop_front(),
            // Actions behind a failed change must not be seen before.
            _ => self.core().poll_action(),
        };
        let Some(action) = action else { return false };
        match action {
            Action::Store(changes) => self.store(changes),
            Action::Call { donor, call, .. } => {
                self.check_call(donor, &call);
                let life = self.monitors[self.at].life;
                self.calls.push(Call { life, donor, call });
            }
            Action::ReplyRequest { client_id, result } => self.answered(client_id, result),
            Action::ReplyStanding { .. } | Action::Note(_) => {}
            Action::Reply(token, Reply::Released(_)) => self.answered_call(token),
            Action::Reply(token, Reply::Done(result)) => {
                self.answered_call(token);
                self.answered_deregistration(token, result.is_ok());
                let answered = self.drain_calls.iter().filter(|(_, call)| **call == (token, true));
                self.drained.extend(answered.map(|(index, _)| *index));
            }
            Action::Reply(token, Reply::Registered(result)) => self.registered(token, result),
            Action::Reply(_, Reply::Transferred(_) | Reply::Claimed(_) | Reply::Asked(_)) => {
                unreachable!("no program of this model transfers")
            }
        }
        true
    }

    /// Checks a call, and counts what it charges.
    fn check_call(&mut self, donor: Identity, call: &DonorCall) {
        match call {
            DonorCall::Prepare(request) => {
                let other = self.grants_seen.insert(request.grant, request.key);
                let is_again = self.asked_again.contains(&request.grant);
                let is_same = request.at_once && other == Some(request.key);
                assert!(other.is_none() || is_again && is_same, "a grant number was used twice");
                let index = donor.node.0 as usize - 1;
                let is_known = self.monitors.len() == 1 && self.drained.contains(&index);
                assert!(!is_known || is_again, "a drained node got a prepare");
                assert!(is_again || !self.has_ended(donor), "a stopped node got a prepare");
                self.quotas.prepare(request);
                if request.at_once {
                    self.quotas.commit(donor, request.grant);
                }
            }
            DonorCall::Commit { grant, .. } => self.quotas.commit(donor, *grant),
            DonorCall::Abort(_) | DonorCall::Release(_) | DonorCall::Ping => {}
            DonorCall::PrepareTransfer(_)
            | DonorCall::CommitTransfer(_)
            | DonorCall::AbortTransfer { .. } => {
                unreachable!("no program of this model transfers")
            }
        }
    }

    /// Delivers an answer to a recipient: the grants are whole, and really lent.
    fn answered(&mut self, client_id: u128, result: Result<Vec<Grant>, RackError>) {
        let at = self.at;
        self.monitors[at].requests.remove(&client_id);
        self.check_single(client_id, result.as_ref().ok());
        let recipient = &mut self.recipients[client_id as usize - 1];
        if recipient.answer.is_some() || !recipient.alive || recipient.asked != at {
            return;
        }
        recipient.answer = Some(result.as_ref().map(|_| ()).map_err(Clone::clone));
        let Ok(grants) = result else { return };
        check_whole(&recipient.request, &grants);
        let fresh = self.now_ns < recipient.asked_ns + LEASE_MS * MS;
        for grant in &grants {
            let donor = &self.donors[grant.donor_node.0 as usize - 1];
            let identity = Identity { node: grant.donor_node, epoch: grant.donor_epoch };
            if donor.alive && donor.identity == Some(identity) && fresh {
                let view = donor.core.grant(grant.id).expect("the donor has no such grant");
                assert_eq!(view.state, HeldState::Committed);
                assert_eq!(view.key, grant.key);
                assert_eq!(view.slabs, grant.share.slabs());
            }
        }
        recipient.held = grants;
    }

    fn registered(
        &mut self,
        token: Token,
        result: Result<venice_rack::types::Registered, RackError>,
    ) {
        // The token of a registration is the instance that made it.
        self.answered_call(token);
        let Ok(registered) = result else { return };
        if let Some(donor) = self.donors.iter_mut().find(|donor| donor.instance == token.0) {
            let other = donor.identity.filter(|before| *before != registered.identity);
            assert_eq!(other, None, "an agent is two nodes");
            donor.identity = Some(registered.identity);
            donor.core.set_epoch(registered.identity.epoch);
        }
    }

    fn deliver(&mut self, pick: usize, fate: Fate) {
        let Some(call) = take(&mut self.calls, pick) else { return };
        let result = match fate {
            Fate::Answered => self.process(&call),
            Fate::Repeated => {
                self.strays.push(call.clone());
                self.process(&call)
            }
            Fate::RequestLost => Err(CallError::NoAnswer),
            Fate::AnswerLost => {
                let _ = self.process(&call);
                Err(CallError::NoAnswer)
            }
            Fate::Late => {
                self.strays.push(call.clone());
                Err(CallError::NoAnswer)
            }
        };
        self.hear(call, result);
    }

    /// Processes a call at the donor.
    fn process(&mut self, call: &Call) -> Result<DonorAnswer, CallError> {
        let now_ns = self.now_ns;
        let index = call.donor.node.0 as usize - 1;
        let donor = &mut self.donors[index];
        if !donor.alive {
            return Err(CallError::Gone);
        }
        let core = &mut donor.core;
        let status = match &call.call {
            DonorCall::Prepare(request) => {
                core.handle_prepare(now_ns, request.clone()).and_then(|_| match request.at_once {
                    true => core.handle_commit(now_ns, request.grant, request.donor_epoch),
                    false => Ok(core.status()),
                })
            }
            DonorCall::Commit { grant, donor_epoch } => {
                core.handle_commit(now_ns, *grant, *donor_epoch)
            }
            DonorCall::Abort(grant) => Ok(core.handle_abort(now_ns, *grant)),
            DonorCall::Release(grants) => {
                Ok(grants.iter().map(|id| core.handle_release(now_ns, *id)).last().unwrap())
            }
            DonorCall::Ping => {
                let pong = Pong { name: name_of(index), instance: donor.instance };
                return Ok(DonorAnswer::Pong(pong));
            }
            DonorCall::PrepareTransfer(_)
            | DonorCall::CommitTransfer(_)
            | DonorCall::AbortTransfer { .. } => {
                unreachable!("no program of this model transfers")
            }
        };
        status.map(DonorAnswer::Status).map_err(CallError::Refused)
    }

    /// Delivers an answer to the Monitor Node.
    fn hear(&mut self, call: Call, result: Result<DonorAnswer, CallError>) {
        let caller = self.monitors.iter_mut().find(|monitor| monitor.life == call.life);
        if let Some(Monitor { core, .. }) = caller {
            core.handle_returned(self.now_ns, call.donor, call.call, result);
        }
    }

    fn report(&self, index: usize) -> Option<HeartbeatReport> {
        let donor = &self.donors[index];
        let memory: DonorReport = donor.core.report();
        let identity = donor.identity.filter(|_| donor.alive)?;
        Some(HeartbeatReport {
            usage: Vec::new(),
            peers_version: 0,
            door: Default::default(),
            identity,
            instance: donor.instance,
            memory,
            links: vec![],
            port: PortReport::default(),
            pressure: Default::default(),
        })
    }

    fn heartbeat(&mut self, report: HeartbeatReport) {
        let instance = report.instance;
        let now_ns = self.now_ns;
        let acknowledged = self.core().handle_heartbeat(now_ns, report);
        self.collect_actions();
        let sender = self.donors.iter().position(|donor| donor.instance == instance);
        match (sender, acknowledged) {
            (Some(index), Ok(ack)) => {
                self.check_preemptions(index, &ack.called_back);
                self.donors[index].core.handle_draining(ack.is_draining);
                self.donors[index].core.handle_called_back(self.now_ns, &ack.called_back);
            }
            (Some(index), Err(_)) => self.register(index),
            (None, _) => {}
        }
    }

    fn wipe(&mut self, index: usize) {
        let core = &mut self.donors[index].core;
        while let Some(DonorAction::FreeSlabs { grant, reason, .. }) = core.poll_action() {
            core.handle_freed(grant);
            let promised_ns = self.promised_ns.get(&grant);
            let is_early = |deadlines: &Vec<(NoticeReason, u64)>| {
                deadlines.iter().all(|(_, until_ns)| self.now_ns < *until_ns)
            };
            if reason == EndReason::TakenBack && promised_ns.is_some_and(is_early) {
                panic!("grant {grant} was taken back before its time");
            }
        }
    }

    /// Renews all leases. Recipients drop dead grants. Every other one releases reclaimed grants;
    /// the others have nowhere to move their data.
    fn renew_all(&mut self) {
        let (now_ns, donors) = (self.now_ns, &mut self.donors);
        let mut released = Vec::new();
        self.wanted.clear();
        for (index, recipient) in self.recipients.iter_mut().enumerate() {
            recipient.held.retain(|grant| {
                let donor = &mut donors[grant.donor_node.0 as usize - 1];
                if !donor.alive {
                    return false;
                }
                match donor.core.handle_renew(now_ns, grant.id, grant.key) {
                    LeaseState::Transferred { .. } | LeaseState::Unknown => false,
                    LeaseState::Live { notice: None, .. } => {
                        self.promised_ns.remove(&grant.id);
                        true
                    }
                    LeaseState::Live { notice: Some(notice), .. } => {
                        note_promise(&mut self.promised_ns, now_ns, grant.id, notice);
                        self.wanted.insert(grant.id);
                        if index % 2 == 0 {
                            recipient.granted.clear();
                            recipient.given_back.insert(grant.id);
                            released.push((grant.id, grant.key));
                        }
                        index % 2 != 0
                    }
                }
            });
        }
        if !released.is_empty() {
            self.put(PendingCall::Release(released));
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now_ns += ms * MS;
        for donor in self.donors.iter_mut().filter(|donor| donor.alive) {
            donor.core.handle_timeout(self.now_ns);
        }
        self.share_silent_nodes();
        let now_ns = self.now_ns;
        for monitor in self.monitors.iter_mut() {
            if monitor.core.poll_timeout() <= now_ns {
                monitor.core.handle_timeout(now_ns);
            }
        }
        self.check_line();
    }

    fn start_donor(&mut self, index: usize) {
        if !self.donors[index].alive {
            let instance = self.next_instance;
            self.next_instance += 1;
            self.donors[index] =
                Donor { core: fresh_core(self.now_ns), instance, alive: true, identity: None };
            self.register(index);
        }
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }
}

/// Records a deadline. It is never shortened by a later notice of the same reason.
fn note_promise(promised_ns: &mut Promises, now_ns: u64, grant: GrantId, notice: Notice) {
    let until_ns = now_ns + notice.within_ms.unwrap_or(0) * MS;
    let deadlines = promised_ns.entry(grant).or_default();
    match deadlines.iter_mut().find(|(reason, _)| *reason == notice.reason) {
        Some((_, promised_ns)) => *promised_ns = (*promised_ns).max(until_ns),
        None => deadlines.push((notice.reason, until_ns)),
    }
}

/// Checks that grants answer a request as a whole.
fn check_whole(request: &AllocationRequest, grants: &[Grant]) {
    let held = |kind| {
        let shares = grants.iter().filter(|grant| grant.share.kind == kind);
        shares.map(|grant| grant.share.amount()).sum::<u64>()
    };
    for want in &request.wants {
        let each = if want.kind.is_divisible() { want.bytes.0 } else { 1 };
        assert_eq!(held(want.kind), each * u64::from(want.count), "granted in part: {want:?}");
    }
    let kinds = request.wants.iter().map(|want| want.kind);
    assert!(grants.iter().all(|grant| kinds.clone().any(|it| it == grant.share.kind)), "and more");
}

fn name_of(index: usize) -> String {
    format!("node{}", index + 1)
}

/// Returns one of two users on two nodes, in turn.
fn owner_of(recipient: usize) -> Owner {
    let user = USERS[recipient % USERS.len()].to_owned();
    Owner { node: format!("home{}", recipient / 2 % 2), user, is_bound: false }
}

/// Takes one of the items, if there are any.
fn take<T>(items: &mut Vec<T>, pick: usize) -> Option<T> {
    let count = items.len();
    if count == 0 { None } else { Some(items.remove(pick % count)) }
}
