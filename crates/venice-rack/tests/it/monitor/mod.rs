//! The Monitor Node's logic, step by step.

mod among_others;
mod at_once;
mod events;
mod farewell;
mod giving_back;
mod queue;
mod quotas;
mod reach;
mod recovery;
mod transfer;

use crate::common::{self, CountingKeys, S, owner, settings};
use std::collections::BTreeMap;
use venice_rack::caller::Owner;
use venice_rack::monitor::{Action, CallError, Change, Event, Kept, MonitorCore, Record, Token};
use venice_rack::monitor_node::{DonorCall, Reply};
use venice_rack::rat::GrantState;
use venice_rack::types::{
    AllocationRequest, DonorReport, DonorStatus, Grant, HeartbeatReport, HeldGrant, HeldState,
    Identity, LinkPort, LinkProtection, LinkReport, LinkState, NodeRegistration, Pong, PortReport,
    PrepareRequest, RackError, Refusal, RelayPlace, Share, Want,
};
use venice_wire::{GrantId, GrantKey, NodeId, SLAB_BYTES};

/// A Monitor Node with nodes of eight slabs.
struct Rack {
    core: MonitorCore,
    /// Keys of the grants.
    keys: BTreeMap<GrantId, GrantKey>,
}

impl Rack {
    fn new(nodes: &[&str]) -> Self {
        let core = MonitorCore::recover(settings(), Box::new(CountingKeys(0)), 0, []);
        let mut rack = Self { core, keys: BTreeMap::new() };
        for (instance, name) in (1..).zip(nodes) {
            assert!(rack.register(name, instance).is_some(), "{name} joins");
        }
        rack
    }

    /// Registers an agent and returns the answer; `None` if a ping is needed first.
    fn register(&mut self, name: &str, instance: u64) -> Option<Result<Identity, RackError>> {
        self.core.handle_register(0, Token(instance), registration(name, instance));
        self.registered()
    }

    fn registered(&mut self) -> Option<Result<Identity, RackError>> {
        self.actions().into_iter().find_map(|action| match action {
            Action::Reply(_, Reply::Registered(result)) => {
                Some(result.map(|answer| answer.identity))
            }
            _ => None,
        })
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.core.poll_action()).collect()
    }

    /// Returns the actions without notes.
    fn deeds(&mut self) -> Vec<Action> {
        let actions = self.actions().into_iter();
        actions.filter(|action| !matches!(action, Action::Note(_))).collect()
    }

    /// Returns the kinds of the events noted.
    fn noted(&mut self) -> Vec<String> {
        let kind = |action| match action {
            Action::Note(event) => Some(event.row().kind),
            _ => None,
        };
        self.actions().into_iter().filter_map(kind).collect()
    }

    fn ask(&mut self, now_ns: u64, client_id: u128, slabs: u64) -> Vec<(Identity, PrepareRequest)> {
        self.core.handle_request(now_ns, owner(), request(client_id, slabs)).unwrap();
        prepares(self.actions())
    }

    /// Lends one grant of `slabs`, with the whole handshake.
    fn lend(&mut self, slabs: u64) -> (Identity, GrantId) {
        let (donor, request) = self.ask(0, 1, slabs).remove(0);
        self.core.handle_prepared(0, donor, request.grant, Ok(status(8 - slabs as u32, 1)));
        self.core.handle_committed(0, donor, request.grant, Ok(status(8 - slabs as u32, 2)));
        granted(self.actions()).unwrap();
        self.keys.insert(request.grant, request.key);
        (donor, request.grant)
    }

    fn release(&mut self, grant: GrantId) {
        self.core.handle_release(Token(9), &[(grant, self.keys[&grant])]);
    }

    fn report(
        &mut self,
        now_ns: u64,
        donor: Identity,
        revision: u64,
        held: &[(GrantId, HeldState)],
    ) {
        let held: Vec<_> =
            held.iter().map(|(id, state)| HeldGrant { state: *state, ..held_of(*id, 2) }).collect();
        let free = 8 - 2 * held.len() as u32;
        self.heartbeat(
            now_ns,
            donor,
            DonorReport { status: status(free, revision), held, devices: vec![] },
        );
    }

    fn heartbeat(&mut self, now_ns: u64, donor: Identity, memory: DonorReport) {
        let instance = u64::from(donor.node.0);
        // Known to answer, it is not called.
        self.core.handle_pinged(now_ns, donor, Ok(Pong { name: String::new(), instance }));
        self.report_alone(now_ns, donor, memory);
    }

    fn report_alone(&mut self, now_ns: u64, donor: Identity, memory: DonorReport) {
        let instance = u64::from(donor.node.0);
        let report = HeartbeatReport {
            usage: Vec::new(),
            peers_version: 0,
            door: Default::default(),
            identity: donor,
            instance,
            memory,
            links: vec![],
            port: PortReport::default(),
            pressure: Default::default(),
        };
        self.core.handle_heartbeat(now_ns, report).unwrap();
    }

    fn states(&self) -> Vec<String> {
        self.core.grant_rows(0).into_iter().map(|row| row.state).collect()
    }
}

