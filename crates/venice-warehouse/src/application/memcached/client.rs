//! A client: one request after the other, each to a server at random.

use serde::{Deserialize, Serialize};

use super::message::{FRAME_BYTES, Request};
use super::{Connect, Memcached, SERVICE, Servers, Transport};
use crate::application::{Environment, Resume, sum};
use crate::host::thread::{Call, Return, SocketId, Step, Wait};
use crate::packet::Host;

/// The state of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    /// It waits before it asks.
    Thinking,
    Connecting,
    Asking,
    Waiting,
    Closing,
}

/// A client of all servers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemcachedClient {
    config: Memcached,
    servers: Servers,
    /// The socket of datagrams.
    datagrams: SocketId,
    /// Connections, by server.
    connections: Vec<Option<SocketId>>,
    state: State,
    number: u32,
    /// The present request, its server, and the bytes of its answer that are to come.
    request: u64,
    server: u32,
    left: u32,
    asked_at: u64,
}

impl MemcachedClient {
    pub(super) fn new(config: &Memcached, servers: Servers, datagrams: SocketId) -> Self {
        let count = match config.transport {
            Transport::Udp => 0,
            Transport::Tcp => servers.count() as usize,
        };
        Self {
            config: config.clone(),
            servers,
            datagrams,
            connections: vec![None; count],
            state: State::Thinking,
            number: 0,
            request: 0,
            server: 0,
            left: 0,
            asked_at: 0,
        }
    }

    fn host(&self) -> Host {
        self.servers.host(self.server)
    }

    /// Draws the next request.
    fn next(&mut self, environment: &mut Environment<'_>) -> Step {
        self.server = environment.random.below(self.servers.count().into()) as u32;
        let request = Request::draw(self.number, &self.config, environment.random);
        (self.request, self.left) = (request.pack(), request.answer_bytes());
        self.number += 1;
        self.asked_at = environment.now;
        environment.begin_request();
        match (self.config.transport, self.connection()) {
            (Transport::Tcp, None) => {
                self.state = State::Connecting;
                let call = Call::Connect { host: self.host(), listener: SERVICE };
                Step::after(self.config.client_instructions, call)
            }
            (Transport::Tcp, Some(_)) | (Transport::Udp, _) => self.ask(),
        }
    }

    fn connection(&self) -> Option<SocketId> {
        self.connections.get(self.server as usize).copied().flatten()
    }

    fn ask(&mut self) -> Step {
        self.state = State::Asking;
        let (bytes, message) = (Request::unpack(self.request).bytes(), self.request);
        let call = match self.connection() {
            Some(socket) => Call::Send { socket, bytes, message },
            None => Call::SendTo {
                socket: self.datagrams,
                host: self.host(),
                to: SERVICE,
                bytes: bytes + FRAME_BYTES,
                message,
            },
        };
        Step::after(self.config.client_instructions, call)
    }

    fn wait(&mut self) -> Step {
        self.state = State::Waiting;
        let (socket, wait) = match self.connection() {
            Some(socket) => (socket, Wait::Block),
            None => (self.datagrams, Wait::Until(self.asked_at + self.config.timeout.0)),
        };
        Step::after(0, Call::Receive { socket, most: u32::MAX, wait })
    }

    /// Notes the latency by the number of switches between client and server.
    fn end(&mut self, environment: &mut Environment<'_>) -> Step {
        let hops = environment.topology.switch_hops(environment.host, self.host());
        environment.records.latency(hops as usize / 2, environment.now - self.asked_at);
        environment.records.add(sum::DONE, 1);
        environment.end_request();
        self.think(environment)
    }

    fn think(&mut self, environment: &mut Environment<'_>) -> Step {
        if self.config.connect == Connect::EachRequest
            && let Some(connection) = self.connections.get_mut(self.server as usize)
            && let Some(socket) = connection.take()
        {
            self.state = State::Closing;
            return Step::after(0, Call::Close(socket));
        }
        self.state = State::Thinking;
        if self.number == self.config.requests {
            return Step::after(0, Call::Exit);
        }
        let think = (self.config.think.draw(environment.random).max(0.0) * 1e6) as u64;
        Step::after(0, Call::SleepUntil(environment.now + think))
    }
}

impl Resume for MemcachedClient {
    fn resume(&mut self, returned: Return, environment: &mut Environment<'_>) -> Step {
        match (self.state, returned) {
            (_, Return::Started) => {
                let after = environment.random.below(self.config.start.0.max(1));
                Step::after(0, Call::SleepUntil(environment.now + after))
            }
            (_, Return::Closed | Return::TimedOut) => {
                environment.records.add(sum::FAILED, 1);
                environment.abandon_request();
                if let Some(connection) = self.connections.get_mut(self.server as usize) {
                    *connection = None;
                }
                self.think(environment)
            }
            (State::Thinking, _) => self.next(environment),
            (State::Connecting, Return::Socket(socket)) => {
                self.connections[self.server as usize] = Some(socket);
                self.ask()
            }
            (State::Asking, _) => self.wait(),
            (State::Waiting, Return::Received { bytes, message, .. }) => {
                let is_late = self.config.transport == Transport::Udp
                    && message.is_some_and(|message| message >> 32 != self.request >> 32);
                if !is_late {
                    let frame = match self.config.transport {
                        Transport::Udp => FRAME_BYTES,
                        Transport::Tcp => 0,
                    };
                    self.left = self.left.saturating_sub(bytes - frame);
                }
                if self.left == 0 { self.end(environment) } else { self.wait() }
            }
            (State::Closing, _) => self.think(environment),
            (State::Connecting | State::Waiting, _) => self.wait(),
        }
    }
}
