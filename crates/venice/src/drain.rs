//! `venice drain`: empties a node for maintenance.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use serde::Serialize;
use venice_control::{GrantRow, NodeRow};

use crate::rack;
use crate::registry::{self, Registry, block_on};
use venice_cli::terminal;

/// Interval between two looks at the remaining grants.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Time after which the user is told of devices that work.
const SLOW: Duration = Duration::from_secs(5);

/// `venice drain`
#[derive(Args, Debug)]
pub struct DrainArgs {
    /// Node to drain
    #[arg(value_name = "NODE", value_parser = crate::name::check)]
    node: String,
    /// Lend again on a drained node
    #[arg(long, conflicts_with_all = ["no_wait", "wait_s"])]
    undo: bool,
    /// Return without waiting until the node is empty
    #[arg(long)]
    no_wait: bool,
    /// Wait at most this many seconds; then exit with code 1 while draining goes on
    #[arg(long, value_name = "SECONDS", conflicts_with = "no_wait", value_parser = seconds)]
    wait_s: Option<u64>,
    /// Print an object: node, draining, granted_bytes, grants (remaining ones, as `venice grants`)
    #[arg(long)]
    json: bool,
}

/// The remaining grants of a node.
#[derive(Debug, Serialize)]
struct Left {
    node: String,
    draining: bool,
    granted_bytes: u64,
    grants: Vec<GrantRow>,
}

fn seconds(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number of seconds: write for example 600"))
}

/// Drains the node, or ends its draining.
pub fn execute(args: &DrainArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    let addr = rack::monitor_address(monitor)?;
    let left = block_on(drain(args, &addr))?;
    let is_late = !left.grants.is_empty() && !args.no_wait && !args.undo;
    if args.json {
        terminal::say_json(&left)?;
    } else {
        terminal::say(said(args, &left))?;
    }
    Ok(i32::from(is_late))
}

async fn drain(args: &DrainArgs, addr: &str) -> anyhow::Result<Left> {
    let mut registry = registry::connect(addr).await?;
    registry.drain(&args.node, args.undo).await?;
    let began = Instant::now();
    let is_over = || args.wait_s.is_some_and(|s| began.elapsed() >= Duration::from_secs(s));
    let mut left = look(&mut registry, &args.node).await?;
    if args.no_wait || args.undo || left.grants.is_empty() {
        return Ok(left);
    }
    let bar = terminal::progress(left.granted_bytes >> 20, "leaving, MiB");
    let most_bytes = left.granted_bytes;
    let (mut told, mut told_busy) = (Vec::new(), BTreeSet::new());
    while !left.grants.is_empty() && !is_over() {
        let now = holders(&left.grants);
        if now != told {
            let lines = now.iter().map(|line| format!("\n  {line}"));
            bar.suspend(|| {
                terminal::remark(format!(
                    "venice: {} still lends to:{}",
                    args.node,
                    lines.collect::<String>()
                ));
            });
            told = now;
        }
        if began.elapsed() >= SLOW {
            for (id, line) in busy(&left.grants) {
                if told_busy.insert(id) {
                    bar.suspend(|| terminal::remark(format!("venice: {line}")));
                }
            }
        }
        bar.set_position(most_bytes.saturating_sub(left.granted_bytes) >> 20);
        tokio::time::sleep(LOOK_EVERY).await;
        left = look(&mut registry, &args.node).await?;
        if !left.draining {
            bar.finish_and_clear();
            bail!("the drain of {} was undone by another command", args.node);
        }
    }
    bar.finish_and_clear();
    Ok(left)
}

async fn look(registry: &mut Registry, name: &str) -> anyhow::Result<Left> {
    let nodes = registry.nodes().await?;
    let Some(NodeRow { draining, .. }) = nodes.into_iter().find(|row| row.name == name) else {
        bail!("node {name} has left the rack");
    };
    let mut grants = registry.grants().await?;
    grants.retain(|grant| grant.donor == name && grant.state != "lost");
    let granted_bytes = grants.iter().map(|grant| grant.bytes).sum();
    Ok(Left { node: name.to_owned(), draining, granted_bytes, grants })
}

