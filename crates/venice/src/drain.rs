//! `venice drain`: a node is to be empty, for maintenance.

use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use serde::Serialize;
use venice_control::{GrantRow, NodeRow};

use crate::rack;
use crate::registry::{self, Registry, block_on};
use venice_cli::terminal;

/// How often it looks what is left.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// `venice drain`
#[derive(Args, Debug)]
pub struct DrainArgs {
    /// Which node
    #[arg(value_name = "NODE", value_parser = crate::name::check)]
    node: String,
    /// Place memory on it again
    #[arg(long, conflicts_with_all = ["no_wait", "wait_s"])]
    undo: bool,
    /// Do not wait until it is empty
    #[arg(long)]
    no_wait: bool,
    /// Wait so many seconds at most; then exit code 1, and the node goes on draining
    #[arg(long, value_name = "SECONDS", conflicts_with = "no_wait", value_parser = seconds)]
    wait_s: Option<u64>,
    /// Print an object: node, draining, granted_bytes, grants (those in the way, as `venice grants`)
    #[arg(long)]
    json: bool,
}

/// What is left on a node.
#[derive(Debug, Serialize)]
struct Left {
    node: String,
    draining: bool,
    granted_bytes: u64,
    grants: Vec<GrantRow>,
}

fn seconds(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is no number of seconds: write as in 600"))
}

/// Drains it, or takes that back.
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
    let mut told = Vec::new();
    while !left.grants.is_empty() && !is_over() {
        let now = holders(&left.grants);
        if now != told {
            let lines = now.iter().map(|line| format!("\n  {line}"));
            bar.suspend(|| {
                terminal::remark(format!(
                    "venice: {} still lends, to:{}",
                    args.node,
                    lines.collect::<String>()
                ));
            });
            told = now;
        }
        bar.set_position(most_bytes.saturating_sub(left.granted_bytes) >> 20);
        tokio::time::sleep(LOOK_EVERY).await;
        left = look(&mut registry, &args.node).await?;
        if !left.draining {
            bar.finish_and_clear();
            bail!("somebody has taken the drain of {} back", args.node);
        }
    }
    bar.finish_and_clear();
    Ok(left)
}

async fn look(registry: &mut Registry, name: &str) -> anyhow::Result<Left> {
    let nodes = registry.nodes().await?;
    let Some(NodeRow { draining, .. }) = nodes.into_iter().find(|row| row.name == name) else {
        bail!("the rack has no node named {name} any more");
    };
    let mut grants = registry.grants().await?;
    grants.retain(|grant| grant.donor == name && grant.state != "lost");
    let granted_bytes = grants.iter().map(|grant| grant.bytes).sum();
    Ok(Left { node: name.to_owned(), draining, granted_bytes, grants })
}

/// Who is in the way, a line each.
fn holders(grants: &[GrantRow]) -> Vec<String> {
    let line = |grant: &GrantRow| {
        let GrantRow { id, recipient, purpose, .. } = grant;
        format!("{recipient} ({purpose}): {}, grant {id}", terminal::bytes(grant.bytes))
    };
    grants.iter().map(line).collect()
}

fn said(args: &DrainArgs, left: &Left) -> String {
    let node = &args.node;
    match (args.undo, left.grants.is_empty()) {
        (true, _) => format!("{node} lends again."),
        (false, true) => format!("{node} is empty, and nothing is placed on it."),
        (false, false) => {
            let lines = holders(&left.grants).into_iter().map(|line| format!("\n  {line}"));
            let bytes = terminal::bytes(left.granted_bytes);
            let lines: String = lines.collect();
            format!("Nothing more is placed on {node}; it still lends {bytes}, to:{lines}")
        }
    }
}

/// The examples.
pub const HELP: &str = "\
EXAMPLES:
  venice drain node3                          and wait until nobody has memory of it
  venice drain node3 --no-wait
  venice drain node3 --wait-s 600 || echo 'not empty yet'
  venice drain --undo node3

Nothing more is placed on the node, until that is taken back: across restarts of its agent and of the
Monitor Node. What programs have there moves to other nodes while they run, as far as those have
room, else to their own machine (--reclaim-to); `venice status` shows how far each is. What cannot
move stays lent until its programs end: mapped memory (--mode window) of programs that may have no
userfaultfd or are using devices; their `venice run` says why.
Who is left is said while the command waits. Interrupted, the node goes on draining.
`venice nodes` shows it as draining, and as drained once it is empty: then its agent can be
stopped, and nobody loses anything.";
