//! Enrolment and revocation of nodes by the Monitor Node.

use crate::common::{CountingKeys, S, registration, settings};
use venice_rack::caller::Caller;
use venice_rack::door::DoorReport;
use venice_rack::monitor::{Action, Change, Event, JoinTokenRecord, MonitorCore, Record, Token};
use venice_rack::monitor_node::Reply;
use venice_rack::pressure::PressureReport;
use venice_rack::revocation::{Revocation, Revocations};
use venice_rack::types::{
    DonorReport, DonorStatus, HeartbeatReport, Identity, NodeRegistration, PortReport, RackError,
};
use venice_wire::NodeId;

/// The time of day at the start, in milliseconds since 1970.
const NOON_MS: u64 = 1_800_000_000_000;
const HASH: [u8; 32] = [7; 32];

/// A Monitor Node and its records.
struct Rack {
    core: MonitorCore,
    records: Vec<Record>,
}

impl Rack {
    fn new() -> Rack {
        Rack::recover(Vec::new())
    }

    fn recover(records: Vec<Record>) -> Rack {
        let core = MonitorCore::recover(settings(), Box::new(CountingKeys(0)), 0, records.clone());
        Rack { core, records }
    }

    /// Performs all actions and returns the last answer. Asserts that nothing is recorded after an
    /// answer.
    fn act(&mut self) -> Result<(), RackError> {
        let mut answer = None;
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Store(changes) => {
                    assert!(answer.is_none(), "answered before it was durable");
                    changes.into_iter().for_each(|change| self.record(change));
                }
                Action::Reply(_, Reply::Done(result)) => answer = Some(result),
                _ => {}
            }
        }
        answer.unwrap_or(Ok(()))
    }

    fn record(&mut self, change: Change) {
        let is_token = |record: &Record, id| matches!(record, Record::Token(it) if it.id == id);
        match change {
            Change::PutNode(node) => {
                self.records.retain(|it| !matches!(it, Record::Node(it) if it.name == node.name));
                self.records.push(Record::Node(node));
            }
            Change::PutToken(token) => {
                self.records.retain(|it| !is_token(it, token.id));
                self.records.push(Record::Token(token));
            }
            Change::DeleteToken(id) => self.records.retain(|it| !is_token(it, id)),
            Change::PutRevocation(revocation) => {
                self.records.push(Record::Revocation(revocation));
            }
            Change::DeleteRevocation(node) => {
                self.records.retain(|it| !matches!(it, Record::Revocation(it) if it.node == node));
            }
            Change::PutCertificateLife(life_ms) => {
                self.records.retain(|it| !matches!(it, Record::CertificateLife(_)));
                self.records.push(Record::CertificateLife(life_ms));
            }
            _ => {}
        }
    }

    fn make(&mut self, id: u64, node: &str) {
        let expires_ms = NOON_MS + 1000;
        let (node, used_by) = (node.to_owned(), String::new());
        let used_key = None;
        let record = JoinTokenRecord { id, secret_hash: HASH, node, expires_ms, used_by, used_key };
        self.core.handle_new_token(NOON_MS, Token(1), record);
        self.act().unwrap();
    }

    fn join(&mut self, wall_ms: u64, token: (u64, [u8; 32]), name: &str) -> Result<(), RackError> {
        self.join_with(wall_ms, token, (name, [1; 32]))
    }

    fn join_with(
        &mut self,
        wall_ms: u64,
        token: (u64, [u8; 32]),
        named: (&str, [u8; 32]),
    ) -> Result<(), RackError> {
        self.core.handle_join(wall_ms, Token(2), token, named);
        self.act()
    }
}

