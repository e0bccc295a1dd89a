//! Who may become a node, and who is turned out, as the Monitor Node decides it.

use crate::common::{OneTwoThree, S, registration, settings};
use venice_rack::caller::Caller;
use venice_rack::door::DoorReport;
use venice_rack::monitor::{Action, Change, Event, JoinTokenRecord, MonitorCore, Record, Token};
use venice_rack::pressure::PressureReport;
use venice_rack::revocation::{Revocation, Revocations};
use venice_rack::types::{
    DonorReport, DonorStatus, HeartbeatReport, Identity, PortReport, RackError,
};
use venice_wire::NodeId;

/// The time of day at which it begins, in milliseconds since 1970.
const NOON_MS: u64 = 1_800_000_000_000;
const HASH: [u8; 32] = [7; 32];

/// A Monitor Node and what it has had recorded.
struct Rack {
    core: MonitorCore,
    records: Vec<Record>,
}

impl Rack {
    fn new() -> Rack {
        Rack::recover(Vec::new())
    }

    fn recover(records: Vec<Record>) -> Rack {
        let core = MonitorCore::recover(settings(), Box::new(OneTwoThree(0)), 0, records.clone());
        Rack { core, records }
    }

    /// Does all that is to be done; what it answered last, and whether that came after all that has
    /// to be durable by then.
    fn act(&mut self) -> Result<(), RackError> {
        let mut answer = None;
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Store(changes) => {
                    assert!(answer.is_none(), "answered before it was durable");
                    changes.into_iter().for_each(|change| self.record(change));
                }
                Action::ReplyDone { result, .. } => answer = Some(result),
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
fn a_token_lets_in_one_machine_once() {
    let mut rack = Rack::new();
    rack.make(1, "");
    assert!(why(rack.join(NOON_MS, (1, [8; 32]), "node1")).contains("no such join token"));
    assert!(why(rack.join(NOON_MS, (2, HASH), "node1")).contains("no such join token"));
    rack.join(NOON_MS, (1, HASH), "node1").unwrap();
    assert!(why(rack.join(NOON_MS, (1, HASH), "node2")).contains("used before, by node1"));
    // Nor after a restart of the Monitor Node.
    let mut again = Rack::recover(rack.records);
    assert!(why(again.join(NOON_MS, (1, HASH), "node2")).contains("used before, by node1"));
}

#[test]
fn who_has_not_heard_the_answer_is_answered_again_while_the_token_lasts() {
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
    assert!(bad(late).contains("no such join token"));
    rack.core.handle_revoke(S, NOON_MS, Token(3), ("node1", false));
    rack.act().unwrap();
    let turned_out = rack.join_with(NOON_MS, (1, HASH), ("node1", [5; 32]));
    assert!(bad(turned_out).contains("no such join token"));
}

#[test]
fn a_token_ends_and_may_be_for_one_name() {
    let mut rack = Rack::new();
    rack.make(1, "");
    assert!(why(rack.join(NOON_MS + 1000, (1, HASH), "node1")).contains("no such join token"));
    assert!(rack.core.tokens(NOON_MS + 1000).is_empty());
    rack.make(2, "node7");
    assert!(why(rack.join(NOON_MS, (2, HASH), "node8")).contains("lets in node7 and not node8"));
    rack.join(NOON_MS, (2, HASH), "node7").unwrap();
}

#[test]
fn nobody_joins_under_the_name_of_a_node_that_lives() {
    let mut rack = Rack::new();
    rack.core.handle_register(0, Token(0), registration("node1", 5, 4));
    rack.act().unwrap();
    rack.make(1, "");
    let result = rack.join(NOON_MS, (1, HASH), "node1");
    assert!(matches!(result, Err(RackError::NameTaken { .. })), "{result:?}");
    // The token is good for another name still.
    rack.join(NOON_MS, (1, HASH), "node2").unwrap();
    for name in ["", "a\nb", &"x".repeat(256)] {
        let result = rack.join(NOON_MS, (1, HASH), name);
        assert!(matches!(result, Err(RackError::BadRequest(_))), "{name:?}: {result:?}");
    }
}

#[test]
fn a_node_turned_out_is_down_at_once_and_out_for_good() {
    let mut rack = Rack::new();
    rack.core.handle_register(0, Token(0), registration("node1", 5, 4));
    rack.act().unwrap();
    rack.core.handle_revoke(S, NOON_MS, Token(3), ("node1", false));
    let node1 = Caller::Node("node1".into());
    assert!(rack.core.revocations().covers(&node1, NOON_MS), "in force before it is written");
    let mut told = false;
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
            Action::Note(Event::NodeRevoked { .. }) => told = true,
            Action::ReplyDone { result, .. } => {
                assert!(told, "it is in the log before it is called done");
                result.unwrap();
            }
            _ => {}
        }
    }
    assert_eq!(rack.core.node_rows(S)[0].state, "down");
    let again = Rack::recover(rack.records);
    assert!(again.core.revocations().covers(&node1, NOON_MS));
    assert!(!again.core.revocations().covers(&node1, NOON_MS + 1));

    rack = Rack::new();
    rack.core.handle_revoke(S, NOON_MS, Token(3), ("nobody", false));
    assert_eq!(rack.act(), Err(RackError::UnknownNode("nobody".into())));
    // Unless one insists: its token may have been forgotten long ago.
    rack.core.handle_revoke(S, NOON_MS, Token(3), ("nobody", true));
    rack.act().unwrap();
    assert!(rack.core.revocations().covers(&Caller::Node("nobody".into()), NOON_MS));
    rack.core.handle_revoke(S, NOON_MS, Token(3), ("a\nb", true));
    assert!(matches!(rack.act(), Err(RackError::BadRequest(_))));
}