fn held_of(id: GrantId, slabs: u32) -> HeldGrant {
    HeldGrant {
        ownership: 1,
        owner: None,
        id,
        share: Share::of_slabs(slabs),
        state: HeldState::Committed,
        lease_ms: 10_000,
        recipient: "r".into(),
        purpose: "p".into(),
        priority: 100,
    }
}

/// Returns a request for slabs from any donor.
fn request(client_id: u128, slabs: u64) -> AllocationRequest {
    AllocationRequest {
        wants: vec![Want::memory(slabs * SLAB_BYTES, 1)],
        client_id,
        recipient: "r".into(),
        donors: vec![],
        home: String::new(),
        placement: None,
        purpose: "p".into(),
        queueing: Default::default(),
    }
}

fn registration(name: &str, instance: u64) -> NodeRegistration {
    common::registration(name, instance, 8)
}

fn status(free_slabs: u32, revision: u64) -> DonorStatus {
    DonorStatus { total_slabs: 8, free_slabs, revision }
}

fn prepares(actions: Vec<Action>) -> Vec<(Identity, PrepareRequest)> {
    let prepare = |action| match action {
        Action::Call { donor, call: DonorCall::Prepare(request), .. } => Some((donor, request)),
        _ => None,
    };
    actions.into_iter().filter_map(prepare).collect()
}

fn granted(actions: Vec<Action>) -> Result<Vec<Grant>, RackError> {
    let reply = actions.into_iter().find_map(|action| match action {
        Action::ReplyRequest { result, .. } => Some(result),
        _ => None,
    });
    reply.expect("an answer")
}

fn aborts_or_releases(actions: &[Action]) -> usize {
    let takes_back = |action: &&Action| {
        matches!(
            action,
            Action::Call { call: DonorCall::Abort(_), .. }
                | Action::Call { call: DonorCall::Release(_), .. }
        )
    };
    actions.iter().filter(takes_back).count()
}

/// Slabs that take two donors.
const MORE_THAN_ONE_HAS: u64 = 10;