fn why(result: Result<(), RackError>) -> String {
    match result {
        Err(RackError::BadToken(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn token_admits_one_machine_once() {
    let mut rack = Rack::new();
    rack.make(1, "");
    assert!(
        why(rack.join(NOON_MS, (1, [8; 32]), "node1")).contains("unknown or expired join token")
    );
    assert!(why(rack.join(NOON_MS, (2, HASH), "node1")).contains("unknown or expired join token"));
    rack.join(NOON_MS, (1, HASH), "node1").unwrap();
    assert!(why(rack.join(NOON_MS, (1, HASH), "node2")).contains("used before, by node1"));
    // Also not after a restart of the Monitor Node.
    let mut again = Rack::recover(rack.records);
    assert!(why(again.join(NOON_MS, (1, HASH), "node2")).contains("used before, by node1"));
}

#[test]
fn lost_answer_is_repeated_for_same_key() {
    let mut rack = Rack::new();
    rack.make(1, "");
    rack.join_with(NOON_MS, (1, HASH), ("node1", [5; 32])).unwrap();
    let mut rack = Rack::recover(rack.records);
    rack.join_with(NOON_MS + 999, (1, HASH), ("node1", [5; 32])).unwrap();
    let bad = |result| why(result);
    let other_key = rack.join_with(NOON_MS, (1, HASH), ("node1", [6; 32]));
    assert!(bad(other_key).contains("used before, by node1"));
    let other_name = rack.join_with(NOON_MS, (1, HASH), ("node2", [5; 32]));
    assert!(bad(other_name).contains("used before, by node1"));
    let late = rack.join_with(NOON_MS + 1000, (1, HASH), ("node1", [5; 32]));
    assert!(bad(late).contains("unknown or expired join token"));
    rack.core.handle_revoke(S, NOON_MS, Token(3), ("node1", false));
    rack.act().unwrap();
    let revoked = rack.join_with(NOON_MS, (1, HASH), ("node1", [5; 32]));
    assert!(bad(revoked).contains("unknown or expired join token"));
}

#[test]
fn token_expires_and_binds_name() {
    let mut rack = Rack::new();
    rack.make(1, "");
    assert!(
        why(rack.join(NOON_MS + 1000, (1, HASH), "node1"))
            .contains("unknown or expired join token")
    );
    assert!(rack.core.tokens(NOON_MS + 1000).is_empty());
    rack.make(2, "node7");
    assert!(why(rack.join(NOON_MS, (2, HASH), "node8")).contains("lets in node7 and not node8"));
    rack.join(NOON_MS, (2, HASH), "node7").unwrap();
}

#[test]
fn living_name_cannot_be_joined() {
    let mut rack = Rack::new();
    rack.core.handle_register(0, Token(0), registration("node1", 5, 4));
    rack.act().unwrap();
    rack.make(1, "");
    let result = rack.join(NOON_MS, (1, HASH), "node1");
    assert!(matches!(result, Err(RackError::NameTaken { .. })), "{result:?}");
    // The token is still valid for another name.
    rack.join(NOON_MS, (1, HASH), "node2").unwrap();
    for name in ["", "a\nb", &"x".repeat(256)] {
        let result = rack.join(NOON_MS, (1, HASH), name);
        assert!(matches!(result, Err(RackError::BadRequest(_))), "{name:?}: {result:?}");
    }
}

/// A report of the first node, with instance 5.
fn report_of_node1() -> HeartbeatReport {
    HeartbeatReport {
        usage: Vec::new(),
        peers_version: 0,
        identity: Identity { node: NodeId(1), epoch: 1 },
        instance: 5,
        memory: DonorReport {
            status: DonorStatus { total_slabs: 4, free_slabs: 4, revision: 1 },
            held: vec![],
            devices: vec![],
        },
        links: vec![],
        port: PortReport::default(),
        pressure: PressureReport::default(),
        door: DoorReport::default(),
    }
}

/// The listener lets it in by the certificate of its second join: its record has to follow.
#[test]
fn node_that_joins_again_registers() {
    for restarts in [false, true] {
        let mut rack = Rack::new();
        rack.core.handle_register(0, Token(0), registration("node1", 5, 4));
        rack.act().unwrap();
        rack.core.handle_revoke(S, NOON_MS, Token(3), ("node1", false));
        rack.act().unwrap();
        if restarts {
            rack = Rack::recover(rack.records);
        }
        let refused = rack.core.handle_heartbeat(S, report_of_node1()).unwrap_err();
        assert_eq!(refused, RackError::NotRegistered);
        assert_eq!(rack.core.node_rows(S)[0].state, "revoked");
        let previous = Some(Identity { node: NodeId(1), epoch: 1 });
        let again = NodeRegistration { previous, ..registration("node1", 5, 4) };
        rack.core.handle_register(S, Token(4), again);
        rack.act().unwrap();
        rack.core.handle_heartbeat(S, report_of_node1()).unwrap();
        assert_eq!(rack.core.node_rows(S)[0].state, "up");
        assert_eq!(rack.core.trust_versions().len(), 1, "it counts as a member");
        let rack = Rack::recover(rack.records);
        assert_ne!(rack.core.node_rows(S)[0].state, "revoked");
    }
}

#[test]
fn revoked_node_is_down_for_good() {
    let mut rack = Rack::new();
    rack.core.handle_register(0, Token(0), registration("node1", 5, 4));
    rack.act().unwrap();
    rack.core.handle_revoke(S, NOON_MS, Token(3), ("node1", false));
    let node1 = Caller::Node("node1".into());
    assert!(rack.core.revocations().covers(&node1, NOON_MS), "in force before it is recorded");
    let mut is_logged = false;
    while let Some(action) = rack.core.poll_action() {
        match action {
            Action::Store(changes) => {
                let record = |change| match change {
                    Change::PutRevocation(revocation) => Record::Revocation(revocation),
                    Change::PutNode(node) => Record::Node(node),
                    other => panic!("{other:?}"),
                };
                rack.records.extend(changes.into_iter().map(record));
            }
            Action::Note(Event::NodeRevoked { .. }) => is_logged = true,
            Action::Reply(_, Reply::Done(result)) => {
                assert!(is_logged, "the log entry precedes the answer");
                result.unwrap();
            }
            _ => {}
        }
    }
    assert_eq!(rack.core.node_rows(S)[0].state, "revoked");
    let again = Rack::recover(rack.records);
    assert!(again.core.revocations().covers(&node1, NOON_MS));
    assert!(!again.core.revocations().covers(&node1, NOON_MS + 1));

    rack = Rack::new();
    rack.core.handle_revoke(S, NOON_MS, Token(3), ("nobody", false));
    assert_eq!(rack.act(), Err(RackError::UnknownNode("nobody".into())));
    // Unless the administrator insists: its token may have been deleted long ago.
    rack.core.handle_revoke(S, NOON_MS, Token(3), ("nobody", true));
    rack.act().unwrap();
    assert!(rack.core.revocations().covers(&Caller::Node("nobody".into()), NOON_MS));
    rack.core.handle_revoke(S, NOON_MS, Token(3), ("a\nb", true));
    assert!(matches!(rack.act(), Err(RackError::BadRequest(_))));
}

#[test]
fn unbound_token_cannot_take_known_name() {
    let mut rack = Rack::new();
    rack.core.handle_register(0, Token(0), registration("node1", 5, 4));
    rack.act().unwrap();
    rack.core.handle_timeout(1000 * S);
    rack.act().unwrap();
    assert_eq!(rack.core.node_rows(1000 * S)[0].state, "down");
    let forbidden = |result: Result<(), RackError>| match result {
        Err(RackError::Forbidden(why)) => assert!(why.contains("venice token new --node"), "{why}"),
        other => panic!("{other:?}"),
    };
    rack.make(1, "");
    forbidden(rack.join(NOON_MS, (1, HASH), "node1"));
    // Also not one that has joined and not started yet.
    rack.join(NOON_MS, (1, HASH), "node2").unwrap();
    rack.make(2, "");
    forbidden(rack.join(NOON_MS, (2, HASH), "node2"));
    rack.make(3, "node1");
    rack.join(NOON_MS, (3, HASH), "node1").unwrap();

    rack.core.handle_revoke(S, NOON_MS, Token(3), ("node1", false));
    rack.act().unwrap();
    let mut again = Rack::recover(rack.records.clone());
    again.join(NOON_MS, (2, HASH), "node1").unwrap();
    // Its name is taken again once it has registered.
    rack.core.handle_register(1000 * S, Token(0), registration("node1", 6, 4));
    rack.act().unwrap();
    rack.core.handle_timeout(2000 * S);
    rack.act().unwrap();
    forbidden(rack.join(NOON_MS, (2, HASH), "node1"));
}

#[test]
fn tokens_are_deleted_with_their_node() {
    let mut rack = Rack::new();
    rack.make(1, "");
    rack.make(2, "node7");
    rack.core.handle_delete_token(NOON_MS, Token(4), 1);
    rack.act().unwrap();
    assert!(why(rack.join(NOON_MS, (1, HASH), "node1")).contains("unknown or expired join token"));
    rack.core.handle_delete_token(NOON_MS, Token(4), 1);
    assert!(matches!(rack.act(), Err(RackError::BadRequest(_))));
    // A token given out for a node must not admit anyone after the revocation of that node.
    rack.core.handle_revoke(S, NOON_MS, Token(3), ("node7", false));
    rack.act().unwrap();
    assert!(why(rack.join(NOON_MS, (2, HASH), "node7")).contains("unknown or expired join token"));
    assert!(rack.core.tokens(NOON_MS).is_empty());
}

#[test]
fn revocation_ends_with_its_certificates() {
    const DAY_MS: u64 = 86_400_000;
    const HOUR: u64 = 3600 * S;
    let mut rack = Rack::new();
    rack.core.handle_certificate_life(90 * DAY_MS);
    rack.core.handle_revoke(0, NOON_MS, Token(3), ("node1", true));
    rack.act().unwrap();
    // Later certificates have a shorter lifetime; earlier ones may still be in use.
    let mut rack = Rack::recover(rack.records);
    rack.core.handle_certificate_life(30 * DAY_MS);
    rack.act().unwrap();
    assert!(!rack.core.handle_wall_clock(0, NOON_MS + 90 * DAY_MS));
    assert!(!rack.core.handle_wall_clock(HOUR, NOON_MS + 90 * DAY_MS));
    // A clock that is ahead for a moment deletes nothing.
    assert!(!rack.core.handle_wall_clock(2 * HOUR, NOON_MS + 400 * DAY_MS));
    assert!(!rack.core.handle_wall_clock(2 * HOUR + S, NOON_MS + 400 * DAY_MS));
    assert!(!rack.core.handle_wall_clock(3 * HOUR, NOON_MS));
    assert!(!rack.core.handle_wall_clock(4 * HOUR, NOON_MS + 92 * DAY_MS));
    assert_eq!(rack.core.revocations().list().len(), 1);
    assert!(rack.core.handle_wall_clock(5 * HOUR, NOON_MS + 92 * DAY_MS));
    assert!(rack.core.revocations().list().is_empty());
    rack.act().unwrap();
    assert!(Rack::recover(rack.records).core.revocations().list().is_empty());
}

#[test]
fn revocations_are_sent_only_when_changed() {
    let mut rack = Rack::new();
    rack.core.handle_register(0, Token(0), registration("node1", 5, 4));
    rack.core.handle_revoke(0, NOON_MS, Token(3), ("node2", true));
    rack.act().unwrap();
    let mut heartbeat = |revoked_version| {
        let door = DoorReport { revoked_version, ..DoorReport::default() };
        rack.core
            .handle_heartbeat(S, HeartbeatReport { door, ..report_of_node1() })
            .unwrap()
            .revoked
    };
    let sent = heartbeat(0).expect("it has none");
    let known: Revocations = sent.known.into_iter().collect();
    assert!(known.until_ms("node2").is_some());
    assert_eq!(heartbeat(known.version()), None);
}

#[test]
fn lost_revocations_are_learnt_from_nodes() {
    let mut rack = Rack::new();
    let reported = |node: &str, until_ms| vec![Revocation::new(node, until_ms)];
    rack.make(1, "node7");
    // Up to that moment it may have signed for the node in ignorance.
    let until_ms = NOON_MS + 5000;
    assert!(rack.core.handle_reported_revocations(S, until_ms, reported("node7", NOON_MS)));
    rack.act().unwrap();
    assert_eq!(rack.core.revocations().until_ms("node7"), Some(until_ms));
    assert!(why(rack.join(NOON_MS, (1, HASH), "node7")).contains("unknown or expired join token"));
    assert!(!rack.core.handle_reported_revocations(S, until_ms + 1, reported("node7", NOON_MS)));
    assert!(Rack::recover(rack.records).core.revocations().until_ms("node7").is_some());

    // A node admitted by a token since then keeps its new certificate.
    let mut rack = Rack::new();
    rack.make(1, "node7");
    rack.join(NOON_MS, (1, HASH), "node7").unwrap();
    assert!(rack.core.handle_reported_revocations(S, until_ms, reported("node7", NOON_MS - 1000)));
    rack.act().unwrap();
    assert_eq!(rack.core.revocations().until_ms("node7"), Some(NOON_MS - 1000));
    // Until it is revoked again.
    rack.core.handle_revoke(S, NOON_MS, Token(3), ("node7", false));
    assert!(rack.core.handle_reported_revocations(S, until_ms, reported("node7", NOON_MS + 1)));
    assert_eq!(rack.core.revocations().until_ms("node7"), Some(until_ms));
}
