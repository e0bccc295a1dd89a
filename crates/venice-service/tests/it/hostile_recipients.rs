//! The connections of a host under recipients that send anything, without a process.

use std::collections::{BTreeMap, BTreeSet};

use venice_service::wire::{BatchKind, BatchWriter, Entry, Hello, Message};
use venice_service::{
    Answer, ConnectionId, HostConnections, Request, Service, ServiceLimits, ServiceSecret, Status,
    echo,
};
use venice_testkit::random::SplitMix64;
use venice_testkit::seeds;

use crate::common::SECRET;

/// Most connections of the connections under test.
const MAX_ADMITTED: usize = 3;

/// A recipient, as the test sees it.
#[derive(Default)]
struct Recipient {
    knows_secret: bool,
    is_admitted: bool,
    /// Requests sent in well-formed batches and not yet answered.
    outstanding: BTreeSet<u64>,
}

fn emit(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.emit(&mut bytes);
    bytes
}

fn hello(secret: ServiceSecret, service: &str) -> Vec<u8> {
    emit(&Message::Hello(Hello { version: 1, secret, service }))
}

/// Returns any message: sound, bent, or none.
fn message(random: &mut SplitMix64, recipient: &mut Recipient) -> Vec<u8> {
    match random.below(12) {
        0..2 => {
            recipient.knows_secret = true;
            hello(SECRET, "echo")
        }
        2 => hello(ServiceSecret::from_bytes([random.below(3) as u8; 32]), "echo"),
        3 => hello(SECRET, "ech"),
        4 => {
            let len = random.below(100) as usize;
            random.bytes(len)
        }
        kind => {
            let mut batch = BatchWriter::new(BatchKind::Requests, 4000);
            for _ in 0..1 + random.below(30) {
                let (id, len) = (random.below(50_000), random.below(80) as usize);
                let payload = random.bytes(len);
                if batch.push(Entry { id, code: echo::ECHO, payload: &payload }) {
                    recipient.outstanding.insert(id);
                }
            }
            let mut bytes = batch.message().to_vec();
            if kind == 11 {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            bytes
        }
    }
}

fn run(seed: u64) {
    let mut random = SplitMix64(seed);
    let mut connections = HostConnections::new(echo::Echo::default(), SECRET, MAX_ADMITTED);
    let mut recipients: BTreeMap<ConnectionId, Recipient> = BTreeMap::new();
    let (mut now_ns, mut next, mut answered) = (0, 0, 0);
    for _ in 0..600 {
        now_ns += random.below(2_000_000_000);
        if random.chance(300) {
            let id = ConnectionId(next);
            next += 1;
            recipients.insert(id, Recipient::default());
            connections.handle_connect(now_ns, id);
        }
        let ids: Vec<_> = recipients.keys().copied().collect();
        for id in ids {
            let recipient = recipients.get_mut(&id).unwrap();
            if random.chance(20) {
                connections.handle_disconnect(now_ns, id);
                recipients.remove(&id);
            } else if connections.wants_input(id) {
                let bytes = message(&mut random, recipient);
                connections.handle_message(now_ns, id, &bytes);
            }
        }
        connections.handle_timeout(now_ns);
        connections.collect_answers(now_ns);
        for (id, recipient) in &mut recipients {
            // Some do not read.
            while random.chance(800)
                && let Some(bytes) = connections.poll_message(*id)
            {
                match Message::parse(bytes).expect("a host sends sound messages") {
                    Message::Welcome(_) => {
                        assert!(recipient.knows_secret, "admitted without the secret");
                        recipient.is_admitted = true;
                    }
                    Message::Answers(batch) => {
                        assert!(recipient.is_admitted);
                        for answer in batch.entries() {
                            // One that was bent has another id.
                            answered += u64::from(recipient.outstanding.remove(&answer.id));
                        }
                    }
                    Message::Refused { .. } | Message::Closed(_) => {}
                    Message::Hello(_) | Message::Requests(_) => panic!("not from a host"),
                }
                connections.handle_sent(*id);
            }
        }
        while let Some(id) = connections.poll_closed() {
            recipients.remove(&id);
        }
        let admitted = recipients.values().filter(|recipient| recipient.is_admitted).count();
        assert!(admitted <= MAX_ADMITTED, "{admitted} connections");
    }
    let counts = connections.counts();
    assert!(counts.answers <= counts.requests && answered > 0, "{counts:?}");
    assert!(counts.wrong_secrets > 0 && counts.violations > 0, "{counts:?}");
    recipients.keys().for_each(|id| connections.handle_disconnect(now_ns, *id));
    connections.collect_answers(now_ns);
    assert!(connections.service().poll_timeout().is_none());
}

#[test]
fn any_recipient_is_survived() {
    seeds::seeds(200).for_each(run);
}

#[test]
fn silent_connections_are_closed() {
    let mut connections = HostConnections::new(echo::Echo::default(), SECRET, 1);
    connections.handle_connect(0, ConnectionId(0));
    let due_ns = connections.poll_timeout().unwrap();
    connections.handle_timeout(due_ns - 1);
    assert!(connections.poll_message(ConnectionId(0)).is_none());
    connections.handle_timeout(due_ns);
    assert!(connections.poll_message(ConnectionId(0)).is_some());
    connections.handle_sent(ConnectionId(0));
    assert_eq!(connections.poll_closed(), Some(ConnectionId(0)));
}

#[test]
fn unread_goodbye_ends_in_time() {
    let mut connections = HostConnections::new(echo::Echo::default(), SECRET, 1);
    connections.handle_connect(0, ConnectionId(0));
    connections.handle_message(0, ConnectionId(0), b"nonsense");
    // Its last message finds no room.
    assert!(connections.poll_message(ConnectionId(0)).is_some());
    let due_ns = connections.poll_timeout().unwrap();
    connections.handle_timeout(due_ns);
    assert_eq!(connections.poll_closed(), Some(ConnectionId(0)));
    assert_eq!(connections.poll_timeout(), None);
}

#[test]
fn strangers_are_bounded() {
    let mut connections = HostConnections::new(echo::Echo::default(), SECRET, 1);
    (0..100).for_each(|id| connections.handle_connect(0, ConnectionId(id)));
    let closed: Vec<_> = std::iter::from_fn(|| connections.poll_closed()).collect();
    assert_eq!(closed, (0..84).map(ConnectionId).collect::<Vec<_>>());
}

#[test]
fn newest_stranger_is_heard() {
    let mut connections = HostConnections::new(echo::Echo::default(), SECRET, 1);
    let wrong = hello(ServiceSecret::from_bytes([9; 32]), "echo");
    for id in (0..100).map(ConnectionId) {
        connections.handle_connect(0, id);
        // Silent ones, and refused ones that do not read.
        if id.0 % 2 == 0 {
            connections.handle_message(0, id, &wrong);
        }
    }
    let closed = std::iter::from_fn(|| connections.poll_closed()).count();
    assert_eq!(closed, 84);
    let id = ConnectionId(100);
    connections.handle_connect(0, id);
    connections.handle_message(0, id, &hello(SECRET, "echo"));
    let welcome = connections.poll_message(id).map(Message::parse);
    assert!(matches!(welcome, Some(Ok(Message::Welcome(_)))), "{welcome:?}");
    // Further strangers do not touch an admitted connection.
    (101..200).for_each(|id| connections.handle_connect(0, ConnectionId(id)));
    assert!(std::iter::from_fn(|| connections.poll_closed()).all(|closed| closed != id));
}

/// A service that answers twice, answers what nobody asked, and answers at too great a length.
struct Babbler(Vec<Answer>);

impl Service for Babbler {
    fn name(&self) -> &'static str {
        "babbler"
    }

    fn limits(&self) -> ServiceLimits {
        ServiceLimits { max_request_bytes: 10, max_answer_bytes: 10, max_outstanding: 10 }
    }

    fn handle_request(&mut self, _now_ns: u64, request: Request<'_>) {
        let Request { connection, id, .. } = request;
        for (connection, id) in
            [(connection, id), (connection, id), (connection, id + 1), (ConnectionId(9), id)]
        {
            self.0.push(Answer { connection, id, status: Status::OK });
        }
    }

    fn poll_answer(&mut self, _now_ns: u64, payload: &mut Vec<u8>) -> Option<Answer> {
        payload.extend_from_slice(&[0; 11]);
        self.0.pop()
    }
}

#[test]
fn stray_answers_are_dropped() {
    let mut connections = HostConnections::new(Babbler(Vec::new()), SECRET, 1);
    let id = ConnectionId(0);
    connections.handle_connect(0, id);
    connections.handle_message(0, id, &hello(SECRET, "babbler"));
    assert!(matches!(
        Message::parse(connections.poll_message(id).unwrap()),
        Ok(Message::Welcome(_))
    ));
    connections.handle_sent(id);
    let mut batch = BatchWriter::new(BatchKind::Requests, 100);
    assert!(batch.push(Entry { id: 5, code: 0, payload: b"" }));
    connections.handle_message(0, id, batch.message());
    connections.collect_answers(0);
    let Ok(Message::Answers(answers)) = Message::parse(connections.poll_message(id).unwrap())
    else {
        panic!("no answers");
    };
    let answers: Vec<_> = answers.entries().collect();
    assert_eq!(answers, [Entry { id: 5, code: Status::ANSWER_TOO_LONG.0, payload: b"" }]);
}
