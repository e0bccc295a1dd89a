//! Trait of a service: what a host serves, as a state machine without I/O.

use std::os::fd::BorrowedFd;

use crate::usage::ServiceUsage;

/// Connection of a recipient; never reused in one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Upper limits of a service, which hosts tell recipients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceLimits {
    /// Longest payload of a request in bytes, at most [`crate::wire::MAX_PAYLOAD_BYTES`].
    pub max_request_bytes: u32,
    /// Longest payload of an answer in bytes, at most [`crate::wire::MAX_PAYLOAD_BYTES`].
    pub max_answer_bytes: u32,
    /// Requests of one connection that may be outstanding; at least 1.
    pub max_outstanding: u32,
}

/// A request, valid during the call.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Connection that it came by.
    pub connection: ConnectionId,
    /// Number that the recipient chose; unique among the connection's outstanding ones.
    pub id: u64,
    /// Operation, in the service's own numbers.
    pub opcode: u16,
    /// Bytes for the service, never more than its limit.
    pub payload: &'a [u8],
}

/// Head of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Connection of the request.
    pub connection: ConnectionId,
    /// Number of the request.
    pub id: u64,
    /// Outcome.
    pub status: Status,
}

/// Outcome of a request. Numbers from 256 on are the service's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Status(pub u16);

impl Status {
    /// Done.
    pub const OK: Self = Self(0);
    /// An opcode that the service does not have.
    pub const UNKNOWN_OPCODE: Self = Self(1);
    /// A payload that is malformed.
    pub const MALFORMED: Self = Self(2);
    /// The device cannot do it now.
    pub const BUSY: Self = Self(3);
    /// The device failed.
    pub const DEVICE_FAILED: Self = Self(4);
    /// An answer longer than the limit: a fault of the service.
    pub const ANSWER_TOO_LONG: Self = Self(5);

    /// First number that a service may give a meaning of its own.
    pub const FIRST_OF_SERVICE: u16 = 256;
}

/// A service: one file. Requests and the time go in by `handle_*`, answers and deadlines come out by
/// `poll_*`. The host process drives it with the real time, a twin with a virtual one.
///
/// A service answers each request exactly once, in any order. The answer of a connection that is
/// gone is dropped. What waits for a device or a kernel waits behind [`Service::wake_fd`], never in
/// a call.
pub trait Service {
    /// Returns the name that recipients ask for: lower case, at most 32 bytes.
    fn name(&self) -> &'static str;

    /// True if recipients may ask for this name: that of the service, or of another one that it has
    /// beside its own.
    fn serves(&self, name: &str) -> bool {
        name == self.name()
    }

    /// Returns the upper limits; the same at each call.
    fn limits(&self) -> ServiceLimits;

    /// Begins to serve a connection.
    fn handle_connect(&mut self, _now_ns: u64, _connection: ConnectionId) {}

    /// Begins to serve a connection that asked for `name`.
    fn handle_connect_to(&mut self, now_ns: u64, connection: ConnectionId, _name: &str) {
        self.handle_connect(now_ns, connection);
    }

    /// Takes a request.
    fn handle_request(&mut self, now_ns: u64, request: Request<'_>);

    /// Frees what a connection used: it is gone.
    fn handle_disconnect(&mut self, _now_ns: u64, _connection: ConnectionId) {}

    /// Does what is due.
    fn handle_timeout(&mut self, _now_ns: u64) {}

    /// Takes in what the device brought, after [`Service::wake_fd`] was readable.
    fn handle_wake(&mut self, _now_ns: u64) {}

    /// Returns the next answer and appends its payload to `payload`, which is empty.
    fn poll_answer(&mut self, now_ns: u64, payload: &mut Vec<u8>) -> Option<Answer>;

    /// Returns the time at which [`Service::handle_timeout`] is due.
    fn poll_timeout(&self) -> Option<u64> {
        None
    }

    /// Returns a descriptor that is readable when the device has brought something.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns the counters of what the service did so far, without the bytes of messages: the host
    /// adds those. `None`: the requests are its commands, and nothing else is known. Called some
    /// times a second.
    fn usage(&self, _now_ns: u64) -> Option<ServiceUsage> {
        None
    }
}

impl<S: Service + ?Sized> Service for Box<S> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn serves(&self, name: &str) -> bool {
        (**self).serves(name)
    }

    fn limits(&self) -> ServiceLimits {
        (**self).limits()
    }

    fn handle_connect_to(&mut self, now_ns: u64, connection: ConnectionId, name: &str) {
        (**self).handle_connect_to(now_ns, connection, name);
    }

    fn handle_connect(&mut self, now_ns: u64, connection: ConnectionId) {
        (**self).handle_connect(now_ns, connection);
    }

    fn handle_request(&mut self, now_ns: u64, request: Request<'_>) {
        (**self).handle_request(now_ns, request);
    }

    fn handle_disconnect(&mut self, now_ns: u64, connection: ConnectionId) {
        (**self).handle_disconnect(now_ns, connection);
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        (**self).handle_timeout(now_ns);
    }

    fn handle_wake(&mut self, now_ns: u64) {
        (**self).handle_wake(now_ns);
    }

    fn poll_answer(&mut self, now_ns: u64, payload: &mut Vec<u8>) -> Option<Answer> {
        (**self).poll_answer(now_ns, payload)
    }

    fn poll_timeout(&self) -> Option<u64> {
        (**self).poll_timeout()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).wake_fd()
    }

    fn usage(&self, now_ns: u64) -> Option<ServiceUsage> {
        (**self).usage(now_ns)
    }
}
