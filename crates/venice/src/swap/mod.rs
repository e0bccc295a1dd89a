//! `venice swap`: borrowed memory as a block device that the kernel itself swaps to.
//!
//! Each device has a server, a process that outlives the command that started it ([`server`]). Its
//! folder in the run directory holds its plan ([`plan`]), its log, and its control socket
//! ([`control`]).
//!
//! A run with `--mode swap` has a device and a cgroup ([`session`]): root's in its own process, a user's
//! in one of the [`helper`]'s ([`run_session`]).

mod anchor;
mod attach;
mod control;
mod detach;
pub mod helper;
mod list;
mod plan;
mod run_session;
mod server;
mod session;
mod status;
mod wants;

use std::num::NonZeroU64;
use std::time::Duration;

use clap::{Args, Subcommand};
use venice_control::{DEFAULT_PRIORITY, Policy};
use venice_fabric::parse_bandwidth;
use venice_wire::ByteSize;

pub use attach::{in_words, tell_of_queue, warn_of_one_copy};
pub use detach::{detach, detach_all};
pub use list::of_device as status;
pub use plan::{Reclaim, Size, check_size};
pub use run_session::{RunSession, check_user, is_root};
pub use session::GroupState;
pub use status::Status;
pub use wants::Wants;

use crate::identity::duration;
use crate::rack::{PortKind, port_parser};

/// Most copies: the slots of a run block.
const MAX_COPIES: i64 = venice_recipient::MOST_COPIES as i64;

/// `venice swap`
#[derive(Subcommand, Debug)]
pub enum SwapCommand {
    /// Borrow memory and let the kernel swap to it
    #[command(after_help = HELP_ATTACH)]
    Attach(AttachArgs),
    /// Read everything back and return the memory, or report why not
    #[command(after_help = HELP_DETACH)]
    Detach(DetachArgs),
    /// List the swap devices of this machine
    #[command(after_help = HELP_LIST)]
    List(ListArgs),
    /// Keep the kernel from killing programs of a cgroup while their swap device has room
    #[command(after_help = anchor::HELP)]
    Anchor(anchor::AnchorArgs),
    /// Run the helper that lets ordinary users of this machine run programs on swap, where the agent
    /// may not
    #[command(after_help = helper::HELP)]
    Helper(helper::HelperArgs),
    /// Serve one user's run (started by the helper)
    #[command(hide = true)]
    Session(helper::SessionArgs),
    /// Serve one device in the foreground (started by `attach`)
    #[command(hide = true)]
    Serve(server::ServeArgs),
}

/// `venice swap attach`
#[derive(Args, Debug)]
pub struct AttachArgs {
    /// Amount of memory to borrow
    #[arg(value_name = "SIZE")]
    size: ByteSize,
    /// Name in `list` and `detach` [default: swap0, or the next free one]
    #[arg(long, value_name = "NAME", value_parser = plan::name)]
    name: Option<String>,
    /// Port to the donors [default: the rack's]
    #[arg(long, value_parser = port_parser())]
    port: Option<PortKind>,
    /// Copies of swapped memory, each on another node: 1 to 3 [default: 2, or 1 with a warning if
    /// the rack has no room for 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_COPIES))]
    copies: Option<u32>,
    /// Destinations for memory that a node reclaims while the device is in use, in this order:
    /// donors (other nodes), local (this machine's memory, locked, as far as it is available)
    /// [default: donors,local]
    #[arg(long, value_name = "PLACES", value_delimiter = ',', value_parser = str::parse::<Reclaim>)]
    reclaim_to: Option<Vec<Reclaim>>,
    /// Borrow from these nodes only; may be repeated
    #[arg(long, value_name = "NODE", value_parser = crate::name::check)]
    donor: Vec<String>,
    /// Show where the memory would be placed, and why; borrow nothing (`venice place`)
    #[arg(long)]
    dry_run: bool,
    /// With --dry-run: print JSON as `venice place --json` does
    #[arg(long, requires = "dry_run")]
    json: bool,
    /// Placement policy: nearest (near donors with much free memory), spread (evenly over all) or
    /// pack (as few as possible) [default: the rack's, initially nearest]
    #[arg(long, value_name = "nearest|spread|pack")]
    placement: Option<Policy>,
    /// Bandwidth to reserve on its links, spread evenly over the memory: 2Gbps. A donor grants no
    /// more than its link has free; grants keep their reservation (`venice links`, `venice grants`)
    #[arg(long, value_name = "RATE", value_parser = parse_bandwidth)]
    bandwidth: Option<NonZeroU64>,
    /// Queue if the rack or your quota has no room, for at most this time: 90s, 10m, 12h. `venice
    /// queue` lists queued requests; Ctrl-C cancels
    #[arg(long, value_name = "TIME", value_parser = duration)]
    wait: Option<Duration>,
    /// Priority in the queue, 0 to 255; higher is served first. Above 100 requires root on the
    /// Monitor Node's machine (--priority is the kernel's, of swap areas)
    #[arg(long, value_name = "N", default_value_t = DEFAULT_PRIORITY)]
    rack_priority: u8,
    /// Preempt grants of lower priority if that makes room: your own; as root on the Monitor Node's
    /// machine anybody's
    #[arg(long, requires = "wait")]
    preempt: bool,
    /// Node that this machine belongs to, where nodes relay [default: the first]
    #[arg(long, value_name = "NODE", value_parser = crate::name::check)]
    node: Option<String>,
    /// Requests served at a time, each by a thread with its own buffer; with 1, reads wait for
    /// writes [default: the number of processors, 2 to 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: Option<u16>,
    /// Priority of the swap area; the kernel fills higher ones first
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u16).range(..=32767))]
    priority: u16,
    /// Path of requests from the kernel: ublk (Linux 6.13), nbd, or a FUSE file under a loop
    /// device, over io_uring (fuse-ring, Linux 6.14) or /dev/fuse (fuse) [default: the first that
    /// the kernel has]
    #[arg(long, value_name = "ublk|nbd|fuse-ring|fuse")]
    device: Option<plan::Device>,
}

