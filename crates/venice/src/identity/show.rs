//! `venice identity`: the caller's identity, revoked nodes and refused callers.

use clap::Args;
use serde::Serialize;
use venice_control::client::MonitorIdentity;
use venice_control::identity::CertificateInfo;
use venice_control::{RefusedCounts, Revocation};
use venice_recipient::local_rack::access;

use crate::certificate_text::{left, refused_text};
use crate::rack;
use crate::registry::{self, block_on, told};
use venice_cli::terminal;

/// Text below `venice identity --help`.
pub const HELP: &str = "\
EXAMPLES:
  venice identity                             own identity, revocations and refusals
  venice identity --json | jq .refused";

/// `venice identity`
#[derive(Args, Debug)]
pub struct IdentityArgs {
    /// Print an object: you, expires_s, authority, monitor_expires_s (seconds since 1970), refused
    /// (counts by reason), revoked (node, until_ms)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Shown {
    you: String,
    expires_s: u64,
    authority: String,
    monitor_expires_s: u64,
    refused: RefusedCounts,
    revoked: Vec<Revocation>,
}

/// Shows the identity.
pub fn execute(args: &IdentityArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    let addr = rack::monitor_address(monitor)?;
    let (said, monitor): (CertificateInfo, MonitorIdentity) = block_on(async {
        let access = access(&addr);
        let monitor = registry::gate(&addr).await?.show().await.map_err(told)?;
        Ok((access.login.info().await.map_err(told)?, monitor))
    })?;
    let shown = Shown {
        you: said.caller.to_string(),
        expires_s: said.expires_s,
        authority: monitor.authority.to_string(),
        monitor_expires_s: monitor.expires_s,
        refused: monitor.refused,
        revoked: monitor.revoked,
    };
    if args.json {
        return terminal::say_json(&shown).map(|()| 0);
    }
    let role = if said.caller.is_admin() { ", an administrator" } else { "" };
    let out: Vec<&str> = shown.revoked.iter().map(|it| it.node.as_str()).collect();
    let out = if out.is_empty() { "none".to_string() } else { out.join(", ") };
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
    Ok(0)
}
