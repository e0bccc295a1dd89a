//! Many servers send to one client at once (DIABLO, section 4.1; Vasudevan et al., SIGCOMM 2009).

use serde::{Deserialize, Serialize};
use venice_simkernel::random::Stream;
use venice_simkernel::units::Bytes;

use super::{Build, Environment, Resume, latencies, sum};
use crate::host::Setup;
use crate::host::config::BadValue;
use crate::host::thread::{AcceptCall, Call, EpollId, LockId, Return, SocketId, Step, Wait};
use crate::packet::Host;
use crate::records::Records;
use crate::topology::Topology;
use venice_experiment::outcome::{Metric, Outcome};

/// The client's way to wait for its servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Client {
    /// A thread for each server, with calls that block.
    #[default]
    Pthread,
    /// One thread, with `epoll_wait`.
    Epoll,
}

/// The meaning of the block's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Share {
    /// Each server sends a block.
    #[default]
    PerServer,
    /// The servers send equal parts of one block.
    Striped,
}

/// Host 0 asks the next hosts for data, all at once, again and again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Incast {
    /// Servers, from 1.
    pub servers: u32,
    /// Bytes of a block (DIABLO, section 4.1: 256 KB).
    pub block: Bytes,
    /// The meaning of that size.
    pub share: Share,
    /// Blocks, one after the other (DIABLO, section 4.1: 40).
    pub iterations: u32,
    /// The client's way to wait.
    pub client: Client,
    /// Bytes that one call receives at most.
    pub receive: Bytes,
    /// Bytes of a request.
    pub request: Bytes,
}

impl Default for Incast {
    fn default() -> Self {
        Self {
            servers: 8,
            block: Bytes(256 << 10),
            share: Share::PerServer,
            iterations: 40,
            client: Client::Pthread,
            receive: Bytes(64 << 10),
            request: Bytes(64),
        }
    }
}

/// The host that asks.
const CLIENT: Host = 0;
/// The listening socket of each server.
const LISTENER: SocketId = 0;
/// Instructions of a program between two calls.
const BETWEEN_CALLS: u32 = 200;

impl Incast {
    fn bytes_of_server(&self) -> u32 {
        match self.share {
            Share::PerServer => self.block.0 as u32,
            Share::Striped => (self.block.0 / u64::from(self.servers)).max(1) as u32,
        }
    }

    fn ask(&self, socket: SocketId) -> Step {
        let (bytes, message) = (self.request.0 as u32, 0);
        Step::after(BETWEEN_CALLS, Call::Send { socket, bytes, message })
    }
}

impl Build for Incast {
    fn check(&self) -> Result<(), BadValue> {
        // A thread has 16 bits.
        let hosts = 1..=60_000;
        BadValue::unless(hosts.contains(&self.servers), "servers", self.servers, "1 to 60000")?;
        let is_size = |size: Bytes| (1..=1 << 30).contains(&size.0);
        for (key, size) in
            [("block", self.block), ("receive", self.receive), ("request", self.request)]
        {
            BadValue::unless(is_size(size), key, size, "1B to 1GiB")?;
        }
        BadValue::unless(self.iterations > 0, "iterations", self.iterations, "1 or more")
    }

    fn hosts(&self) -> u32 {
        self.servers + 1
    }

    fn total(&self, _: &Topology) -> u64 {
        self.iterations.into()
    }

    fn report(&self, records: &Records, outcome: &mut Outcome) {
        let (bits, picos) = (records.sum(sum::BYTES) as f64 * 8.0, records.sum(sum::PICOS) as f64);
        let goodput = if picos > 0.0 { bits * 1e6 / picos } else { 0.0 };
        outcome.metrics.push(Metric::new("goodput", goodput, "Mb/s"));
        latencies("block", records.latencies(0), outcome);
    }

    fn build(&self, host: Host, _: &Topology, cores: u16, random: Stream) -> Setup {
        let mut setup = Setup::new(cores, random);
        if host > self.servers {
            return setup;
        }
        if host != CLIENT {
            let listener = setup.listener();
            debug_assert_eq!(listener, LISTENER);
            let bytes = self.bytes_of_server();
            setup.thread(IncastServer { socket: None, bytes }.into());
            return setup;
        }
        match self.client {
            Client::Epoll => {
                let epoll = setup.epoll(&[]);
                setup.thread(IncastEpoll::new(self.clone(), epoll).into());
            }
            Client::Pthread => {
                let barrier = setup.lock(self.servers as u16);
                for server in 1..=self.servers {
                    setup.thread(IncastThread::new(self.clone(), server, barrier).into());
                }
            }
        }
        setup
    }
}

/// Sends a block for each request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IncastServer {
    socket: Option<SocketId>,
    bytes: u32,
}

impl Resume for IncastServer {
    fn resume(&mut self, returned: Return, _: &mut Environment<'_>) -> Step {
        let call = match (returned, self.socket) {
            (Return::Closed, _) => Call::Exit,
            (Return::Socket(socket), _) => {
                self.socket = Some(socket);
                Call::Receive { socket, most: u32::MAX, wait: Wait::Block }
            }
            (Return::Received { message: Some(_), .. }, Some(socket)) => {
                Call::Send { socket, bytes: self.bytes, message: 1 }
            }
            (_, Some(socket)) => Call::Receive { socket, most: u32::MAX, wait: Wait::Block },
            (_, None) => {
                Call::Accept { listener: LISTENER, by: AcceptCall::Accept, wait: Wait::Block }
            }
        };
        Step::after(BETWEEN_CALLS, call)
    }
}

/// A thread of the client, for one server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IncastThread {
    config: Incast,
    server: Host,
    barrier: LockId,
    socket: Option<SocketId>,
    iteration: u32,
    left: u32,
    began: u64,
    is_over: bool,
}