/// `venice swap detach`
#[derive(Args, Debug)]
pub struct DetachArgs {
    /// Name of the device
    #[arg(value_name = "NAME", required_unless_present = "all")]
    name: Option<String>,
    /// Detach all devices
    #[arg(long, conflicts_with = "name")]
    all: bool,
}

/// `venice swap list`
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Print a list of objects; bytes, seconds and microseconds are numbers
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn execute(command: &SwapCommand, monitor: Option<&str>) -> anyhow::Result<i32> {
    match command {
        SwapCommand::Attach(args) => attach::execute(args, monitor),
        SwapCommand::Detach(args) => detach::execute(args),
        SwapCommand::List(args) => list::execute(args),
        SwapCommand::Anchor(args) => anchor::execute(args),
        SwapCommand::Helper(args) => helper::execute(args, monitor),
        SwapCommand::Session(args) => helper::session(args, monitor),
        SwapCommand::Serve(args) => server::execute(args),
    }
}

/// Text below `venice swap --help`.
pub const HELP: &str = "\
EXAMPLES:
  sudo venice swap attach 4GiB                4 GiB of other nodes' memory as a swap device
  venice swap list
  sudo venice swap anchor jobs/render         for programs in a memory cgroup of your own
  sudo venice swap detach swap0

For a single program, within a memory cgroup: venice run --mode swap.";

const HELP_ATTACH: &str = "\
EXAMPLES:
  sudo venice swap attach 4GiB
  sudo venice swap attach 16GiB --name far --port udp --donor node2 --donor node3
  sudo venice swap attach 1GiB --priority 10  behind other swap areas
  sudo venice swap attach 8GiB --wait 10m     queue if the rack is full
  sudo venice swap attach 1GiB --copies 1     half the memory; pages die with their node
  sudo venice swap attach 4GiB --reclaim-to donors
                                              never use this machine's memory

The device belongs to the whole machine: the kernel may move pages of any program there. It stays until
it is detached; its server runs in the background, with its log in the run directory.";

const HELP_DETACH: &str = "\
EXAMPLES:
  sudo venice swap detach swap0
  sudo venice swap detach --all

Everything on the device is read back first, which takes a while. Without room for it, in memory or in a
memory cgroup at its limit, the device stays and the command reports why. A device with a dead server is
removed: programs that touch its contents get SIGBUS.";

const HELP_LIST: &str = "\
EXAMPLES:
  venice swap list
  venice swap list --json | jq '.[] | {name, device, used_bytes, request_p99_us}'

STATE: up, detaching, silent (the server runs but does not answer: it is stopped, or hangs), dead (the
server ended; `venice swap detach` removes the device). USED is what the kernel has stored there, FAR
the part that donors store (zero pages are not sent). COPIES counts the copies of each page on different
nodes; after a loss it shows the progress of the repair, and LOST names the nodes. READ and WRITE are
present rates, P50 and P99 request times since the device was attached.";
