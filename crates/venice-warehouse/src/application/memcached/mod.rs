//! memcached with clients that send what Facebook's do (DIABLO, section 4.2).

mod client;
mod message;
mod server;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use venice_simkernel::random::Stream;
use venice_simkernel::units::{Bytes, Picos, Share};

pub use self::client::MemcachedClient;
pub use self::server::{MemcachedListener, MemcachedWorker};
use super::{Build, latencies};
use crate::host::Setup;
use crate::host::config::BadValue;
use crate::host::thread::{AcceptCall, SocketId};
use crate::packet::Host;
use crate::records::Records;
use crate::topology::Topology;
use crate::traffic::Distribution;
use venice_experiment::outcome::Outcome;

/// The transport between clients and servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Datagrams; an answer of more than 1400 bytes takes several.
    #[default]
    Udp,
    /// A connection from each client to each server.
    Tcp,
}

/// A version of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    /// Accepts with `accept(2)` and `fcntl(2)`.
    #[default]
    #[serde(rename = "1.4.15")]
    V1_4_15,
    /// Accepts with `accept4(2)`.
    #[serde(rename = "1.4.17")]
    V1_4_17,
}

/// The moment at which a client opens a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Connect {
    /// To each server with its first request, whose latency includes it.
    #[default]
    FirstUse,
    /// Anew for each request.
    EachRequest,
}

/// Servers in each rack, and a client on each other host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Memcached {
    /// Servers in each rack (DIABLO, section 4.2: 2 of 31 hosts).
    pub servers_per_rack: u32,
    /// The transport.
    pub transport: Transport,
    /// The server's version.
    pub version: Version,
    /// Threads of a server that answer (memcached's default: 4).
    pub workers: u16,
    /// The moment at which a client opens a connection.
    pub connect: Connect,
    /// Requests of each client (DIABLO, section 4.2: 30 000), each to a server at random.
    pub requests: u32,
    /// Microseconds between an answer and the next request. The paper does not state how its clients
    /// were paced, but they were: it saw no overrun buffers, and less than half of the processors' time
    /// in use.
    pub think: Distribution,
    /// Clients begin within this time.
    pub start: Picos,
    /// Requests that read (Atikoglu et al., section 3: 30 to 1).
    pub reads: Share,
    /// Reads that find their key (Atikoglu et al., table 3: 81.4 %).
    pub hits: Share,
    /// Most bytes of a value. memcached takes up to 1 MiB; with these, an answer is one datagram, and
    /// no buffer overruns, as in DIABLO (section 4.2).
    pub largest_value: Bytes,
    /// A client gives up a request over UDP after this time.
    pub timeout: Picos,
    /// Instructions of the server for a request: it parses, hashes, looks up, and writes its answer.
    pub server_instructions: u32,
    /// The part of them under the cache's lock; 0: without a lock.
    pub locked_instructions: u32,
    /// Instructions of the client between an answer and its next request.
    pub client_instructions: u32,
}

impl Default for Memcached {
    fn default() -> Self {
        Self {
            servers_per_rack: 2,
            transport: Transport::Udp,
            version: Version::V1_4_15,
            workers: 4,
            connect: Connect::FirstUse,
            requests: 30_000,
            think: Distribution::Exponential { mean: 2000.0 },
            start: Picos(2_000 * Picos::MICRO),
            reads: Share(967_742),
            hits: Share(814_000),
            largest_value: Bytes(1300),
            timeout: Picos(Picos::SECOND),
            server_instructions: 5_000,
            locked_instructions: 800,
            client_instructions: 3_000,
        }
    }
}

/// The servers of a warehouse: the first hosts of each rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Servers {
    each: u32,
    racks: u32,
    rack_hosts: u32,
}

impl Servers {
    fn contain(&self, host: Host) -> bool {
        host % self.rack_hosts < self.each
    }

    fn count(&self) -> u32 {
        self.each * self.racks
    }

    fn host(&self, number: u32) -> Host {
        number / self.each * self.rack_hosts + number % self.each
    }
}

/// The socket of a server: of datagrams, or the listening one.
const SERVICE: SocketId = 0;

impl Version {
    fn accepts_by(self) -> AcceptCall {
        match self {
            Self::V1_4_15 => AcceptCall::Accept,
            Self::V1_4_17 => AcceptCall::Accept4,
        }
    }
}

impl Build for Memcached {
    fn check(&self) -> Result<(), BadValue> {
        BadValue::unless(self.servers_per_rack > 0, "servers-per-rack", 0, "1 or more")?;
        BadValue::unless((1..=32).contains(&self.workers), "workers", self.workers, "1 to 32")?;
        BadValue::unless(self.requests > 0, "requests", 0, "1 or more")?;
        let largest = self.largest_value;
        BadValue::unless(largest.0 <= 1 << 20, "largest-value", largest, "at most 1MiB")?;
        self.think.check("think")
    }

    fn hosts(&self) -> u32 {
        self.servers_per_rack + 1
    }

    fn fits(&self, topology: &Topology) -> Result<(), BadValue> {
        let (each, hosts) = (self.servers_per_rack, topology.hosts_per_rack());
        let bound = format!("below the {hosts} hosts of a rack, for there to be clients");
        BadValue::unless(each < hosts, "application.servers-per-rack", each, &bound)
    }

    fn total(&self, topology: &Topology) -> u64 {
        let servers = self.servers_per_rack * topology.racks();
        u64::from(topology.hosts() - servers) * u64::from(self.requests)
    }

    fn report(&self, records: &Records, outcome: &mut Outcome) {
        let mut all: Option<Histogram<u64>> = None;
        for (class, name) in
            ["latency.local", "latency.one_hop", "latency.two_hop"].iter().enumerate()
        {
            latencies(name, records.latencies(class), outcome);
            if let Some(more) = records.latencies(class) {
                *all.get_or_insert_with(|| {
                    Histogram::new(3).expect("three digits are possible")
                }) += more;
            }
        }
        latencies("latency", all.as_ref(), outcome);
    }

    fn build(&self, host: Host, topology: &Topology, cores: u16, random: Stream) -> Setup {
        let rack_hosts = topology.hosts_per_rack();
        let racks = topology.hosts() / rack_hosts;
        let servers = Servers { each: self.servers_per_rack, racks, rack_hosts };
        let mut setup = Setup::new(cores, random);
        if !servers.contain(host) {
            let client = MemcachedClient::new(self, servers, setup.udp());
            setup.thread(client.into());
            return setup;
        }
        let service = match self.transport {
            Transport::Udp => setup.udp(),
            Transport::Tcp => setup.listener(),
        };
        let lock = setup.lock(1);
        let watched: &[SocketId] = match self.transport {
            Transport::Udp => &[service],
            Transport::Tcp => &[],
        };
        for _ in 0..self.workers {
            let epoll = setup.epoll(watched);
            setup.thread(MemcachedWorker::new(self, epoll, lock).into());
        }
        if self.transport == Transport::Tcp {
            let epoll = setup.epoll(&[service]);
            let (by, workers) = (self.version.accepts_by(), self.workers);
            setup.thread(MemcachedListener::new(epoll, by, workers).into());
        }
        setup
    }
}
