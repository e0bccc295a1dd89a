//! `venice token`: join tokens.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use venice_control::identity::JoinToken;

use super::duration;
use crate::certificate_text::left;
use crate::host_port::check_reachable;
use crate::rack;
use crate::registry::{self, block_on, told, told_as_asked};
use venice_cli::failure::Usage;
use venice_cli::terminal::{self, Align};

/// Text below `venice token --help` and that of its commands.
pub const HELP: &str = "\
EXAMPLES:
  venice token new                            for one machine, valid for a day
  venice token new --node node7 --valid 30min for node7 only
  venice token list
  venice token delete 5f0c2ab19e7d4431        delete one, by its id in the list

Requires root on the Monitor Node's machine.";

/// `venice token ...`
#[derive(Subcommand, Debug)]
pub enum TokenCommand {
    /// Create a token: valid for one machine, once
    #[command(after_help = HELP)]
    New(NewArgs),
    /// List the tokens, without their secrets
    #[command(after_help = HELP)]
    List(ListArgs),
    /// Delete a token, so that it cannot be used
    #[command(after_help = HELP)]
    Delete(DeleteArgs),
}

/// `venice token new`
#[derive(Args, Debug)]
pub struct NewArgs {
    /// Only node that may join with it [default: any]
    #[arg(long, value_name = "NAME", value_parser = crate::name::check)]
    node: Option<String>,
    /// Lifetime: 90s, 30min, 12h, 7d
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration)]
    valid: Duration,
    /// Address at which machines reach the Monitor Node [default: the one used by this command]
    #[arg(long, value_name = "ADDR", value_parser = crate::host_port::check_reachable)]
    address: Option<String>,
    /// Print an object: token
    #[arg(long)]
    json: bool,
}

/// `venice token list`
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Print an array of objects: id, node, expires_ms (since 1970), used_by
    #[arg(long)]
    json: bool,
}

/// `venice token delete`
#[derive(Args, Debug)]
pub struct DeleteArgs {
    /// Id of the token, as listed
    #[arg(value_name = "ID", value_parser = token_id)]
    id: u64,
    /// Print an object: id, deleted
    #[arg(long)]
    json: bool,
}

fn token_id(text: &str) -> Result<u64, String> {
    let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = is_hex.then(|| u64::from_str_radix(text, 16).ok()).flatten();
    id.ok_or_else(|| "a token's id has 16 hexadecimal digits, see `venice token list`".to_string())
}

#[derive(Serialize)]
struct Made {
    token: String,
}

#[derive(Serialize)]
struct Row {
    id: String,
    node: String,
    expires_ms: u64,
    used_by: String,
}

/// Runs the command.
pub fn execute(command: &TokenCommand, monitor: Option<&str>) -> anyhow::Result<i32> {
    let addr = rack::monitor_address(monitor)?;
    match command {
        TokenCommand::New(args) => new(args, &addr),
        TokenCommand::List(args) => list(args, &addr),
        TokenCommand::Delete(args) => delete(args, &addr),
    }
}

fn delete(args: &DeleteArgs, addr: &str) -> anyhow::Result<i32> {
    block_on(async { registry::gate(addr).await?.delete_token(args.id).await.map_err(told) })?;
    let id = format!("{:016x}", args.id);
    match args.json {
        true => terminal::say_json(&serde_json::json!({ "id": id, "deleted": true }))?,
        false => terminal::say(format!("Token {id} is deleted."))?,
    }
    Ok(0)
}

fn new(args: &NewArgs, addr: &str) -> anyhow::Result<i32> {
    let address = args.address.clone().unwrap_or_else(|| addr.to_string());
    for one in address.split(',') {
        check_reachable(one).map_err(|why| Usage(format!("{one}: {why} (--address ADDR)")))?;
    }
    let node = args.node.as_deref().unwrap_or_default();
    let made = block_on(async {
        let made = registry::gate(addr).await?.new_token(args.valid, node).await;
        made.map_err(told_as_asked)
    })?;
    let token =
        JoinToken { id: made.id, secret: made.secret, authority: made.authority, monitor: address };
    if names_loopback(&token.monitor) {
        terminal::remark(format!(
            "{} is a loopback address: no other machine can join with this token; give an address \
             that others reach with --address ADDR or --monitor ADDR",
            token.monitor
        ));
    }
    match args.json {
        true => terminal::say_json(&Made { token: token.to_string() })?,
        false => terminal::say(token.to_string())?,
    }
    Ok(0)
}

/// True if an address is a loopback address.
pub fn names_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

fn list(args: &ListArgs, addr: &str) -> anyhow::Result<i32> {
    let tokens = block_on(async { registry::gate(addr).await?.tokens().await.map_err(told) })?;
    let rows: Vec<Row> = tokens
        .into_iter()
        .map(|token| Row {
            id: format!("{:016x}", token.id),
            node: token.node,
            expires_ms: token.expires_ms,
            used_by: token.used_by,
        })
        .collect();
    if args.json {
        return terminal::say_json(&rows).map(|()| 0);
    }
    let columns = ["id", "for", "valid for", "used by"].map(|name| (name, Align::Left));
    let or = |text: &str, none: &str| if text.is_empty() { none } else { text }.to_string();
    let line = |row: &Row| {
        let node = or(&row.node, "any");
        vec![row.id.clone(), node, left(row.expires_ms / 1000), or(&row.used_by, "-")]
    };
    terminal::say(terminal::table(&columns, rows.iter().map(line).collect()))?;
    Ok(0)
}
