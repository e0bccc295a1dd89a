//! `venice swap`: borrowed memory as a block device that the kernel itself swaps to.
//!
//! Each device has a server, a process of its own that outlives the command that started it
//! ([`server`]). Its folder in the run directory holds what it is to serve ([`plan`]), its log, and
//! the socket over which it tells how it does and is asked to end ([`control`]).

mod anchor;
mod attach;
mod control;
mod detach;
mod list;
mod plan;
mod server;
mod status;

use std::num::NonZeroU64;
use std::time::Duration;

use clap::{Args, Subcommand};
use venice_control::{DEFAULT_PRIORITY, Policy};
use venice_fabric::parse_bandwidth;
use venice_wire::ByteSize;

pub use attach::{attach, warn_of_one_copy};
pub use detach::{detach, detach_all};
pub use list::of_device as status;
pub use plan::{Plan, Reclaim, Size, check_size};
pub use server::RUN_GROUP;
pub use status::Status;

use crate::identity::duration;
use crate::rack::PortKind;

/// Most copies of what is swapped: what a run block has places for.
const MAX_COPIES: i64 = venice_recipient::MOST_COPIES as i64;

/// `venice swap`
#[derive(Subcommand, Debug)]
pub enum SwapCommand {
    /// Borrow memory and have the kernel swap to it
    #[command(after_help = HELP_ATTACH)]
    Attach(AttachArgs),
    /// Bring everything home and give the memory back, or say why not
    #[command(after_help = HELP_DETACH)]
    Detach(DetachArgs),
    /// List the swap devices of this machine
    #[command(after_help = HELP_LIST)]
    List(ListArgs),
    /// Keep the kernel from killing the programs of a cgroup while their swap device has room
    #[command(after_help = anchor::HELP)]
    Anchor(anchor::AnchorArgs),
    /// Serve one device in the foreground (started by `attach`)
    #[command(hide = true)]
    Serve(server::ServeArgs),
}

/// `venice swap attach`
#[derive(Args, Debug)]
pub struct AttachArgs {
    /// How much to borrow
    #[arg(value_name = "SIZE")]
    size: ByteSize,
    /// What it is called in `list` and `detach` [default: swap0, or the next that is free]
    #[arg(long, value_name = "NAME", value_parser = plan::name)]
    name: Option<String>,
    /// How to reach the donors [default: the rack's]
    #[arg(long, value_enum)]
    port: Option<PortKind>,
    /// Copies of what is swapped, each on another node: 1 to 3 [default: 2, or 1 with a warning
    /// where the rack has no room for 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_COPIES))]
    copies: Option<u32>,
    /// Where to put what a node wants back while the device is in use, in this order: donors (other
    /// nodes), local (this machine's memory, locked, as far as it is available)
    /// [default: donors,local]
    #[arg(long, value_name = "PLACES", value_delimiter = ',', value_parser = str::parse::<Reclaim>)]
    reclaim_to: Option<Vec<Reclaim>>,
    /// Borrow from these nodes only; may be repeated
    #[arg(long, value_name = "NODE", value_parser = crate::name::check)]
    donor: Vec<String>,
    /// Say where the memory would come from, and why, and borrow nothing (`venice place`)
    #[arg(long)]
    dry_run: bool,
    /// With --dry-run: print that as `venice place --json` does
    #[arg(long, requires = "dry_run")]
    json: bool,
    /// Which nodes are borrowed from first: nearest (near ones with much left), spread (all alike)
    /// or pack (as few as can be) [default: the rack's, nearest unless it was told]
    #[arg(long, value_name = "nearest|spread|pack")]
    placement: Option<Policy>,
    /// Traffic its links have to carry, evenly over the memory: 2Gbps. A node gives no more than its
    /// link has left for; what is granted stays promised to it (`venice links`, `venice grants`)
    #[arg(long, value_name = "RATE", value_parser = parse_bandwidth)]
    bandwidth: Option<NonZeroU64>,
    /// Where the rack, or your quota, has no room, wait for it in line, so long at most: 90s, 10m,
    /// 12h. `venice queue` lists who waits; Ctrl-C leaves the line
    #[arg(long, value_name = "TIME", value_parser = duration)]
    wait: Option<Duration>,
    /// 0 to 255, for those who wait: higher ones are served first. Above 100 is for root on the
    /// Monitor Node's machine (--priority is the kernel's, of swap areas)
    #[arg(long, value_name = "N", default_value_t = DEFAULT_PRIORITY)]
    rack_priority: u8,
    /// Have grants of lower priority called back, if that makes room: your own; as root on the
    /// Monitor Node's machine anybody's
    #[arg(long, requires = "wait")]
    preempt: bool,
    /// The node this machine belongs to, where the nodes relay for each other [default: the first]
    #[arg(long, value_name = "NODE", value_parser = crate::name::check)]
    node: Option<String>,
    /// Requests carried at a time, each by a thread with a buffer of its own; with 1, whoever reads
    /// waits for whatever is being written [default: as many as processors, 2 to 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: Option<u16>,
    /// The kernel fills swap areas of a higher priority first
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u16).range(..=32767))]
    priority: u16,
    /// How requests come from the kernel: ublk (Linux 6.13), nbd, or a FUSE file under a loop device,
    /// over io_uring (fuse-ring, Linux 6.14) or by /dev/fuse (fuse) [default: the first of them that
    /// the kernel has]
    #[arg(long, value_name = "ublk|nbd|fuse-ring|fuse")]
    device: Option<plan::Device>,
}

