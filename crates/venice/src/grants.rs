//! `venice grants`: the table of grants, and grants that change hands.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::json;
use venice_control::{GrantRow, MAX_TRANSFER_GRANTS, Owner, TransferState, Transferred};
use venice_recipient::local_rack::access;
use venice_recipient::{Transfer, claim, transfer};
use venice_wire::GrantId;

use crate::get::hold_claimed;
use crate::identity::duration;
use crate::listing::{self, ListArgs};
use crate::rack;
use crate::registry::{self, block_on};
use venice_cli::failure::{EXIT_FAILURE, Usage};
use venice_cli::terminal::{self, Align};

/// Text below `venice grants transfer --help`.
const HELP_TRANSFER: &str = "\
EXAMPLES:
  venice grants transfer 7 --to bob           bob, on the node of the present owner
  venice grants transfer 7 8 9 --to bob@node2
  venice grants transfer 7 --to bob@node2 --claim-within 10m --json

All of the grants change hands, or none. From then on the donors refuse the old owner, with the next
access; the memory keeps its content. Each grant has a successor with another number, which is printed.
The new owner takes them over with `venice grants claim`, within --claim-within: after that they end.
Memory that was requested together (copies, fragments) is transferred together. It counts for the old
owner's quota until the new owner claims it. Memory that a program has mapped (port shm) is refused: a
mapping cannot be taken away; use --port udp for such memory.

Requires the owner of the grants, or root on the Monitor Node's machine.";

/// Text below `venice grants claim --help`.
const HELP_CLAIM: &str = "\
EXAMPLES:
  venice grants claim                         held until Ctrl-C
  venice grants claim --wait 10m -- ./job     started before the transfer
  venice grants claim --transfer 6f1d0c... --json

Takes over what was transferred to you and not claimed yet, and holds it as `venice get` does: renews
the leases until it is interrupted, or until the command after -- ends, whose exit code it then
returns. The command's environment has VENICE_GRANT_ID, _KIND, _NODE, _ADDRESS, _BYTES, _CAPABILITIES
and _ENDPOINTS (see `venice get --help`). What is lost by then, or has a service that does not start,
is reported; the rest is held. If nothing was transferred, the exit code is 1.

What you claim counts for your quota. If it is too much, nothing is claimed: release something and claim
again.";

/// `venice grants`
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct GrantsArgs {
    #[command(subcommand)]
    what: Option<GrantsCommand>,
    #[command(flatten)]
    list: ListArgs,
}

/// `venice grants ...`
#[derive(Subcommand, Debug)]
pub enum GrantsCommand {
    /// Transfer grants in use to another user
    #[command(after_help = HELP_TRANSFER)]
    Transfer(TransferArgs),
    /// Take over grants that were transferred to you, and hold them
    #[command(after_help = HELP_CLAIM)]
    Claim(ClaimArgs),
}

/// `venice grants transfer`
#[derive(Args, Debug)]
pub struct TransferArgs {
    /// Grants, by the numbers of `venice grants`
    #[arg(value_name = "ID", required = true)]
    ids: Vec<u64>,
    /// New owner
    #[arg(long, value_name = "USER[@NODE]", value_parser = new_owner)]
    to: (String, Option<String>),
    /// Time for the new owner to claim, at most 10m; less than a lease counts as a lease
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    claim_within: Duration,
    /// Print an object: transfer (its number), to, grants (objects: from, to, state)
    #[arg(long)]
    json: bool,
}