/// Describes the remaining grants, one line each.
fn holders(grants: &[GrantRow]) -> Vec<String> {
    let line = |grant: &GrantRow| {
        let GrantRow { id, recipient, purpose, .. } = grant;
        let what = match &*grant.address {
            "" => terminal::bytes(grant.bytes),
            device => device.to_owned(),
        };
        terminal::printable(&format!("{recipient} ({purpose}): {what}, grant {id}"))
    };
    grants.iter().map(line).collect()
}

/// Describes the devices that work: their programs cannot leave them before. Each with its grant.
fn busy(grants: &[GrantRow]) -> Vec<(u64, String)> {
    let works = grants.iter().filter(|grant| grant.busy_ratio.is_some_and(|it| it > 0.0));
    let line = |grant: &GrantRow| {
        let (id, device) = (grant.id, &grant.address);
        let recipient = &grant.recipient;
        let said = format!("grant {id} ({device}) waits for running commands of {recipient}");
        (id, terminal::printable(&said))
    };
    works.map(line).collect()
}

fn said(args: &DrainArgs, left: &Left) -> String {
    let node = &args.node;
    match (args.undo, left.grants.is_empty()) {
        (true, _) => format!("{node} lends again."),
        (false, true) => format!("{node} is empty and gets no new grants."),
        (false, false) => {
            let lines = holders(&left.grants).into_iter().map(|line| format!("\n  {line}"));
            let bytes = terminal::bytes(left.granted_bytes);
            let lines: String = lines.collect();
            format!("{node} gets no new grants; it still lends {bytes} to:{lines}")
        }
    }
}

/// Text below `venice drain --help`.
pub const HELP: &str = "\
EXAMPLES:
  venice drain node3                          and wait until it is empty
  venice drain node3 --no-wait
  venice drain node3 --wait-s 600 || echo 'not empty yet'
  venice drain --undo node3

The node gets no new grants until --undo, across restarts of its agent and of the Monitor Node. Memory
that programs have there moves to other nodes while they run, as far as those have room, else to the
program's own machine (--reclaim-to); OpenCL devices move to equal ones of other nodes, if those have
some free. `venice status` shows the progress. Some memory cannot move and
stays lent until its program ends: mapped memory (--mode window) of programs that may not use
userfaultfd or are using devices; their `venice run` reports why. While it waits, the command lists the
remaining recipients. If it is interrupted, the node goes on draining. `venice nodes` shows the node as
draining, then as drained: its agent can then be stopped without loss.";

#[cfg(test)]
mod tests {
    use venice_control::ResourceKind;

    use super::*;

    fn row(id: u64, address: &str, busy_ratio: Option<f64>) -> GrantRow {
        let kind =
            if address.is_empty() { ResourceKind::Memory } else { ResourceKind::Accelerator };
        GrantRow {
            id,
            donor: "node2".into(),
            donor_epoch: 1,
            owner_user: "ada".into(),
            owner_node: "node1".into(),
            recipient: "node1".into(),
            home: String::new(),
            hops: None,
            kind,
            address: address.into(),
            bytes: 256 << 20,
            bandwidth_bps: 0,
            state: "committed".into(),
            lease_s: 2.0,
            age_s: 1.0,
            purpose: "run".into(),
            priority: 100,
            preempted_in_s: None,
            ownership: 1,
            busy_ratio,
            in_bytes: None,
            out_bytes: None,
            commands: None,
        }
    }

    #[test]
    fn working_devices_are_named() {
        let rows = [row(1, "", None), row(2, "opencl0", Some(0.0)), row(3, "opencl1", Some(0.5))];
        let said = "grant 3 (opencl1) waits for running commands of node1".to_owned();
        assert_eq!(busy(&rows), [(3, said)]);
        assert_eq!(holders(&rows)[1], "node1 (run): opencl0, grant 2");
        assert_eq!(holders(&rows)[0], "node1 (run): 256MiB, grant 1");
    }
}
