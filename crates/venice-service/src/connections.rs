//! Connections of one host: hello, requests, answers. A state machine without I/O between a service
//! and what carries messages.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::secret::ServiceSecret;
use crate::service::{ConnectionId, Request, Service, Status};
use crate::usage::ServiceUsage;
use crate::wire::{
    Batch, BatchKind, BatchWriter, CloseCode, Entry, Hello, MAX_MESSAGE_BYTES, MAX_PAYLOAD_BYTES,
    Message, VERSION, Welcome,
};

/// Time for a hello after the connection, in nanoseconds.
const HELLO_NS: u64 = 10_000_000_000;
/// Time for the last message of a connection that is to be closed, in nanoseconds.
const CLOSE_NS: u64 = 1_000_000_000;
/// Connections at a time that are not admitted.
pub(crate) const MAX_STRANGERS: usize = 16;

/// Numbers of what happened, for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// Connections admitted.
    pub admitted: u64,
    /// Hellos with a wrong secret.
    pub wrong_secrets: u64,
    /// Hellos refused for another reason.
    pub refused: u64,
    /// Connections closed because of what the recipient sent.
    pub violations: u64,
    /// Requests taken.
    pub requests: u64,
    /// Answers sent.
    pub answers: u64,
    /// Bytes of the requests taken.
    pub request_bytes: u64,
    /// Bytes of the answers sent.
    pub answer_bytes: u64,
}

/// All connections of a host, with its service.
#[derive(Debug)]
pub struct HostConnections<S> {
    service: S,
    secret: ServiceSecret,
    max_admitted: usize,
    connections: BTreeMap<ConnectionId, Connection>,
    /// Connections to close once their last message is sent.
    closed: VecDeque<ConnectionId>,
    counts: ConnectionCounts,
    scratch: Vec<u8>,
}

#[derive(Debug)]
struct Connection {
    state: State,
    /// Messages to send, oldest first; the last one may still take answers.
    messages: VecDeque<Vec<u8>>,
    batch: BatchWriter,
}

#[derive(Debug)]
enum State {
    /// Waits for the hello until then.
    Waiting { until_ns: u64 },
    /// Admitted, with the ids of outstanding requests.
    Admitted { outstanding: BTreeSet<u64> },
    /// Takes nothing more, and is closed once its messages are sent, or then.
    Closing { until_ns: u64 },
}

impl<S: Service> HostConnections<S> {
    /// Makes the connections of a service whose recipient shows `secret`, with at most `max_admitted`
    /// connections at a time.
    pub fn new(service: S, secret: ServiceSecret, max_admitted: usize) -> Self {
        Self {
            service,
            secret,
            max_admitted,
            connections: BTreeMap::new(),
            closed: VecDeque::new(),
            counts: ConnectionCounts::default(),
            scratch: Vec::new(),
        }
    }

    /// Returns the service.
    pub fn service(&self) -> &S {
        &self.service
    }

    /// Returns the counts.
    pub fn counts(&self) -> ConnectionCounts {
        self.counts
    }

    /// Returns the usage of the service, the bytes of messages included.
    pub fn usage(&self, now_ns: u64) -> ServiceUsage {
        let ConnectionCounts { requests, request_bytes, answer_bytes, .. } = self.counts;
        match self.service.usage(now_ns) {
            Some(usage) => ServiceUsage {
                in_bytes: usage.in_bytes.map(|bytes| bytes.saturating_add(request_bytes)),
                out_bytes: usage.out_bytes.map(|bytes| bytes.saturating_add(answer_bytes)),
                ..usage
            },
            None => ServiceUsage {
                busy_ns: None,
                in_bytes: Some(request_bytes),
                out_bytes: Some(answer_bytes),
                commands: requests,
            },
        }
    }

    /// Takes a new connection. One that is there already stays as it is. Beyond 16 connections that
    /// are not admitted, the one whose time ends first is closed: silent ones keep no recipient out.
    pub fn handle_connect(&mut self, now_ns: u64, id: ConnectionId) {
        if self.connections.contains_key(&id) {
            return;
        }
        let strangers = || {
            let due = |(id, connection): (&ConnectionId, &Connection)| {
                connection.due_ns().map(|due_ns| (due_ns, *id))
            };
            self.connections.iter().filter_map(due)
        };
        if strangers().count() >= MAX_STRANGERS
            && let Some((_, first)) = strangers().min()
        {
            self.connections.remove(&first);
            self.closed.push_back(first);
        }
        let connection = Connection {
            state: State::Waiting { until_ns: now_ns.saturating_add(HELLO_NS) },
            messages: VecDeque::new(),
            batch: BatchWriter::new(BatchKind::Answers, MAX_MESSAGE_BYTES),
        };
        self.connections.insert(id, connection);
    }

