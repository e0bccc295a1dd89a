//! Programs of the servers: state machines that the system resumes at the end of each call.
//!
//! To add one: a file with a type that implements [`Resume`], and a row in `programs!`.

mod echo;
mod incast;
mod memcached;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use venice_simkernel::random::Stream;

pub use self::echo::{Echo, EchoClient, EchoServer};
pub use self::incast::{Client, Incast, IncastEpoll, IncastServer, IncastThread, Share};
pub use self::memcached::{Memcached, MemcachedClient, MemcachedListener, MemcachedWorker};
use crate::host::Setup;
use crate::host::config::BadValue;
use crate::host::thread::{Return, SocketId, Step};
use crate::journey::{Journey, JourneyId, Journeys, Stage};
use crate::packet::Host;
use crate::records::Records;
use crate::topology::Topology;
use venice_experiment::outcome::{NamedHistogram, Outcome};

/// The surroundings of a program that is resumed.
#[derive(Debug)]
pub struct Environment<'a> {
    /// Its host.
    pub host: Host,
    /// The time.
    pub now: u64,
    /// Sockets that `epoll_wait` returned.
    pub ready: &'a [SocketId],
    /// Random numbers of its own.
    pub random: &'a mut Stream,
    /// Its measurements.
    pub records: &'a mut Records,
    /// The request that the thread works on.
    pub(crate) journey: &'a mut Option<JourneyId>,
    /// Requests that are followed.
    pub(crate) journeys: &'a mut Journeys,
    /// True if requests are followed.
    pub(crate) explains: bool,
    /// The network.
    pub topology: &'a Topology,
}

impl Environment<'_> {
    /// A request begins: the next message that the thread sends carries it.
    pub fn begin_request(&mut self) {
        self.abandon_request();
        if self.explains {
            *self.journey = Some(self.journeys.insert(Journey::begin(self.now)));
        }
    }

    /// The request has its answer.
    pub fn end_request(&mut self) {
        if let Some(id) = self.journey.take() {
            let mut journey = self.journeys.remove(id);
            journey.end(Stage::WakeUp, self.now);
            self.records.explain(journey.spent());
        }
    }

    /// The request has failed.
    pub fn abandon_request(&mut self) {
        if let Some(id) = self.journey.take() {
            self.journeys.remove(id);
        }
    }
}

/// A program of one thread.
pub trait Resume {
    /// Continues after a call, up to the next one.
    fn resume(&mut self, returned: Return, environment: &mut Environment<'_>) -> Step;
}

/// Sums that applications keep in the records.
pub mod sum {
    /// Bytes that the application has received.
    pub const BYTES: usize = 0;
    /// Time during which it received them, in picoseconds.
    pub const PICOS: usize = 1;
    /// Requests, blocks or the like that are done.
    pub const DONE: usize = 2;
    /// Requests that failed.
    pub const FAILED: usize = 3;
}

/// The programs of a warehouse, as data.
pub trait Build {
    /// Checks all bounds.
    ///
    /// # Errors
    /// The first value that is out of its bounds.
    fn check(&self) -> Result<(), BadValue>;

    /// Hosts that it needs.
    fn hosts(&self) -> u32;

    /// Checks that a topology has room for it.
    ///
    /// # Errors
    /// The value that does not fit, from the root of the configuration.
    fn fits(&self, topology: &Topology) -> Result<(), BadValue> {
        let (hosts, needed) = (topology.hosts(), self.hosts());
        let bound = format!("{needed} hosts or more, which the application needs");
        BadValue::unless(hosts >= needed, "topology", format!("{hosts} hosts"), &bound)
    }

    /// Returns how many requests, blocks or the like there will be in all: [`sum::DONE`] at the end.
    fn total(&self, topology: &Topology) -> u64;

    /// Adds what it measured to the results.
    fn report(&self, records: &Records, outcome: &mut Outcome);

    /// Builds a host. Its programs draw from streams below `random`.
    fn build(&self, host: Host, topology: &Topology, cores: u16, random: Stream) -> Setup;
}

/// Adds a distribution of latencies to the results.
fn latencies(name: &str, recorded: Option<&Histogram<u64>>, outcome: &mut Outcome) {
    if let Some(recorded) = recorded {
        outcome.histograms.push(NamedHistogram::new(name, "us", 1000.0, recorded));
    }
}

/// Defines the type of all applications.
macro_rules! applications {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The programs of the servers.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "kind", rename_all = "kebab-case")]
        pub enum Application {
            $($(#[$doc])* $name($name),)*
        }

        impl Application {
            /// Returns what builds it.
            pub fn build(&self) -> &dyn Build {
                match self {
                    $(Self::$name(application) => application,)*
                }
            }
        }
    };
}

applications! {
    /// Datagrams there and back.
    Echo,
    /// Many servers send to one client at once.
    Incast,
    /// Servers in each rack, and a client on each other host.
    Memcached,
}

impl Default for Application {
    fn default() -> Self {
        Self::Incast(Incast::default())
    }
}

/// Defines the type of all programs.
macro_rules! programs {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A program of one thread.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        pub enum Program {
            $($(#[$doc])* $name(Box<$name>),)*
        }

        impl Program {
            /// Continues after a call, up to the next one.
            pub fn resume(&mut self, returned: Return, environment: &mut Environment<'_>) -> Step {
                match self {
                    $(Self::$name(program) => program.resume(returned, environment),)*
                }
            }
        }

        $(
            impl From<$name> for Program {
                fn from(program: $name) -> Self {
                    Self::$name(Box::new(program))
                }
            }
        )*
    };
}

programs! {
    /// Answers each datagram.
    EchoServer,
    /// Sends datagrams, one after the other, and measures the time to their answers.
    EchoClient,
    /// Sends a block for each request.
    IncastServer,
    /// A thread of a client that asks many servers at once.
    IncastThread,
    /// A client that asks many servers at once, in one thread.
    IncastEpoll,
    /// A client of all servers.
    MemcachedClient,
    /// A thread that answers the requests of its sockets.
    MemcachedWorker,
    /// The thread that accepts connections and deals them to the workers in turn.
    MemcachedListener,
}