#[test]
fn records_precede_commit_and_answer() {
    let mut rack = Rack::new(&["node1", "node2"]);
    let shares = rack.ask(0, 1, MORE_THAN_ONE_HAS);
    for (donor, request) in &shares {
        let status = status(8 - request.share.slabs(), 1);
        rack.core.handle_prepared(0, *donor, request.grant, Ok(status));
    }
    let [
        Action::Store(intent),
        Action::Call { call: DonorCall::Commit { .. }, .. },
        Action::Call { call: DonorCall::Commit { .. }, .. },
    ] = &rack.actions()[..]
    else {
        panic!("a record, then the commits");
    };
    let are = |changes: &[Change], state: GrantState| {
        let is = |it: &Change| matches!(it, Change::PutGrant(grant) if grant.state == state);
        changes.len() == 2 && changes.iter().all(is)
    };
    assert!(are(intent, GrantState::Committing));
    for (donor, request) in &shares {
        let status = status(8 - request.share.slabs(), 2);
        rack.core.handle_committed(0, *donor, request.grant, Ok(status));
    }
    let [Action::Store(outcome), Action::ReplyRequest { result: Ok(_), .. }] = &rack.deeds()[..]
    else {
        panic!("a record, then the answer");
    };
    assert!(are(outcome, GrantState::Committed));
}

#[test]
fn stale_report_is_ignored() {
    let mut rack = Rack::new(&["node1"]);
    let (donor, _) = rack.lend(2);
    rack.report(0, donor, 1, &[]);
    assert_eq!(rack.actions(), []);
    assert_eq!(rack.states(), ["committed"]);
    rack.report(0, donor, 3, &[]);
    assert_eq!(rack.states(), [""; 0]);
}

#[test]
fn report_during_handshake_is_harmless() {
    let mut rack = Rack::new(&["node1", "node2"]);
    let mut shares = rack.ask(0, 1, MORE_THAN_ONE_HAS);
    let ((donor, request), (other, more)) = (shares.remove(0), shares.remove(0));
    let free_slabs = 8 - request.share.slabs();
    let report = |revision: u64, state: HeldState| DonorReport {
        status: status(free_slabs, revision),
        held: vec![HeldGrant { state, ..held_of(request.grant, request.share.slabs()) }],
        devices: vec![],
    };
    rack.core.handle_prepared(0, other, more.grant, Ok(status(0, 1)));
    // The donor has prepared; its report overtakes its answer.
    rack.heartbeat(0, donor, report(1, HeldState::Prepared));
    assert_eq!(rack.actions(), []);
    rack.core.handle_prepared(0, donor, request.grant, Ok(status(free_slabs, 1)));
    rack.actions();
    rack.heartbeat(0, donor, report(2, HeldState::Committed));
    assert_eq!(rack.actions(), []);
    rack.core.handle_committed(0, other, more.grant, Ok(status(0, 2)));
    rack.core.handle_committed(0, donor, request.grant, Ok(status(free_slabs, 2)));
    assert_eq!(granted(rack.actions()).unwrap().len(), 2);
}

#[test]
fn unknown_prepare_aborts_unknown_grant_adopts() {
    let mut rack = Rack::new(&["node1"]);
    let donor = Identity { node: NodeId(1), epoch: 1 };
    let (prepared, committed) = (GrantId(700), GrantId(701));
    rack.report(0, donor, 5, &[(prepared, HeldState::Prepared), (committed, HeldState::Committed)]);
    let actions = rack.actions();
    assert!(actions.iter().any(
        |a| matches!(a, Action::Call { call: DonorCall::Abort(grant), .. } if *grant == prepared)
    ));
    assert_eq!(rack.states(), ["committed"]);
    let (_, request) = rack.ask(0, 1, 1).remove(0);
    assert!(request.grant > committed, "an adopted grant's number is not reused");
}