    /// Takes a message of a connection.
    pub fn handle_message(&mut self, now_ns: u64, id: ConnectionId, bytes: &[u8]) {
        let Some(connection) = self.connections.get(&id) else { return };
        let message = Message::parse(bytes);
        match (&connection.state, message) {
            (State::Closing { .. }, _) => {}
            (State::Waiting { .. }, Ok(Message::Hello(hello))) => {
                self.handle_hello(now_ns, id, hello);
            }
            (State::Admitted { .. }, Ok(Message::Requests(batch))) => {
                self.handle_requests(now_ns, id, batch);
            }
            (State::Waiting { .. } | State::Admitted { .. }, _) => {
                self.close(now_ns, id, CloseCode::Protocol);
            }
        }
    }

    fn handle_hello(&mut self, now_ns: u64, id: ConnectionId, hello: Hello<'_>) {
        let admitted =
            |connection: &&Connection| matches!(connection.state, State::Admitted { .. });
        let is_full =
            self.connections.values().filter(admitted).count() >= self.max_admitted.max(1);
        // Only a recipient that knows the secret learns what is served here.
        let refused = if hello.version != VERSION {
            Some(CloseCode::Version)
        } else if !self.secret.matches(hello.secret.as_bytes()) {
            Some(CloseCode::Secret)
        } else if !self.service.serves(hello.service) {
            Some(CloseCode::Service)
        } else if is_full {
            Some(CloseCode::Full)
        } else {
            None
        };
        let connection = self.connections.get_mut(&id).expect("looked up by the caller");
        if let Some(code) = refused {
            match code {
                CloseCode::Secret => self.counts.wrong_secrets += 1,
                CloseCode::Version
                | CloseCode::Service
                | CloseCode::Full
                | CloseCode::Protocol
                | CloseCode::Outstanding
                | CloseCode::DuplicateId
                | CloseCode::TooLong
                | CloseCode::Silent => self.counts.refused += 1,
            }
            connection.state = State::Closing { until_ns: now_ns.saturating_add(CLOSE_NS) };
            connection.push(Message::Refused { code, version: VERSION });
            return;
        }
        self.counts.admitted += 1;
        let limits = self.service.limits();
        connection.state = State::Admitted { outstanding: BTreeSet::new() };
        connection.push(Message::Welcome(Welcome {
            version: VERSION,
            max_request_bytes: limits.max_request_bytes,
            max_answer_bytes: limits.max_answer_bytes,
            max_outstanding: limits.max_outstanding,
            max_message_bytes: MAX_MESSAGE_BYTES as u32,
        }));
        self.service.handle_connect_to(now_ns, id, hello.service);
    }

    fn handle_requests(&mut self, now_ns: u64, id: ConnectionId, batch: Batch<'_>) {
        let limits = self.service.limits();
        for Entry { id: request, code: opcode, payload } in batch.entries() {
            let connection = self.connections.get_mut(&id).expect("closed only below");
            let State::Admitted { outstanding } = &mut connection.state else { return };
            let refused = if payload.len() > limits.max_request_bytes as usize {
                Some(CloseCode::TooLong)
            } else if outstanding.len() >= limits.max_outstanding.max(1) as usize {
                Some(CloseCode::Outstanding)
            } else if !outstanding.insert(request) {
                Some(CloseCode::DuplicateId)
            } else {
                None
            };
            if let Some(code) = refused {
                return self.close(now_ns, id, code);
            }
            self.counts.requests += 1;
            self.counts.request_bytes += payload.len() as u64;
            let request = Request { connection: id, id: request, opcode, payload };
            self.service.handle_request(now_ns, request);
        }
    }

