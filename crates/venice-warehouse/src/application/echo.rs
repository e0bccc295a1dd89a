//! Datagrams there and back: the least that two hosts can do.

use serde::{Deserialize, Serialize};

use venice_simkernel::random::Stream;
use venice_simkernel::units::{Bytes, Picos};

use super::{Build, Environment, Resume, latencies, sum};
use crate::host::Setup;
use crate::host::config::BadValue;
use crate::host::thread::{Call, Return, SocketId, Step, Wait};
use crate::packet::Host;
use crate::records::Records;
use crate::topology::Topology;
use crate::traffic::Distribution;
use venice_experiment::outcome::Outcome;

/// Each second host sends datagrams to the host before it, which sends them back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Echo {
    /// Hosts, an even number.
    pub hosts: u32,
    /// Bytes of each datagram.
    pub bytes: Bytes,
    /// Datagrams of each client.
    pub datagrams: u32,
    /// Microseconds between two datagrams of a client, whether or not they were answered (an open loop);
    /// always 0: each is sent after the answer to the one before it (a closed loop).
    pub gap: Distribution,
    /// Instructions of the server for a datagram.
    pub service: Distribution,
    /// A client gives up what was not answered within this time.
    pub timeout: Picos,
}

impl Default for Echo {
    fn default() -> Self {
        Self {
            hosts: 2,
            bytes: Bytes(64),
            datagrams: 1000,
            gap: CLOSED,
            service: Distribution::Constant { value: 500.0 },
            timeout: Picos(Picos::SECOND),
        }
    }
}

/// The gap of a closed loop.
const CLOSED: Distribution = Distribution::Constant { value: 0.0 };
/// Most bytes of a datagram in one Ethernet frame.
const MOST_BYTES: u64 = 1472;

impl Build for Echo {
    fn check(&self) -> Result<(), BadValue> {
        let is_even = self.hosts > 0 && self.hosts.is_multiple_of(2);
        BadValue::unless(is_even, "hosts", self.hosts, "an even number, from 2 on")?;
        BadValue::unless(self.bytes.0 <= MOST_BYTES, "bytes", self.bytes, "at most 1472B")?;
        self.gap.check("gap")?;
        self.service.check("service")
    }

    fn hosts(&self) -> u32 {
        self.hosts
    }

    fn total(&self, _: &Topology) -> u64 {
        u64::from(self.hosts / 2) * u64::from(self.datagrams)
    }

    fn report(&self, records: &Records, outcome: &mut Outcome) {
        latencies("latency", records.latencies(0), outcome);
    }

    fn build(&self, host: Host, _: &Topology, cores: u16, random: Stream) -> Setup {
        let mut setup = Setup::new(cores, random);
        let socket = setup.udp();
        setup.thread(match host {
            _ if host >= self.hosts => return setup,
            _ if host.is_multiple_of(2) => EchoServer { socket, service: self.service }.into(),
            _ => EchoClient::new(self, socket, host - 1).into(),
        });
        setup
    }
}

/// Answers each datagram that comes to a socket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EchoServer {
    socket: SocketId,
    service: Distribution,
}

impl Resume for EchoServer {
    fn resume(&mut self, returned: Return, environment: &mut Environment<'_>) -> Step {
        let socket = self.socket;
        match returned {
            Return::Received { bytes, message, from: (host, to) } => {
                let message = message.unwrap_or(0);
                let service = self.service.draw(environment.random) as u32;
                Step::after(service, Call::SendTo { socket, host, to, bytes, message })
            }
            _ => Step::after(100, Call::Receive { socket, most: u32::MAX, wait: Wait::Block }),
        }
    }
}

/// Instructions of a client for a datagram.
const CLIENT: u32 = 500;

/// Sends datagrams, and measures the time to their answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EchoClient {
    config: Echo,
    socket: SocketId,
    server: Host,
    /// Datagrams sent, and those whose answers are to come.
    sent: u32,
    open: u32,
    /// The time of the next one in an open loop, of the last one in a closed one.
    at: u64,
}

impl EchoClient {
    fn new(config: &Echo, socket: SocketId, server: Host) -> Self {
        Self { config: config.clone(), socket, server, sent: 0, open: 0, at: 0 }
    }

    fn is_open_loop(&self) -> bool {
        self.config.gap != CLOSED
    }

    /// An open loop's latencies count from the time at which a datagram was due: one that is late does
    /// not hide the wait of the next.
    fn send(&mut self, environment: &mut Environment<'_>) -> Step {
        if !self.is_open_loop() {
            self.at = environment.now;
        }
        let Self { socket, server: host, at: message, .. } = *self;
        (self.sent, self.open) = (self.sent + 1, self.open + 1);
        if self.is_open_loop() && self.sent < self.config.datagrams {
            self.at += (self.config.gap.draw(environment.random).max(0.0) * 1e6) as u64;
        }
        environment.begin_request();
        let bytes = self.config.bytes.0 as u32;
        Step::after(CLIENT, Call::SendTo { socket, host, to: 0, bytes, message })
    }

    fn receive(&self) -> Step {
        let has_next = self.is_open_loop() && self.sent < self.config.datagrams;
        let until = if has_next { self.at } else { self.at + self.config.timeout.0 };
        let (socket, wait) = (self.socket, Wait::Until(until));
        Step::after(100, Call::Receive { socket, most: u32::MAX, wait })
    }
}

impl Resume for EchoClient {
    fn resume(&mut self, returned: Return, environment: &mut Environment<'_>) -> Step {
        match returned {
            Return::Received { message, .. } => {
                let sent_at = message.unwrap_or(environment.now);
                environment.records.latency(0, environment.now.saturating_sub(sent_at));
                environment.records.add(sum::DONE, 1);
                environment.end_request();
                self.open = self.open.saturating_sub(1);
            }
            Return::TimedOut if self.sent == self.config.datagrams || !self.is_open_loop() => {
                environment.records.add(sum::FAILED, self.open.into());
                environment.abandon_request();
                self.open = 0;
            }
            _ => {}
        }
        let is_due = if self.is_open_loop() { self.at <= environment.now } else { self.open == 0 };
        match (self.sent < self.config.datagrams, self.open) {
            (true, _) if is_due => self.send(environment),
            (false, 0) => Step::after(0, Call::Exit),
            _ => self.receive(),
        }
    }
}