#[test]
fn impossible_grants_are_not_adopted() {
    let mut rack = Rack::new(&["node1"]);
    let donor = Identity { node: NodeId(1), epoch: 1 };
    let (_, known) = rack.lend(4);
    let long = "x".repeat(256);
    let of = |node: &str, user: &str| {
        Some(Owner { node: node.into(), user: user.into(), is_bound: false })
    };
    let held = vec![
        held_of(GrantId(1 << 63), 1),
        held_of(GrantId(701), 0),
        HeldGrant { owner: of("node1", &long), ..held_of(GrantId(702), 1) },
        HeldGrant { owner: of(&long, "alice"), ..held_of(GrantId(703), 1) },
        HeldGrant { recipient: long.clone(), ..held_of(GrantId(704), 1) },
        HeldGrant { purpose: long.clone(), ..held_of(GrantId(705), 1) },
    ];
    let memory = DonorReport { status: status(0, 5), held, devices: vec![] };
    let known_too = |mut memory: DonorReport| {
        memory.held.push(held_of(known, 4));
        memory
    };
    rack.heartbeat(0, donor, known_too(memory));
    assert_eq!(rack.core.grant_rows(0).len(), 1);
    // It has 8 slabs, whatever it reports; 4 of them are lent for sure.
    let held = [(710, 3), (711, 2), (712, 1), (713, u32::MAX)];
    let held = held.map(|(id, slabs)| held_of(GrantId(id), slabs)).to_vec();
    let status = DonorStatus { total_slabs: u32::MAX, free_slabs: 0, revision: 6 };
    rack.heartbeat(0, donor, known_too(DonorReport { status, held, devices: vec![] }));
    let ids: Vec<_> = rack.core.grant_rows(0).into_iter().map(|row| row.id).collect();
    assert_eq!(ids, [known.0, 710]);
    let answer = rack.actions();
    let is_noted = |action: &&Action| matches!(action, Action::Note(Event::GrantNotAdopted { donor, .. }) if donor == "node1");
    assert_eq!(answer.iter().filter(is_noted).count(), 6 + 3);
}

#[test]
fn share_of_dead_donor_is_replaced() {
    let mut rack = Rack::new(&["node1", "node2", "node3"]);
    let asked = rack.ask(0, 1, 6);
    assert_eq!(asked.len(), 3);
    for (donor, request) in &asked {
        rack.core.handle_prepared(0, *donor, request.grant, Ok(status(6, 1)));
    }
    rack.actions();
    let (dead, request) = &asked[0];
    rack.core.handle_committed(0, *dead, request.grant, Ok(status(6, 2)));
    // It restarts; the other two are committed after that.
    assert_eq!(rack.register("node1", 77), None, "the old one is pinged first");
    rack.core.handle_pinged(0, *dead, Err(CallError::Gone));
    let renewed = rack.registered().unwrap().unwrap();
    assert_eq!(renewed.epoch, 2);
    for (donor, request) in &asked[1..] {
        rack.core.handle_committed(0, *donor, request.grant, Ok(status(6, 2)));
    }
    let again = prepares(rack.actions());
    assert_eq!(again.iter().map(|(_, request)| request.share.slabs()).sum::<u32>(), 2);
    for (donor, request) in &again {
        rack.core.handle_prepared(0, *donor, request.grant, Ok(status(4, 3)));
        rack.actions();
        rack.core.handle_committed(0, *donor, request.grant, Ok(status(4, 4)));
    }
    let grants = granted(rack.actions()).unwrap();
    assert!(grants.iter().all(|grant| grant.id != request.grant), "{grants:?}");
    assert_eq!(grants.iter().map(|grant| grant.share.bytes).sum::<u64>(), 6 * SLAB_BYTES);
}

#[test]
fn refusal_corrects_stale_table() {
    let mut rack = Rack::new(&["node1", "node2"]);
    let asked = rack.ask(0, 1, 8);
    assert_eq!(asked.iter().map(|(_, request)| request.share.slabs()).collect::<Vec<_>>(), [4, 4]);
    let refusal = Err(CallError::Refused(Refusal::NoRoom { free_slabs: 1 }));
    rack.core.handle_prepared(0, asked[0].0, asked[0].1.grant, refusal);
    rack.core.handle_prepared(0, asked[1].0, asked[1].1.grant, Ok(status(4, 1)));
    let again: Vec<_> = prepares(rack.actions())
        .into_iter()
        .map(|(donor, request)| (donor.node.0, request.share.slabs()))
        .collect();
    assert_eq!(again, [(1, 1), (2, 3)]);
}