    /// Tells the recipient why, and closes the connection.
    fn close(&mut self, now_ns: u64, id: ConnectionId, code: CloseCode) {
        self.counts.violations += 1;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let was_admitted = matches!(connection.state, State::Admitted { .. });
        connection.state = State::Closing { until_ns: now_ns.saturating_add(CLOSE_NS) };
        connection.messages.clear();
        connection.batch.clear();
        connection.push(Message::Closed(code));
        if was_admitted {
            self.service.handle_disconnect(now_ns, id);
        }
    }

    /// Forgets a connection: what carried its messages is gone.
    pub fn handle_disconnect(&mut self, now_ns: u64, id: ConnectionId) {
        let Some(connection) = self.connections.remove(&id) else { return };
        if matches!(connection.state, State::Admitted { .. }) {
            self.service.handle_disconnect(now_ns, id);
        }
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.service.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            self.service.handle_timeout(now_ns);
        }
        let due = |(id, connection): (&ConnectionId, &Connection)| {
            connection.due_ns().is_some_and(|at_ns| at_ns <= now_ns).then_some(*id)
        };
        let due: Vec<_> = self.connections.iter().filter_map(due).collect();
        for id in due {
            if matches!(self.connections[&id].state, State::Closing { .. }) {
                self.connections.remove(&id);
                self.closed.push_back(id);
            } else {
                self.close(now_ns, id, CloseCode::Silent);
            }
        }
    }

    /// Lets the service take in what its device brought.
    pub fn handle_wake(&mut self, now_ns: u64) {
        self.service.handle_wake(now_ns);
    }

    /// Takes the answers that are ready into messages of their connections.
    pub fn collect_answers(&mut self, now_ns: u64) {
        let most = (self.service.limits().max_answer_bytes as usize).min(MAX_PAYLOAD_BYTES);
        loop {
            self.scratch.clear();
            let Some(answer) = self.service.poll_answer(now_ns, &mut self.scratch) else { return };
            let Some(connection) = self.connections.get_mut(&answer.connection) else { continue };
            let State::Admitted { outstanding } = &mut connection.state else { continue };
            if !outstanding.remove(&answer.id) {
                continue;
            }
            self.counts.answers += 1;
            let (status, payload) = if self.scratch.len() > most {
                (Status::ANSWER_TOO_LONG, &[][..])
            } else {
                (answer.status, &self.scratch[..])
            };
            self.counts.answer_bytes += payload.len() as u64;
            connection.answer(Entry { id: answer.id, code: status.0, payload });
        }
    }

    /// True if messages of a connection are to be received now: not while one to it waits to be
    /// sent, which bounds what a recipient that does not read can make the host keep.
    pub fn wants_input(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(|connection| {
            !matches!(connection.state, State::Closing { .. }) && connection.messages.is_empty()
        })
    }

    /// Returns the next message to a connection; call [`HostConnections::handle_sent`] once it is sent.
    pub fn poll_message(&mut self, id: ConnectionId) -> Option<&[u8]> {
        let connection = self.connections.get_mut(&id)?;
        connection.finish_batch();
        connection.messages.front().map(Vec::as_slice)
    }

    /// Removes the message that [`HostConnections::poll_message`] returned.
    pub fn handle_sent(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.messages.pop_front();
        if connection.messages.is_empty() && matches!(connection.state, State::Closing { .. }) {
            self.connections.remove(&id);
            self.closed.push_back(id);
        }
    }

    /// Returns the next connection to close.
    pub fn poll_closed(&mut self) -> Option<ConnectionId> {
        self.closed.pop_front()
    }

    /// Returns the time at which [`HostConnections::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<u64> {
        let of_connections = self.connections.values().filter_map(Connection::due_ns);
        of_connections.chain(self.service.poll_timeout()).min()
    }
}

impl Connection {
    fn due_ns(&self) -> Option<u64> {
        match self.state {
            State::Waiting { until_ns } | State::Closing { until_ns } => Some(until_ns),
            State::Admitted { .. } => None,
        }
    }

    fn push(&mut self, message: Message<'_>) {
        let mut bytes = Vec::new();
        message.emit(&mut bytes);
        self.messages.push_back(bytes);
    }

    fn answer(&mut self, entry: Entry<'_>) {
        if self.batch.push(entry) {
            return;
        }
        self.finish_batch();
        assert!(self.batch.push(entry), "an answer within the limits fits an empty batch");
    }

    fn finish_batch(&mut self) {
        if !self.batch.is_empty() {
            self.messages.push_back(self.batch.message().to_vec());
            self.batch.clear();
        }
    }
}
