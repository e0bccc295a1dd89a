//! `venice place`, and `--dry-run` of commands that borrow: where memory would be placed, and why.

use std::num::NonZeroU64;

use clap::Args;
use venice_control::Policy;
use venice_control::client::Access;
use venice_fabric::parse_bandwidth;
use venice_recipient::local_rack::access;
use venice_recipient::{AllocationSpec, Coding, MemorySpec, home};
use venice_wire::ByteSize;

use crate::plan;
use crate::rack::{self, PortKind};
use crate::waiting::{WaitArgs, told};
use venice_cli::failure::Usage;

/// Text below `venice place --help`.
pub const HELP: &str = "\
EXAMPLES:
  venice place 2GiB                           where two copies of 2 GiB would be, and why
  venice place 2GiB --copies 1 --placement pack
  venice place 2GiB --bandwidth 4Gbps         from nodes whose links have that much free
  venice place 6GiB --coding 4+2 --json | jq '.memory.nodes[] | select(.slabs > 0)'

Nothing is granted, and the result may differ a moment later. SCORE is a node's free memory less
penalties for its distance, the traffic on the route and memory stalls of its machine, all in slabs of
16 MiB. nearest takes slab by slab from the node with the highest score, spread from the node that has
given least, pack from as few nodes as possible. The exit code is 1 if the rack would refuse; --wait
also shows how the request would be queued. For a program's own request: venice run --dry-run.";

/// `venice place`
#[derive(Args, Debug)]
pub struct PlaceArgs {
    /// Amount of memory
    #[arg(value_name = "SIZE")]
    size: ByteSize,
    /// Copies, each on another node: 1 to 3 [default: 2, or 1 if the rack has no room for 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_COPIES))]
    copies: Option<u32>,
    /// Erasure-code instead: K data and M parity fragments, each on another node
    #[arg(long, value_name = "K+M", conflicts_with = "copies")]
    coding: Option<Coding>,
    /// Placement policy [default: the rack's, initially nearest]
    #[arg(long, value_name = "nearest|spread|pack")]
    placement: Option<Policy>,
    /// Bandwidth to reserve on its links, spread evenly over the memory: 2Gbps
    #[arg(long, value_name = "RATE", value_parser = parse_bandwidth)]
    bandwidth: Option<NonZeroU64>,
    /// Borrow from these nodes only; may be repeated
    #[arg(long, value_name = "NODE", value_parser = crate::name::check)]
    donor: Vec<String>,
    /// Node that the program belongs to, where nodes relay [default: the first]
    #[arg(long, value_name = "NODE", value_parser = crate::name::check)]
    node: Option<String>,
    #[command(flatten)]
    waiting: WaitArgs,
    /// Print an object: refusal (empty: none), would_wait (the queue position, with --wait; empty: it
    /// would not wait), memory (policy, slab_bytes, slabs, copies, nodes)
    #[arg(long)]
    json: bool,
}

/// Most copies: the slots of a run block.
const MAX_COPIES: i64 = venice_recipient::MOST_COPIES as i64;

/// `venice place`
pub fn execute(args: &PlaceArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    if args.size.0 == 0 {
        return Err(Usage("SIZE must be at least one byte".into()).into());
    }
    let access = access(&rack::monitor_address(monitor)?);
    let memory = MemorySpec {
        remote_bytes: Some(args.size.0),
        copies: args.copies,
        coding: args.coding,
        bandwidth_bps: args.bandwidth.map_or(0, NonZeroU64::get),
        ..MemorySpec::default()
    };
    let spec = AllocationSpec {
        donors: args.donor.clone(),
        placement: args.placement,
        waiting: args.waiting.waiting(),
        purpose: "venice place".into(),
        ..AllocationSpec::of_memory(memory)
    };
    // Over udp every rack can be borrowed from, however it is wired.
    show(&access, &spec, (PortKind::Udp, args.node.as_deref()), args.json)
}

/// Prints the plan of an allocation for a program of that port and node.
pub fn show(
    access: &Access,
    spec: &AllocationSpec,
    (port, node): (PortKind, Option<&str>),
    json: bool,
) -> anyhow::Result<i32> {
    let home = home::find(access, port, node).map_err(told)?;
    let home = home.map(|home| home.name).unwrap_or_default();
    plan::show(access, &AllocationSpec { home, ..spec.clone() }, json)
}
