//! `venice place`, and `--dry-run` of commands that borrow: where memory would be placed, and why.

use std::num::NonZeroU64;

use clap::Args;
use venice_control::client::Access;
use venice_control::{PlacementPlan, PlacementRow, Policy, bandwidth_text};
use venice_fabric::parse_bandwidth;
use venice_recipient::local_rack::access;
use venice_recipient::{Coding, Wish, home, plan};
use venice_wire::ByteSize;

use crate::listing::table_without;
use crate::rack::{self, PortKind};
use crate::waiting::{WaitArgs, told};
use venice_cli::failure::{EXIT_FAILURE, Usage};
use venice_cli::terminal::{self, Align};

/// Text below `venice place --help`.
pub const HELP: &str = "\
EXAMPLES:
  venice place 2GiB                           where two copies of 2 GiB would be, and why
  venice place 2GiB --copies 1 --placement pack
  venice place 2GiB --bandwidth 4Gbps         from nodes whose links have that much free
  venice place 6GiB --coding 4+2 --json | jq '.nodes[] | select(.slabs > 0)'

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
    /// Print an object: policy, slab_bytes, slabs, copies, refusal (empty: none), would_wait (the
    /// queue position, with --wait; empty: it would not wait), nodes
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
    let wish = Wish {
        remote_bytes: Some(args.size.0),
        copies: args.copies,
        coding: args.coding,
        donors: args.donor.clone(),
        placement: args.placement,
        bandwidth_bps: args.bandwidth.map_or(0, NonZeroU64::get),
        waiting: args.waiting.waiting(),
        purpose: "venice place".into(),
        ..Wish::default()
    };
    // Over udp every rack can be borrowed from, however it is wired.
    show(&access, &wish, (PortKind::Udp, args.node.as_deref()), args.json)
}

/// Prints the placement of `wish` for a program of that port and node.
pub fn show(
    access: &Access,
    wish: &Wish,
    (port, node): (PortKind, Option<&str>),
    json: bool,
) -> anyhow::Result<i32> {
    let home = home::find(access, port.into(), node).map_err(told)?;
    let wish = Wish { home: home.map(|home| home.name).unwrap_or_default(), ..wish.clone() };
    show_wish(access, &wish, json)
}

/// Prints the placement of `wish` without changing it.
pub fn show_wish(access: &Access, wish: &Wish, json: bool) -> anyhow::Result<i32> {
    let plan = plan(access, wish).map_err(told)?;
    match json {
        true => terminal::say_json(&plan)?,
        false => terminal::say(text(&plan))?,
    }
    Ok(if plan.refusal.is_empty() || !plan.would_wait.is_empty() { 0 } else { EXIT_FAILURE })
}

fn text(plan: &PlacementPlan) -> String {
    let columns = [
        ("node", Align::Left),
        ("gives", Align::Right),
        ("free", Align::Right),
        ("hops", Align::Right),
        ("distance", Align::Right),
        ("traffic", Align::Right),
        ("stall", Align::Right),
        ("score", Align::Right),
        ("link left", Align::Right),
        ("why", Align::Left),
    ];
    let of_slabs = |slabs: u32| match slabs {
        0 => "-".to_owned(),
        slabs => terminal::bytes(u64::from(slabs) * plan.slab_bytes),
    };
    let less = |slabs: u32| if slabs == 0 { "-".to_owned() } else { format!("-{slabs}") };
    let line = |row: &PlacementRow| {
        vec![
            row.node.clone(),
            of_slabs(row.slabs),
            of_slabs(row.free_slabs),
            row.hops.map_or("-".to_owned(), |hops| hops.to_string()),
            less(row.distance_slabs),
            less(row.traffic_slabs),
            less(row.stall_slabs),
            row.score_slabs.to_string(),
            row.link_left_bps.map_or("-".to_owned(), bandwidth_text),
            row.why.clone(),
        ]
    };
    let mut rows: Vec<&PlacementRow> = plan.nodes.iter().collect();
    // Largest share first, then by score.
    rows.sort_by_key(|row| (std::cmp::Reverse((row.slabs, row.score_slabs)), row.node.len()));
    let table = table_without(&["link left"], &columns, rows.into_iter().map(line).collect());
    let asked = of_slabs(plan.slabs);
    let copies = match plan.copies {
        1 => String::new(),
        copies => format!(", {copies} shares on different nodes"),
    };
    let outcome = match plan.refusal.as_str() {
        "" => "would be granted; nothing was".to_owned(),
        refusal if plan.would_wait.is_empty() => format!("would be refused: {refusal}"),
        refusal => format!("would wait {}: {refusal}", plan.would_wait),
    };
    format!("{table}\n{asked} in all{copies}, placement {}: {outcome}.", plan.policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_share_is_listed_first() {
        let row = |node: &str, slabs, free_slabs, distance_slabs| PlacementRow {
            node: node.into(),
            slabs,
            free_slabs,
            hops: Some(distance_slabs / 4),
            distance_slabs,
            traffic_slabs: 0,
            stall_slabs: 0,
            score_slabs: i64::from(free_slabs) - i64::from(distance_slabs),
            link_left_bps: None,
            why: "chosen".into(),
        };
        let nodes = vec![row("node1", 0, 8, 12), row("node2", 1, 8, 8), row("node3", 3, 8, 4)];
        let plan = PlacementPlan {
            policy: "nearest".into(),
            slab_bytes: 16 << 20,
            slabs: 4,
            copies: 2,
            refusal: String::new(),
            would_wait: String::new(),
            nodes,
        };
        let shown = text(&plan);
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let lines: Vec<_> = shown.lines().map(words).collect();
        assert_eq!(lines[1][..5], ["node3", "48MiB", "128MiB", "1", "-4"]);
        assert_eq!((lines[2][0].as_str(), lines[3][0].as_str()), ("node2", "node1"));
        assert!(shown.ends_with("placement nearest: would be granted; nothing was."), "{shown}");
        let refused = PlacementPlan { refusal: "no room".into(), ..plan };
        let said = text(&refused);
        assert!(said.ends_with("would be refused: no room."), "{said}");
        let waits = text(&PlacementPlan { would_wait: "at rank 2 of the queue".into(), ..refused });
        assert!(waits.ends_with("would wait at rank 2 of the queue: no room."), "{waits}");
    }
}
