//! Datagrams there and back: the least that two hosts can do.

use serde::{Deserialize, Serialize};

use venice_simkernel::random::Stream;
use venice_simkernel::units::Bytes;

use super::{Build, Environment, Resume, latencies, sum};
use crate::host::Setup;
use crate::host::config::BadValue;
use crate::host::thread::{Call, Return, SocketId, Step, Wait};
use crate::packet::Host;
use crate::records::Records;
use crate::topology::Topology;
use venice_experiment::outcome::Outcome;

/// Each second host sends datagrams to the host before it, one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Echo {
    /// Hosts, an even number.
    pub hosts: u32,
    /// Bytes of each datagram.
    pub bytes: Bytes,
    /// Datagrams of each client.
    pub datagrams: u32,
}

impl Default for Echo {
    fn default() -> Self {
        Self { hosts: 2, bytes: Bytes(64), datagrams: 1000 }
    }
}

/// Most bytes of a datagram in one Ethernet frame.
const MOST_BYTES: u64 = 1472;

impl Build for Echo {
    fn check(&self) -> Result<(), BadValue> {
        let is_even = self.hosts > 0 && self.hosts.is_multiple_of(2);
        BadValue::unless(is_even, "hosts", self.hosts, "an even number, from 2 on")?;
        BadValue::unless(self.bytes.0 <= MOST_BYTES, "bytes", self.bytes, "at most 1472B")
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
        let client = |server| EchoClient {
            socket,
            server,
            to: 0,
            bytes: self.bytes.0 as u32,
            left: self.datagrams,
            sent_at: 0,
        };
        setup.thread(match host {
            _ if host >= self.hosts => return setup,
            _ if host.is_multiple_of(2) => EchoServer { socket }.into(),
            _ => client(host - 1).into(),
        });
        setup
    }
}

/// Answers each datagram that comes to a socket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EchoServer {
    /// The socket.
    pub socket: SocketId,
}

/// Sends datagrams, one after the other, and measures the time to their answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EchoClient {
    /// Its socket.
    pub socket: SocketId,
    /// The server.
    pub server: Host,
    /// The server's socket.
    pub to: SocketId,
    /// Bytes of each datagram.
    pub bytes: u32,
    /// Datagrams that are left to send.
    pub left: u32,
    /// Time of the last one, in picoseconds.
    pub sent_at: u64,
}

impl Resume for EchoServer {
    fn resume(&mut self, returned: Return, _: &mut Environment<'_>) -> Step {
        let socket = self.socket;
        match returned {
            Return::Received { bytes, message, from: (host, to) } => {
                let message = message.unwrap_or(0);
                Step::after(500, Call::SendTo { socket, host, to, bytes, message })
            }
            _ => Step::after(100, Call::Receive { socket, most: u32::MAX, wait: Wait::Block }),
        }
    }
}

impl Resume for EchoClient {
    fn resume(&mut self, returned: Return, environment: &mut Environment<'_>) -> Step {
        let Self { socket, server: host, to, bytes, .. } = *self;
        match returned {
            Return::Done => {
                return Step::after(
                    100,
                    Call::Receive { socket, most: u32::MAX, wait: Wait::Block },
                );
            }
            Return::Received { .. } => {
                environment.records.latency(0, environment.now - self.sent_at);
                environment.records.add(sum::DONE, 1);
                environment.end_request();
            }
            _ => {}
        }
        if self.left == 0 {
            return Step::after(0, Call::Exit);
        }
        self.left -= 1;
        self.sent_at = environment.now;
        environment.begin_request();
        let message = u64::from(self.left);
        Step::after(500, Call::SendTo { socket, host, to, bytes, message })
    }
}