impl IncastThread {
    fn new(config: Incast, server: Host, barrier: LockId) -> Self {
        Self {
            config,
            server,
            barrier,
            socket: None,
            iteration: 0,
            left: 0,
            began: 0,
            is_over: false,
        }
    }

    fn is_first(&self) -> bool {
        self.server == 1
    }

    /// All threads have passed the barrier.
    fn begin(&mut self, socket: SocketId, environment: &mut Environment<'_>) -> Step {
        if self.is_first() {
            note_block(&self.config, self.iteration, &mut self.began, environment);
        }
        if self.iteration == self.config.iterations {
            self.is_over = true;
            return Step::after(BETWEEN_CALLS, Call::Close(socket));
        }
        self.iteration += 1;
        self.left = self.config.bytes_of_server();
        self.config.ask(socket)
    }
}

/// Notes the end of a block, and the beginning of the next one.
fn note_block(config: &Incast, ended: u32, began: &mut u64, environment: &mut Environment<'_>) {
    if ended > 0 {
        let bytes = u64::from(config.bytes_of_server()) * u64::from(config.servers);
        environment.records.add(sum::BYTES, bytes);
        environment.records.add(sum::PICOS, environment.now - *began);
        environment.records.add(sum::DONE, 1);
        environment.records.latency(0, environment.now - *began);
    }
    *began = environment.now;
}

impl Resume for IncastThread {
    fn resume(&mut self, returned: Return, environment: &mut Environment<'_>) -> Step {
        let Some(socket) = self.socket else {
            return match returned {
                Return::Socket(socket) => {
                    self.socket = Some(socket);
                    Step::after(BETWEEN_CALLS, Call::Meet(self.barrier))
                }
                Return::Closed => Step::after(0, Call::Exit),
                _ => Step::after(
                    BETWEEN_CALLS,
                    Call::Connect { host: self.server, listener: LISTENER },
                ),
            };
        };
        match returned {
            Return::Done if self.is_over => return Step::after(0, Call::Exit),
            Return::Received { bytes, .. } => {
                self.left = self.left.saturating_sub(bytes);
                if self.left == 0 {
                    return Step::after(BETWEEN_CALLS, Call::Meet(self.barrier));
                }
            }
            Return::Closed => return Step::after(0, Call::Exit),
            _ if self.left == 0 => return self.begin(socket, environment),
            _ => {}
        }
        let most = self.config.receive.0 as u32;
        Step::after(BETWEEN_CALLS, Call::Receive { socket, most, wait: Wait::Block })
    }
}

/// The client in one thread.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IncastEpoll {
    config: Incast,
    epoll: EpollId,
    sockets: Vec<SocketId>,
    watched: u32,
    asked: u32,
    iteration: u32,
    left: u64,
    ready: Vec<SocketId>,
    began: u64,
}

/// Sockets that one `epoll_wait` returns.
const MOST_READY: u16 = 64;

impl IncastEpoll {
    fn new(config: Incast, epoll: EpollId) -> Self {
        Self {
            config,
            epoll,
            sockets: Vec::new(),
            watched: 0,
            asked: 0,
            iteration: 0,
            left: 0,
            ready: Vec::new(),
            began: 0,
        }
    }

    /// Opens the next connection, watches it, and then begins.
    fn connect(&mut self, returned: Return, environment: &mut Environment<'_>) -> Step {
        if let Return::Socket(socket) = returned {
            self.sockets.push(socket);
            return Step::after(BETWEEN_CALLS, Call::Watch { epoll: self.epoll, socket });
        }
        self.watched = self.sockets.len() as u32;
        if self.watched < self.config.servers {
            let host = self.watched + 1;
            return Step::after(BETWEEN_CALLS, Call::Connect { host, listener: LISTENER });
        }
        self.begin(environment)
    }

    fn begin(&mut self, environment: &mut Environment<'_>) -> Step {
        note_block(&self.config, self.iteration, &mut self.began, environment);
        if self.iteration == self.config.iterations {
            return Step::after(BETWEEN_CALLS, Call::Exit);
        }
        self.iteration += 1;
        self.left = u64::from(self.config.bytes_of_server()) * u64::from(self.config.servers);
        self.asked = 0;
        self.ask()
    }

    fn ask(&mut self) -> Step {
        let socket = self.sockets[self.asked as usize];
        self.asked += 1;
        self.config.ask(socket)
    }

    fn next_ready(&mut self) -> Step {
        let call = match self.ready.pop() {
            Some(socket) => {
                let most = self.config.receive.0 as u32;
                Call::Receive { socket, most, wait: Wait::Return }
            }
            None => Call::EpollWait { epoll: self.epoll, most: MOST_READY },
        };
        Step::after(BETWEEN_CALLS, call)
    }
}

impl Resume for IncastEpoll {
    fn resume(&mut self, returned: Return, environment: &mut Environment<'_>) -> Step {
        if self.watched < self.config.servers {
            return match returned {
                Return::Closed => Step::after(0, Call::Exit),
                returned => self.connect(returned, environment),
            };
        }
        match returned {
            Return::Done if self.asked < self.config.servers => self.ask(),
            Return::Received { bytes, .. } => {
                self.left = self.left.saturating_sub(bytes.into());
                match self.left {
                    0 => self.begin(environment),
                    _ => self.next_ready(),
                }
            }
            Return::Ready => {
                self.ready.clear();
                self.ready.extend(environment.ready.iter().rev());
                self.next_ready()
            }
            Return::Closed => Step::after(0, Call::Exit),
            Return::Started
            | Return::TimedOut
            | Return::Done
            | Return::Socket(_)
            | Return::WouldBlock => self.next_ready(),
        }
    }
}