#[test]
fn late_donors_fail_whole_request() {
    let mut rack = Rack::new(&["node1", "node2", "node3"]);
    let asked = rack.ask(0, 1, 6);
    rack.core.handle_prepared(S, asked[0].0, asked[0].1.grant, Ok(status(6, 1)));
    assert_eq!(rack.core.poll_timeout(), S / 4);
    rack.core.handle_timeout(4 * S - 1);
    assert_eq!(aborts_or_releases(&rack.actions()), 0);
    rack.core.handle_timeout(4 * S);
    let actions = rack.actions();
    assert_eq!(aborts_or_releases(&actions), 3);
    assert_eq!(granted(actions), Err(RackError::HandshakeFailed));
    // A later answer still leaves nothing prepared.
    rack.core.handle_prepared(5 * S, asked[1].0, asked[1].1.grant, Ok(status(6, 1)));
    assert_eq!(aborts_or_releases(&rack.actions()), 1);
    assert_eq!(rack.states(), [""; 0]);
}

#[test]
fn uncountable_memory_is_refused() {
    let mut rack = Rack::new(&["node1"]);
    let mut most = request(1, 1);
    most.wants = vec![Want::memory(1 << 55, 1)];
    rack.core.handle_request(0, owner(), most.clone()).unwrap();
    assert!(matches!(granted(rack.actions()), Err(RackError::NoRoom { .. })));
    most.wants = vec![Want::memory((1 << 55) + 1, 1)];
    let Err(RackError::BadRequest(said)) =
        rack.core.handle_request(0, owner(), most).and_then(|()| granted(rack.actions()).map(drop))
    else {
        panic!("more slabs than can be counted");
    };
    assert!(said.contains("at most 32PiB of memory"), "{said}");
}

#[test]
fn request_belongs_to_owner() {
    let mut rack = Rack::new(&["node1"]);
    let mallory = Owner { user: "mallory".to_owned(), ..owner() };
    rack.core.handle_request(0, owner(), eight_slabs(1)).unwrap();
    let asked = prepares(rack.actions());
    let answer = rack.core.handle_request(0, mallory.clone(), eight_slabs(1));
    assert!(matches!(answer, Err(RackError::Forbidden(_))), "during the handshake: {answer:?}");
    assert_eq!(rack.core.grant_rows(0)[0].owner_user, "alice");
    let (donor, request) = &asked[0];
    assert_eq!(request.owner, Some(owner()), "the donor has the owner");
    rack.core.handle_prepared(0, *donor, request.grant, Ok(status(0, 1)));
    rack.core.handle_committed(0, *donor, request.grant, Ok(status(0, 2)));
    assert_eq!(granted(rack.actions()).unwrap().len(), 1);
    let answer = rack.core.handle_request(0, mallory, eight_slabs(1));
    assert!(matches!(answer, Err(RackError::Forbidden(_))), "after the grant: {answer:?}");
    assert_eq!(rack.actions(), []);
    rack.core.handle_request(0, owner(), eight_slabs(1)).unwrap();
    assert_eq!(granted(rack.actions()).unwrap().len(), 1);
}

fn released(kept: Kept) -> Action {
    Action::Reply(Token(9), Reply::Released(kept))
}

fn eight_slabs(client_id: u128) -> AllocationRequest {
    AllocationRequest {
        wants: vec![Want::memory(8 * SLAB_BYTES, 1)],
        client_id,
        recipient: "r".into(),
        donors: vec![],
        home: String::new(),
        placement: None,
        purpose: "p".into(),
        queueing: Default::default(),
    }
}

fn stored(action: &Action) -> Option<Vec<Record>> {
    let Action::Store(changes) = action else { return None };
    let record = |change: &Change| match change.clone() {
        Change::PutNode(node) => Record::Node(node),
        Change::PutGrant(grant) => Record::Grant(grant),
        Change::PutGrantLimit(limit) => Record::GrantLimit(limit),
        other => panic!("unexpected change: {other:?}"),
    };
    Some(changes.iter().map(record).collect())
}

