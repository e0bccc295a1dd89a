//! The errors of a recipient.

use venice_control::{ControlError, PeerKind};
use venice_memory::paged::FarError;
use venice_memory::paged::coding::Coding;
use venice_memory::paged::run_block::{PortKind, RunBlockError};
use venice_ports::PortError;
use venice_wire::ByteSize;

use crate::local_rack::{CLIENT_CONFIG, MONITOR_VARIABLE};
use crate::record::{self, Unreadable};

/// The reason why memory could not be borrowed.
#[derive(Debug, thiserror::Error)]
pub enum RecipientError {
    /// The Monitor Node or a donor refused, or did not answer.
    #[error("{}", control_text(.0))]
    Control(ControlError),
    /// The service of a granted device did not start.
    #[error("{what} of {donor}: {why}")]
    NoService {
        /// The device.
        what: String,
        /// Its donor.
        donor: String,
        /// The donor's reason.
        why: String,
    },
    /// There is no room for this many copies on different donors.
    #[error("{}", copies_text(*.copies, .error))]
    NoRoomForCopies {
        /// Copies requested.
        copies: u32,
        /// The Monitor Node's error.
        error: ControlError,
    },
    /// There are fewer nodes than a page has fragments.
    #[error(
        "coding {coding} needs {shares} nodes with room, a slab of each: there are {found} (`venice \
         nodes` lists them)"
    )]
    TooFewNodes {
        /// The coding.
        coding: Coding,
        /// Nodes needed.
        shares: usize,
        /// Nodes found.
        found: usize,
    },
    /// The nodes lack room for the fragments.
    #[error("{error}, for {coding} on {} different nodes: ask for less", .coding.fragments())]
    NoRoomForFragments {
        /// The coding.
        coding: Coding,
        /// The Monitor Node's error.
        error: ControlError,
    },
    /// The Monitor Node's shares do not form copies on different donors.
    #[error(
        "invalid grant from the Monitor Node: its shares do not form copies on different nodes (protocol error)"
    )]
    NotPaired,
    /// The rack has no node of the name given.
    #[error("the rack has no node named {0}: `venice nodes` lists those there are")]
    UnknownNode(String),
    /// A donor's memory cannot be mapped on this machine.
    #[error("{donor} lends, but its memory cannot be mapped here")]
    NotMapped {
        /// The donor.
        donor: String,
        /// The cause.
        #[source]
        source: PortError,
    },
    /// A donor on this machine hands out no memory to be mapped.
    #[error(
        "{0} lends, and has no socket for programs of its host: start its agent with --shm-socket PATH \
         (shm_socket in agent.toml), or use --port udp"
    )]
    NoShmSocket(String),
    /// A window needs small pages, and a donor's device has large ones.
    #[error(
        "{donor} lends a memory device that is mapped by pages of {page}, and a window needs those of \
         4KiB: use --mode paged, or have the device made anew (`daxctl create-device --align 4k`, \
         `ndctl create-namespace --align 4k`)"
    )]
    LargePages {
        /// The donor.
        donor: String,
        /// The page size of the device.
        page: ByteSize,
    },
    /// The kernel gave no random number, or no thread.
    #[error("{doing}")]
    System {
        /// The action that failed.
        doing: &'static str,
        /// The kernel's error.
        #[source]
        source: std::io::Error,
    },
    /// The run block could not be created, or is too small.
    #[error(transparent)]
    Block(#[from] RunBlockError),
    /// No address range is left to map slabs at.
    #[error("no room to map the slabs")]
    Map(#[source] rustix::io::Errno),
    /// The connection to the donors cannot be opened.
    #[error(transparent)]
    Far(#[from] FarError),
    /// The caller cancelled its wait for room.
    #[error("wait cancelled; nothing allocated")]
    WaitCancelled,
    /// No other node has room for a copy.
    #[error("no other node has room for one ({why})")]
    NobodyElse {
        /// The reasons against each.
        why: String,
    },
    /// This machine has no room either.
    #[error("no room in {place} on this machine: {why}")]
    NoRoomHere {
        /// The destination.
        place: &'static str,
        /// The cause.
        why: String,
    },
    /// The write-behind cannot be started.
    #[error("write-behind unavailable: {why}")]
    NoWriteBehind {
        /// The cause.
        why: String,
    },
    /// No destination has room.
    #[error("{why}")]
    Nowhere {
        /// All reasons, one after the other.
        why: String,
    },
    /// The local fallback memory cannot be served to the program.
    #[error("local fallback memory cannot be served over the run's port")]
    NoServer {
        /// The cause.
        #[source]
        source: PortError,
    },
    /// The program has reached its limit of queue pairs.
    #[error(
        "RDMA queue-pair limit reached ({most} grants per process): use fewer donors or --port udp"
    )]
    NoQueuePairs {
        /// The limit, in grants.
        most: usize,
    },
    /// A node emulates a link, and the port does not support that.
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
    /// The rack's nodes relay for each other, which shared memory cannot.
    #[error("the nodes of this rack are wired as {topology}: use --port udp")]
    Wired {
        /// The rack's topology.
        topology: String,
    },
    /// A node was named in a rack without relays.
    #[error("--node {0} has no effect: every node of this rack is reached directly; leave it out")]
    NoHomes(String),
    /// The rack has no such node.
    #[error("this rack has no node {0}: `venice nodes` lists those there are")]
    NoSuchHome(String),
    /// The named node is down.
    #[error("{0} is down: a program needs its node's relay (give another --node)")]
    HomeDown(String),
    /// The named node is a pool node, which borrows nothing.
    #[error("{}: give another --node", venice_control::pool_text(.0))]
    PoolHome(String),
    /// No rack was found.
    #[error(
        "no Monitor Node is known (none in {looked}, no daemon on this machine): start a rack with \
         `venice up`, the Monitor Node that `venice init` prepared with `venice monitor`, or an agent after \
         `venice join` with `venice agent`; or name its Monitor Node in {MONITOR_VARIABLE} or {CLIENT_CONFIG}"
    )]
    NoRack {
        /// The run directory.
        looked: String,
    },
    /// The configuration of this machine's programs is wrong.
    #[error("{path}: {why}")]
    ClientConfig {
        /// The file.
        path: String,
        /// The reason.
        why: String,
    },
    /// The daemons of this machine cannot be asked.
    #[error("cannot ask the daemons of this machine")]
    NoRuntime(#[source] std::io::Error),
    /// The rack's record cannot be read.
    #[error("{path} is damaged ({why}): clear the rack away with `venice down`")]
    DamagedRecord {
        /// The file.
        path: String,
        /// The cause.
        why: String,
    },
    /// The rack is another user's.
    #[error(
        "{path}: the rack belongs to another user, and this one may not look at it: run this as that \
         user or as root, or set VENICE_RUN_DIR for a rack of your own"
    )]
    AnotherUsersRack {
        /// The record.
        path: String,
    },
    /// All nodes that may borrow are down.
    #[error("no node of this rack that may borrow is up")]
    NobodyUp,
}

