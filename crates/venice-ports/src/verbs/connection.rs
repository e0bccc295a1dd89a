//! One recipient's connection at the donor: it receives the request, sends the answer, and then
//! stays open as long as the grant is used.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;
use venice_wire::GrantId;

use super::keep_alive::enable_keep_alive;
use super::queue::QueuePair;
use super::set_up::{HELLO_LEN, Hello, REVOKED, Welcome};

/// Longest time of a connection without a request, in nanoseconds; it is then closed.
const REQUEST_TIMEOUT_NS: u64 = 5_000_000_000;
/// Time for which a revoked recipient's queue pair is kept, in nanoseconds: outstanding requests
/// are refused with a reason rather than lost.
const REFUSAL_PERIOD_NS: u64 = 1_000_000_000;

/// Connection of one recipient; see the module.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// Received part of the request.
    hello: [u8; HELLO_LEN],
    hello_len: usize,
    /// Answer of which a part is still to be sent.
    answer: Vec<u8>,
    sent: usize,
    admitted: Option<(GrantId, QueuePair)>,
    /// Time of its close at the latest, in nanoseconds.
    closes_ns: Option<u64>,
    closed: bool,
}

impl Connection {
    /// Makes a connection; `None` if the stream has failed already.
    pub(super) fn new(stream: TcpStream, now_ns: u64) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        enable_keep_alive(&stream);
        Some(Self {
            stream,
            hello: [0; HELLO_LEN],
            hello_len: 0,
            answer: Vec::new(),
            sent: 0,
            admitted: None,
            closes_ns: Some(now_ns + REQUEST_TIMEOUT_NS),
            closed: false,
        })
    }

    /// Returns its grant, once it was admitted.
    pub(super) fn grant(&self) -> Option<GrantId> {
        self.admitted.as_ref().map(|(grant, _)| *grant)
    }

    /// Returns the events to poll it for.
    pub(super) fn wants(&self) -> PollFlags {
        match self.sent < self.answer.len() {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        }
    }

    pub(super) fn is_over(&self, now_ns: u64) -> bool {
        self.closed || self.closes_ns.is_some_and(|at_ns| at_ns <= now_ns)
    }

    /// Reads and writes as much as possible; `admit` decides about its request.
    pub(super) fn serve(
        &mut self,
        admit: impl FnOnce(&Hello, IpAddr) -> Result<(Vec<u8>, QueuePair), String>,
    ) {
        if self.read() {
            self.decide(admit);
        }
        self.write();
    }

    /// Tells the recipient that the grant was revoked, and closes a little later.
    pub(super) fn revoke(&mut self, now_ns: u64) {
        self.answer.push(REVOKED);
        self.closes_ns = Some(now_ns + REFUSAL_PERIOD_NS);
        self.write();
    }

    /// Reads the request; returns true once, when it is complete.
    fn read(&mut self) -> bool {
        let mut more = [0; 64];
        loop {
            let missing = HELLO_LEN - self.hello_len;
            // A recipient sends nothing after its request: further bytes are dropped.
            let into = match missing {
                0 => &mut more[..],
                _ => &mut self.hello[self.hello_len..],
            };
            match self.stream.read(into) {
                Ok(0) => {
                    self.closed = true;
                    return false;
                }
                Ok(_) if missing == 0 => {}
                Ok(len) => {
                    self.hello_len += len;
                    if len == missing {
                        return true;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.closed = true;
                    return false;
                }
            }
        }
    }

    fn decide(
        &mut self,
        admit: impl FnOnce(&Hello, IpAddr) -> Result<(Vec<u8>, QueuePair), String>,
    ) {
        let ip = self.stream.local_addr().map(|address| address.ip());
        let decided = Hello::decode(&self.hello).map_err(str::to_owned).and_then(|hello| {
            let ip = ip.map_err(|error| format!("connection broken: {error}"))?;
            admit(&hello, ip).map(|(answer, pair)| (answer, (hello.grant, pair)))
        });
        match decided {
            Ok((answer, admitted)) => {
                self.answer = answer;
                self.admitted = Some(admitted);
                self.closes_ns = None;
            }
            // The recipient reads the reason and closes, or is closed after the time limit.
            Err(reason) => self.answer = Welcome::refusal(&reason),
        }
    }

    fn write(&mut self) {
        while self.sent < self.answer.len() {
            match self.stream.write(&self.answer[self.sent..]) {
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.closed = true;
                    return;
                }
            }
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