#[test]
fn living_holder_keeps_name() {
    let mut rack = Rack::new(&["node1"]);
    let holder = Identity { node: NodeId(1), epoch: 1 };
    assert_eq!(rack.register("node1", 2), None);
    let alive = Pong { name: "node1".into(), instance: 1 };
    rack.core.handle_pinged(0, holder, Ok(alive));
    assert!(matches!(rack.registered(), Some(Err(RackError::NameTaken { .. }))));
    // A missing answer is no proof of death.
    assert_eq!(rack.register("node1", 2), None);
    rack.core.handle_pinged(0, holder, Err(CallError::NoAnswer));
    assert!(matches!(rack.registered(), Some(Err(RackError::NameTaken { .. }))));
    // Another process at its address is.
    assert_eq!(rack.register("node1", 2), None);
    rack.core.handle_pinged(0, holder, Ok(Pong { name: "node1".into(), instance: 2 }));
    assert_eq!(rack.registered(), Some(Ok(Identity { node: NodeId(1), epoch: 2 })));
}

#[test]
fn repeated_registration_keeps_epoch() {
    let mut rack = Rack::new(&["node1"]);
    assert_eq!(rack.register("node1", 1), Some(Ok(Identity { node: NodeId(1), epoch: 1 })));
}

#[test]
fn invalid_input_is_refused() {
    let mut rack = Rack::new(&["node1"]);
    for name in ["", "a\nb", &"x".repeat(256)] {
        assert!(matches!(rack.register(name, 9), Some(Err(RackError::BadRequest(_)))), "{name:?}");
    }
    assert_eq!(rack.ask(0, 1, 0), []);
    let far_too_much = 1 << 30;
    rack.core
        .handle_request(
            0,
            owner(),
            AllocationRequest {
                wants: vec![Want::memory(far_too_much * SLAB_BYTES, 1)],
                client_id: 2,
                recipient: "r".into(),
                donors: vec![],
                home: String::new(),
                placement: None,
                purpose: "p".into(),
                queueing: Default::default(),
            },
        )
        .unwrap();
    assert!(matches!(granted(rack.actions()), Err(RackError::NoRoom { .. })));
}

#[test]
fn missed_heartbeats_mark_node_down() {
    let mut rack = Rack::new(&["node1", "node2"]);
    let (donor, grant) = rack.lend(1);
    let other = Identity { node: NodeId(2), epoch: 1 };
    let link = LinkReport {
        to: donor.node,
        port: LinkPort::Udp,
        state: LinkState::Up,
        latency_us: 20.0,
        loss_ratio: 0.0,
        bandwidth_mbps: None,
        bytes_per_s: None,
        protection: LinkProtection::Aes256Gcm,
    };
    let memory = DonorReport { status: status(8, 0), held: vec![], devices: vec![] };
    let report = HeartbeatReport {
        usage: Vec::new(),
        peers_version: 0,
        door: Default::default(),
        identity: other,
        instance: 2,
        memory,
        links: vec![link],
        port: PortReport::default(),
        pressure: Default::default(),
    };
    let ack = rack.core.handle_heartbeat(2 * S, report).unwrap();
    let near = ack.peers.unwrap();
    assert_eq!(near.peers.iter().map(|peer| &*peer.name).collect::<Vec<_>>(), ["node1"]);

    rack.core.handle_timeout(3 * S);
    let states = |rack: &Rack| -> Vec<String> {
        rack.core.node_rows(0).into_iter().map(|row| row.state).collect()
    };
    assert_eq!(states(&rack), ["down", "up"]);
    assert_eq!(rack.states(), ["lost"]);
    assert_eq!(rack.core.link_rows()[0].state, "down");
    // It was only cut off.
    rack.report(12 * S, donor, 2, &[(grant, HeldState::Committed)]);
    assert_eq!(rack.states(), ["committed"]);
}

