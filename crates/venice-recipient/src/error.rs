//! Why memory could not be borrowed.

use venice_control::{ControlError, PeerKind};
use venice_memory::paged::FarError;
use venice_memory::paged::coding::Coding;
use venice_memory::paged::run_block::{PortKind, RunBlockError};
use venice_ports::PortError;
use venice_wire::ByteSize;

use crate::record::{self, Damaged};

/// Why memory could not be borrowed.
#[derive(Debug, thiserror::Error)]
pub enum RecipientError {
    /// The Monitor Node or a donor said no, or nobody answered.
    #[error("{}", control_text(.0))]
    Control(ControlError),
    /// There is no room for so many copies on different donors.
    #[error("{error}, for {copies} copies on different nodes: ask for less, or for fewer copies")]
    NoRoomForCopies {
        /// How many.
        copies: u32,
        /// What the Monitor Node said.
        error: ControlError,
    },
    /// There are not as many nodes as a page has fragments.
    #[error(
        "coding {coding} needs {shares} nodes with room, a slab of each: there are {found} (`venice \
         nodes` lists them)"
    )]
    TooFewNodes {
        /// How it is coded.
        coding: Coding,
        /// How many it takes.
        shares: usize,
        /// How many there are.
        found: usize,
    },
    /// They have not enough room.
    #[error("{error}, for {coding} on {} different nodes: ask for less", .coding.fragments())]
    NoRoomForFragments {
        /// How it is coded.
        coding: Coding,
        /// What the Monitor Node said.
        error: ControlError,
    },
    /// The Monitor Node granted shares that make no copies on different donors.
    #[error("the Monitor Node granted shares of which no copies on different nodes can be made")]
    NotPaired,
    /// A donor was named that the rack does not know.
    #[error("the rack has no node named {0}: `venice nodes` lists those there are")]
    UnknownNode(String),
    /// What a donor lent cannot be mapped on this machine.
    #[error("{donor} lends, but its memory cannot be mapped here")]
    NotMapped {
        /// The donor.
        donor: String,
        /// Why.
        #[source]
        source: PortError,
    },
    /// A window is made of small pages, and a donor's device has large ones.
    #[error(
        "{donor} lends a memory device that is mapped by pages of {page}, and a window needs those of \
         4KiB: use --mode paged, or have the device made anew (`daxctl create-device --align 4k`, \
         `ndctl create-namespace --align 4k`)"
    )]
    LargePages {
        /// The donor.
        donor: String,
        /// The device's pages.
        page: ByteSize,
    },
    /// The kernel gave no random number, or no thread.
    #[error("{doing}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// The run block could not be made, or cannot hold so much.
    #[error(transparent)]
    Block(#[from] RunBlockError),
    /// There are no addresses left to map slabs at.
    #[error("no room to map the slabs")]
    Map(#[source] rustix::io::Errno),
    /// The way to the donors cannot be opened.
    #[error(transparent)]
    Far(#[from] FarError),
    /// Whoever waited for room does not any more.
    #[error("left the line before there was room; nothing is borrowed")]
    LeftLine,
    /// No other node has room for a copy.
    #[error("no other node has room for one ({why})")]
    NobodyElse {
        /// What is in the way of each.
        why: String,
    },
    /// Nor has this machine.
    #[error("{place} has no room here: {why}")]
    NoRoomHere {
        /// What was asked.
        place: &'static str,
        /// Why not.
        why: String,
    },
    /// Nothing can be written behind.
    #[error("nothing can be written behind to the disk: {why}")]
    NoWriteBehind {
        /// Why not.
        why: String,
    },
    /// There is no place at all; why not, one after the other.
    #[error("{why}")]
    Nowhere {
        /// All reasons.
        why: String,
    },
    /// This machine's own memory cannot be served to the program.
    #[error("this machine's own memory cannot be reached over the run's port")]
    NoServer {
        /// Why.
        #[source]
        source: PortError,
    },
    /// A program has queue pairs for so many grants.
    #[error("over verbs a program that runs reaches {most} grants at most, and it has so many")]
    NoQueuePairs {
        /// How many.
        most: usize,
    },
    /// A node emulates a link, and the port does not obey it.
    #[error(
        "{node} emulates the link {link}, which --port {port} does not obey: use --port shm, or \
         start the rack without --link"
    )]
    Emulated {
        /// The node.
        node: String,
        /// The link.
        link: String,
        /// The port.
        port: PortKind,
    },
    /// The nodes are not reached by shared memory.
    #[error("the nodes of this rack are wired as {topology}: use --port udp")]
    Wired {
        /// How.
        topology: String,
    },
    /// A home was named where nobody has one.
    #[error("--node {0} says nothing here: every node of this rack is reached directly")]
    NoHomes(String),
    /// The rack has no such node to be home.
    #[error("this rack has no node {0}: `venice nodes` lists those there are")]
    NoSuchHome(String),
    /// The home is down.
    #[error("{0} is down: a program needs its node's relay (give another --node)")]
    HomeDown(String),
    /// The home lends only.
    #[error("{}: give another --node", venice_control::pool_text(.0))]
    PoolHome(String),
    /// No rack is known here.
    #[error(
        "no Monitor Node is known: start a rack with `venice up`, or name one in {variable}{looked}"
    )]
    NoRack {
        /// The environment variable that may name one.
        variable: &'static str,
        /// Where one was looked for.
        looked: String,
    },
    /// What is known of it cannot be read.
    #[error("{path} is damaged ({why}): clear the rack away with `venice down`")]
    DamagedRecord {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// All are.
    #[error("no node of this rack that may borrow is up")]
    NobodyUp,
}

impl RecipientError {
    /// Is it a mistake in what was asked for, not a failure?
    pub fn is_usage(&self) -> bool {
        use RecipientError::{Emulated, NoHomes, Wired};
        matches!(self, Emulated { .. } | Wired { .. } | NoHomes(_))
    }
}

/// `venice up` starts the Monitor Node of its own rack; in place of another's it would make one more.
fn control_text(error: &ControlError) -> String {
    match error {
        ControlError::Unreachable { peer: PeerKind::MonitorNode, addr, .. }
            if record::is_of_this_machine(addr) =>
        {
            format!("no Monitor Node answers at {addr}: start it again with `venice up`")
        }
        _ => error.to_string(),
    }
}

impl From<Damaged> for RecipientError {
    fn from(Damaged { path, why }: Damaged) -> Self {
        RecipientError::DamagedRecord { path, why }
    }
}

impl From<ControlError> for RecipientError {
    /// The error's own text says all a user needs; what the transport adds below it does not help.
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::UnknownNode(name) => RecipientError::UnknownNode(name),
            error => RecipientError::Control(error),
        }
    }
}