#[test]
fn a_token_for_a_new_machine_does_not_take_over_a_node_that_is_down() {
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
    // Nor one that has joined and not started yet.
    rack.join(NOON_MS, (1, HASH), "node2").unwrap();
    rack.make(2, "");
    forbidden(rack.join(NOON_MS, (2, HASH), "node2"));
    rack.make(3, "node1");
    rack.join(NOON_MS, (3, HASH), "node1").unwrap();

    rack.core.handle_revoke(S, NOON_MS, Token(3), ("node1", false));
    rack.act().unwrap();
    let mut again = Rack::recover(rack.records.clone());
    again.join(NOON_MS, (2, HASH), "node1").unwrap();
    // Its name is taken again when it has registered.
    rack.core.handle_register(1000 * S, Token(0), registration("node1", 6, 4));
    rack.act().unwrap();
    rack.core.handle_timeout(2000 * S);
    rack.act().unwrap();
    forbidden(rack.join(NOON_MS, (2, HASH), "node1"));
}

#[test]
fn tokens_are_taken_back_one_by_one_and_with_their_node() {
    let mut rack = Rack::new();
    rack.make(1, "");
    rack.make(2, "node7");
    rack.core.handle_delete_token(NOON_MS, Token(4), 1);
    rack.act().unwrap();
    assert!(why(rack.join(NOON_MS, (1, HASH), "node1")).contains("no such join token"));
    rack.core.handle_delete_token(NOON_MS, Token(4), 1);
    assert!(matches!(rack.act(), Err(RackError::BadRequest(_))));
    // Whoever was given one for a node is not to come in as it when it was turned out.
    rack.core.handle_revoke(S, NOON_MS, Token(3), ("node7", false));
    rack.act().unwrap();
    assert!(why(rack.join(NOON_MS, (2, HASH), "node7")).contains("no such join token"));
    assert!(rack.core.tokens(NOON_MS).is_empty());
}

#[test]
fn a_revocation_is_forgotten_when_all_that_it_voids_has_ended() {
    const DAY_MS: u64 = 86_400_000;
    const HOUR: u64 = 3600 * S;
    let mut rack = Rack::new();
    rack.core.handle_certificate_life(90 * DAY_MS);
    rack.core.handle_revoke(0, NOON_MS, Token(3), ("node1", true));
    rack.act().unwrap();
    // Certificates are made for less later on; those of before may be about still.
    let mut rack = Rack::recover(rack.records);
    rack.core.handle_certificate_life(30 * DAY_MS);
    rack.act().unwrap();
    assert!(!rack.core.handle_wall_clock(0, NOON_MS + 90 * DAY_MS));
    assert!(!rack.core.handle_wall_clock(HOUR, NOON_MS + 90 * DAY_MS));
    // A clock that is ahead for a moment forgets nothing.
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
fn an_agent_hears_of_revocations_only_when_they_are_others_than_it_has() {
    let mut rack = Rack::new();
    rack.core.handle_register(0, Token(0), registration("node1", 5, 4));
    rack.core.handle_revoke(0, NOON_MS, Token(3), ("node2", true));
    rack.act().unwrap();
    let mut beat = |revoked_version| {
        let door = DoorReport { revoked_version, ..DoorReport::default() };
        let identity = Identity { node: NodeId(1), epoch: 1 };
        let memory = DonorReport {
            status: DonorStatus { total_slabs: 4, free_slabs: 4, revision: 1 },
            held: vec![],
            devices: vec![],
        };
        let report = HeartbeatReport {
            peers_version: 0,
            identity,
            instance: 5,
            memory,
            links: vec![],
            port: PortReport::default(),
            pressure: PressureReport::default(),
            door,
        };
        rack.core.handle_heartbeat(S, report).unwrap().revoked
    };
    let told = beat(0).expect("it has none");
    let known: Revocations = told.known.into_iter().collect();
    assert!(known.until_ms("node2").is_some());
    assert_eq!(beat(known.version()), None);
}

#[test]
fn a_monitor_node_that_has_lost_revocations_learns_them_from_nodes() {
    let mut rack = Rack::new();
    let told = |node: &str, until_ms| vec![Revocation::new(node, until_ms)];
    rack.make(1, "node7");
    // Up to that moment it may have signed for the node without knowing.
    let until_ms = NOON_MS + 5000;
    assert!(rack.core.handle_revocations_told(S, until_ms, told("node7", NOON_MS)));
    rack.act().unwrap();
    assert_eq!(rack.core.revocations().until_ms("node7"), Some(until_ms));
    assert!(why(rack.join(NOON_MS, (1, HASH), "node7")).contains("no such join token"));
    assert!(!rack.core.handle_revocations_told(S, until_ms + 1, told("node7", NOON_MS)));
    assert!(Rack::recover(rack.records).core.revocations().until_ms("node7").is_some());

    // Whom a token has let in since keeps its new certificate.
    let mut rack = Rack::new();
    rack.make(1, "node7");
    rack.join(NOON_MS, (1, HASH), "node7").unwrap();
    assert!(rack.core.handle_revocations_told(S, until_ms, told("node7", NOON_MS - 1000)));
    rack.act().unwrap();
    assert_eq!(rack.core.revocations().until_ms("node7"), Some(NOON_MS - 1000));
    // Until it is turned out again.
    rack.core.handle_revoke(S, NOON_MS, Token(3), ("node7", false));
    assert!(rack.core.handle_revocations_told(S, until_ms, told("node7", NOON_MS + 1)));
    assert_eq!(rack.core.revocations().until_ms("node7"), Some(until_ms));
}