/// `venice grants claim`
#[derive(Args, Debug)]
pub struct ClaimArgs {
    /// Claim this transfer only [default: all transfers to you]
    #[arg(long, value_name = "NUMBER", value_parser = Transfer::parse_number)]
    transfer: Option<u128>,
    /// Wait for a transfer, for at most this time: 90s, 10m
    #[arg(long, value_name = "TIME", value_parser = duration)]
    wait: Option<Duration>,
    /// Print a list of objects: id, kind, node, address, bytes, capabilities, lease_s
    #[arg(long)]
    json: bool,
    /// Command to run while the grants are held
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Parses `USER[@NODE]`.
fn new_owner(text: &str) -> Result<(String, Option<String>), String> {
    if !text.is_empty() && !text.contains('@') {
        return Ok((text.to_owned(), None));
    }
    let wrong = |_| format!("{text:?} is no owner: write USER or USER@NODE");
    let Owner { node, user, .. } = text.parse().map_err(wrong)?;
    Ok((user, Some(node)))
}

/// `venice grants ...`
pub fn execute(args: &GrantsArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    match &args.what {
        None => listing::grants(&args.list, monitor),
        Some(GrantsCommand::Transfer(args)) => hand_over(args, monitor),
        Some(GrantsCommand::Claim(args)) => take_over(args, monitor),
    }
}

fn hand_over(args: &TransferArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    if args.ids.len() > MAX_TRANSFER_GRANTS {
        return Err(Usage(format!("a transfer is of 1 to {MAX_TRANSFER_GRANTS} grants")).into());
    }
    let addr = rack::monitor_address(monitor)?;
    let to = match &args.to {
        (user, Some(node)) => Owner { node: node.clone(), user: user.clone(), is_bound: false },
        (user, None) => {
            let rows = block_on(async { registry::connect(&addr).await?.grants().await })?;
            Owner { node: present_node(&rows, args.ids[0])?, user: user.clone(), is_bound: false }
        }
    };
    let ids: Vec<GrantId> = args.ids.iter().copied().map(GrantId).collect();
    let made = transfer(&access(&addr), &ids, to.clone(), args.claim_within)?;
    let (number, to) = (made.number_text(), to.to_string());
    let row = |it: &Transferred| json!({ "from": it.from, "to": it.to, "state": it.state.name() });
    let rows: Vec<_> = made.grants.iter().map(row).collect();
    match args.json {
        true => terminal::say_json(&json!({ "transfer": number, "to": to, "grants": rows }))?,
        false => {
            terminal::say(table(&made.grants))?;
            terminal::remark(format!(
                "venice: {to} takes them over with: venice grants claim --transfer {number}"
            ));
        }
    }
    let is_lost = made.grants.iter().any(|it| it.state == TransferState::Gone);
    Ok(if is_lost { EXIT_FAILURE } else { 0 })
}

/// Returns the node of the grant's owner.
fn present_node(rows: &[GrantRow], id: u64) -> anyhow::Result<String> {
    let row = rows.iter().find(|row| row.id == id);
    let row = row.with_context(|| {
        format!("there is no grant {id}: `venice grants` shows those there are")
    })?;
    match row.owner_node.is_empty() {
        true => Err(Usage(format!("nobody owns grant {id}: name USER@NODE")).into()),
        false => Ok(row.owner_node.clone()),
    }
}

fn take_over(args: &ClaimArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    let addr = rack::monitor_address(monitor)?;
    let access = access(&addr);
    let within = args.wait.unwrap_or_default();
    let held = hold_claimed(&access, (&args.command, args.json), |tell| {
        claim(&access, args.transfer, within, tell)
    })?;
    match held {
        Some(code) => Ok(code),
        None => {
            let rows = block_on(async { registry::connect(&addr).await?.grants().await })?;
            terminal::remark(why_no_claim(args.transfer, &rows));
            Ok(EXIT_FAILURE)
        }
    }
}

/// Explains why nothing could be claimed: an owner is a user at a node.
fn why_no_claim(transfer: Option<u128>, rows: &[GrantRow]) -> String {
    if let Some(number) = transfer {
        return format!(
            "venice: there is no transfer {number:032x} to you, or it is over: without --transfer all \
             transfers to you are claimed"
        );
    }
    let unclaimed = rows.iter().filter(|row| row.ownership > 1 && row.recipient.is_empty());
    let owners: BTreeSet<String> =
        unclaimed.map(|row| format!("{}@{}", row.owner_user, row.owner_node)).collect();
    match owners.is_empty() {
        true => "venice: nothing was transferred to you: ask the owner to run `venice grants \
                 transfer`, or wait for it with --wait"
            .to_owned(),
        false => format!(
            "venice: nothing was transferred to you at this node; unclaimed are transfers to {}: if \
             that is your name at another node, claim there, or have the owner name USER@NODE of \
             this one",
            owners.into_iter().collect::<Vec<_>>().join(", ")
        ),
    }
}

fn table(rows: &[Transferred]) -> String {
    let columns = [("grant", Align::Right), ("successor", Align::Right), ("state", Align::Left)];
    let line = |row: &Transferred| {
        vec![row.from.to_string(), row.to.to_string(), row.state.name().to_owned()]
    };
    terminal::table(&columns, rows.iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_user_and_node() {
        let owner = |user: &str, node: Option<&str>| Ok((user.to_owned(), node.map(str::to_owned)));
        assert_eq!(new_owner("bob"), owner("bob", None));
        assert_eq!(new_owner("bob@n2"), owner("bob", Some("n2")));
        assert_eq!(new_owner("b@c@n2"), owner("b@c", Some("n2")));
        for wrong in ["", "@n2", "bob@"] {
            assert!(new_owner(wrong).is_err(), "{wrong}");
        }
    }
}