/// `venice swap detach`
#[derive(Args, Debug)]
pub struct DetachArgs {
    /// Which
    #[arg(value_name = "NAME", required_unless_present = "all")]
    name: Option<String>,
    /// All there are
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

/// Does what the command line says.
pub fn execute(command: &SwapCommand, monitor: Option<&str>) -> anyhow::Result<i32> {
    match command {
        SwapCommand::Attach(args) => attach::execute(args, monitor),
        SwapCommand::Detach(args) => detach::execute(args),
        SwapCommand::List(args) => list::execute(args),
        SwapCommand::Anchor(args) => anchor::execute(args),
        SwapCommand::Serve(args) => server::execute(args),
    }
}

/// The examples of the command as a whole.
pub const HELP: &str = "\
EXAMPLES:
  sudo venice swap attach 4GiB                4 GiB of other nodes' memory as a swap device
  venice swap list
  sudo venice swap anchor jobs/render         for programs in a memory cgroup of your own
  sudo venice swap detach swap0

A program alone on it, within a memory cgroup: venice run --mode swap.";

const HELP_ATTACH: &str = "\
EXAMPLES:
  sudo venice swap attach 4GiB
  sudo venice swap attach 16GiB --name far --port udp --donor node2 --donor node3
  sudo venice swap attach 1GiB --priority 10  behind other swap areas
  sudo venice swap attach 8GiB --wait 10m     wait in line where the rack is full
  sudo venice swap attach 1GiB --copies 1     half the memory; a node that dies takes pages along
  sudo venice swap attach 4GiB --reclaim-to donors
                                              nothing of it ever comes to this machine's memory

The device belongs to the whole machine: the kernel moves pages of any program there. It stays
until it is detached; its server runs in the background with its log in the run directory.";

const HELP_DETACH: &str = "\
EXAMPLES:
  sudo venice swap detach swap0
  sudo venice swap detach --all

Everything on the device is brought home first, which takes a while; without room for it, in memory
or in a memory cgroup that is at its limit, the device stays and the command says why. A device
whose server is dead is taken away: programs that touch what was on it get SIGBUS.";

const HELP_LIST: &str = "\
EXAMPLES:
  venice swap list
  venice swap list --json | jq '.[] | {name, device, used_bytes, request_p99_us}'

States: up, detaching, silent (its server is there and does not answer: it is stopped, or hangs),
dead (its server ended; `venice swap detach` clears it away). Used is what the kernel has put there, far what of it the donors hold (pages of zeros are not sent). Copies are how many there are of each page
on different nodes; a device that lost some says how far copying them anew is, and lost names the
nodes. Read and write are rates at present, p50 and p99 times of requests since the device was
attached.";