fn registered(actions: Vec<Action>) -> Result<venice_rack::types::Registered, RackError> {
    let reply = actions.into_iter().find_map(|action| match action {
        Action::Reply(_, Reply::Registered(result)) => Some(result),
        _ => None,
    });
    reply.expect("an answer")
}

#[test]
fn secret_lasts_one_epoch() {
    let mut rack = Rack::new(&[]);
    rack.core.handle_register(0, Token(1), registration("node1", 1));
    let first = registered(rack.actions()).unwrap();
    let secret = first.secret.expect("a rack protects its datagrams");
    // The same process again, and once more after the Monitor Node has lost its store.
    rack.core.handle_register(0, Token(2), registration("node1", 1));
    assert_eq!(registered(rack.actions()).unwrap().secret, Some(secret));
    let mut forgetful = Rack::new(&[]);
    forgetful.core.handle_register(0, Token(9), registration("other", 9));
    forgetful.actions();
    let known =
        |previous| NodeRegistration { previous, secret: Some(secret), ..registration("node1", 1) };
    let elsewhere = Identity { node: NodeId(7), epoch: 3 };
    forgetful.core.handle_register(0, Token(3), known(Some(elsewhere)));
    assert_eq!(registered(forgetful.actions()).unwrap().secret, Some(secret));
    // Another process has another secret.
    rack.core.handle_timeout(100 * S);
    rack.core.handle_register(100 * S, Token(4), registration("node1", 2));
    let second = registered(rack.actions()).unwrap();
    assert_eq!(second.identity.epoch, first.identity.epoch + 1);
    assert!(second.secret.is_some() && second.secret != Some(secret));
}

#[test]
fn unprotected_agent_is_refused() {
    let mut rack = Rack::new(&[]);
    let plain = NodeRegistration { is_plain: true, ..registration("node1", 1) };
    rack.core.handle_register(0, Token(1), plain);
    let error = registered(rack.actions()).unwrap_err();
    assert!(error.to_string().contains("--plain"), "{error}");
}

#[test]
fn relay_position_and_topology_are_checked() {
    let mut rack = Rack::new(&[]);
    let place = |topology: &str, position| {
        let addr = format!("10.0.0.{position}:1");
        Some(RelayPlace { topology: topology.into(), position, addr })
    };
    let mut register = |name, instance, relay| {
        let node = NodeRegistration { relay, ..registration(name, instance) };
        rack.core.handle_register(0, Token(instance), node);
        registered(rack.actions())
    };
    let first = register("node1", 1, place("mesh:2", 0)).unwrap();
    for (relay, says) in [
        (place("mesh:2", 0), "node1's already"),
        (place("mesh:3", 1), "wired as mesh:2, not as mesh:3"),
        (None, "not as all-to-all"),
    ] {
        let error = register("node2", 2, relay).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    let second = register("node2", 2, place("mesh:2", 1)).unwrap();
    let report = HeartbeatReport {
        usage: Vec::new(),
        peers_version: 0,
        door: Default::default(),
        identity: first.identity,
        instance: 1,
        memory: DonorReport { status: status(8, 0), held: vec![], devices: vec![] },
        links: vec![],
        port: PortReport::default(),
        pressure: Default::default(),
    };
    // Relays that are down are listed too: a packet's path depends on all of them.
    rack.core.handle_timeout(100 * S);
    let relays = rack.core.handle_heartbeat(100 * S, report).unwrap().peers.unwrap().relays;
    let mut known: Vec<_> = relays.iter().map(|relay| (relay.position, relay.node)).collect();
    known.sort_unstable();
    assert_eq!(known, [(0, first.identity.node), (1, second.identity.node)]);
}
