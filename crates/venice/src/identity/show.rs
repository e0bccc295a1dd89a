//! `venice identity`: the caller's identity, revoked nodes and refused callers.

use clap::{Args, Subcommand};
use serde::Serialize;
use venice_control::client::MonitorIdentity;
use venice_control::identity::CertificateInfo;
use venice_control::{NodeRow, RefusedCounts, Revocation};
use venice_recipient::local_rack::access;

use super::rotate::{HELP as HELP_ROTATE, RotateArgs};
use crate::certificate_text::{ago, left, refused_text};
use crate::rack;
use crate::registry::{self, block_on, told};
use venice_cli::terminal;

/// Text below `venice identity --help`.
pub const HELP: &str = "\
EXAMPLES:
  venice identity                             own identity, revocations and refusals
  venice identity --json | jq .refused
  venice identity rotate                      another authority for the rack";

/// `venice identity`
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct IdentityArgs {
    #[command(subcommand)]
    what: Option<IdentityCommand>,
    /// Print an object: you, expires_s, authority, monitor_expires_s (seconds since 1970), refused
    /// (counts by reason), revoked (node, until_ms, joined_again), rotation (former, begun_ms, not_renewed) or null
    #[arg(long)]
    json: bool,
}

/// `venice identity ...`
#[derive(Subcommand, Debug)]
enum IdentityCommand {
    /// Rotate the rack's authority
    #[command(after_help = HELP_ROTATE)]
    Rotate(RotateArgs),
}

#[derive(Serialize)]
struct Shown {
    you: String,
    expires_s: u64,
    authority: String,
    monitor_expires_s: u64,
    refused: RefusedCounts,
    revoked: Vec<Revoked>,
    rotation: Option<Rotation>,
}

/// A revoked node, or one that has joined again since: its certificates of before are void.
#[derive(Serialize)]
struct Revoked {
    node: String,
    until_ms: u64,
    joined_again: bool,
}

#[derive(Serialize)]
struct Rotation {
    former: String,
    begun_ms: u64,
    not_renewed: Vec<String>,
}

/// Shows the identity, or rotates the authority.
pub fn execute(args: &IdentityArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    if let Some(IdentityCommand::Rotate(rotate)) = &args.what {
        return super::rotate(rotate, monitor);
    }
    let addr = rack::monitor_address(monitor)?;
    let (said, monitor, nodes): (CertificateInfo, MonitorIdentity, Vec<NodeRow>) =
        block_on(async {
            let access = access(&addr);
            let monitor = registry::gate(&addr).await?.show().await.map_err(told)?;
            let nodes = registry::connect(&addr).await?.nodes().await?;
            Ok((access.login.info().await.map_err(told)?, monitor, nodes))
        })?;
    let is_back = |node: &str| nodes.iter().any(|row| row.name == node && row.state != "revoked");
    let revoked = monitor.revoked.into_iter().map(|Revocation { node, until_ms, .. }| {
        let is_back = is_back(&node);
        Revoked { node, until_ms, joined_again: is_back }
    });
    let shown = Shown {
        you: said.caller.to_string(),
        expires_s: said.expires_s,
        authority: monitor.authority.to_string(),
        monitor_expires_s: monitor.expires_s,
        refused: monitor.refused,
        revoked: revoked.collect(),
        rotation: monitor.former.map(|former| Rotation {
            former: former.to_string(),
            begun_ms: monitor.rotated_ms,
            not_renewed: monitor.not_renewed,
        }),
    };
    if args.json {
        return terminal::say_json(&shown).map(|()| 0);
    }
    let role = if said.caller.is_admin() { ", an administrator" } else { "" };
    let names = |of: bool| -> String {
        let those = shown.revoked.iter().filter(|it| it.joined_again == of);
        those.map(|it| it.node.as_str()).collect::<Vec<_>>().join(", ")
    };
    let out = match (names(false), names(true)) {
        (out, back) if out.is_empty() && back.is_empty() => "none".to_owned(),
        (out, back) if back.is_empty() => out,
        (out, back) if out.is_empty() => format!("none now; joined again since: {back}"),
        (out, back) => format!("{out}; joined again since: {back}"),
    };
    terminal::say(format!(
        "you         {}{role}; certificate valid for {}\n\
         monitor     {addr}; certificate valid for {}\n\
         authority   {}\n\
         revoked     {out}\n\
         refused     {}",
        shown.you,
        left(shown.expires_s),
        left(shown.monitor_expires_s),
        shown.authority,
        refused_text(&shown.refused),
    ))?;
    if let Some(Rotation { former, begun_ms, not_renewed }) = &shown.rotation {
        let nodes = match not_renewed.is_empty() {
            true => "every node has renewed".to_owned(),
            false => format!("not renewed: {}", not_renewed.join(", ")),
        };
        terminal::say(format!(
            "rotation    begun {}, the former authority is {former}; {nodes}",
            ago(begun_ms / 1000)
        ))?;
    }
    Ok(0)
}