impl RecipientError {
    /// True for an error in the request, as against a failure.
    pub fn is_usage(&self) -> bool {
        use RecipientError::{Emulated, NoHomes, Wired};
        matches!(self, Emulated { .. } | Wired { .. } | NoHomes(_))
    }
}

/// Explains what `copies` lack: nodes, or room on them.
fn copies_text(copies: u32, error: &ControlError) -> String {
    let with_room = match error {
        ControlError::NoRoom { free, .. } => free.iter().filter(|(_, bytes)| *bytes > 0).count(),
        _ => usize::MAX,
    };
    match with_room < copies as usize {
        true => format!(
            "{copies} copies need {copies} nodes with room, one each: there are {with_room} (`venice \
             nodes` lists them); ask for fewer copies, or lend from more nodes"
        ),
        false => format!(
            "too little room for {copies} copies on different nodes: ask for less, or for fewer \
             copies ({error})"
        ),
    }
}

/// Adds the remedy for the rack of this machine: `venice up` restarts its Monitor Node. For another
/// rack's it would start one more.
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

impl From<Unreadable> for RecipientError {
    fn from(Unreadable { path, why, is_denied }: Unreadable) -> Self {
        match is_denied {
            true => RecipientError::AnotherUsersRack { path },
            false => RecipientError::DamagedRecord { path, why },
        }
    }
}

impl From<ControlError> for RecipientError {
    /// Drops the transport's causes: the error's own text suffices.
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::UnknownNode(name) => RecipientError::UnknownNode(name),
            error => RecipientError::Control(error),
        }
    }
}
