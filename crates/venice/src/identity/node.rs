//! `venice node`: revokes the membership of nodes.

use clap::{Args, Subcommand};

use venice_control::ControlError;

use crate::rack;
use crate::registry::{self, block_on, told};
use venice_cli::terminal;

/// Text below `venice node --help` and that of its commands.
pub const HELP: &str = "\
EXAMPLES:
  venice drain node7                          first, to keep the memory it lends
  venice node revoke node7                    voids its certificates, its users' and
                                              join tokens made for it, at once
  venice node revoke --unknown node7          a name that the rack no longer lists
  venice token new --node node7               to let it join again

Requires root on the Monitor Node's machine.";

/// `venice node ...`
#[derive(Subcommand, Debug)]
pub enum NodeCommand {
    /// Revoke a node's membership
    #[command(after_help = HELP)]
    Revoke(RevokeArgs),
}

/// `venice node revoke`
#[derive(Args, Debug)]
pub struct RevokeArgs {
    /// Node to revoke
    #[arg(value_name = "NODE", value_parser = crate::name::check)]
    node: String,
    /// Also revoke a name that the rack does not list, in case a certificate of it exists
    #[arg(long)]
    unknown: bool,
    /// Print an object: node, revoked
    #[arg(long)]
    json: bool,
}

/// Revokes the node.
pub fn execute(command: &NodeCommand, monitor: Option<&str>) -> anyhow::Result<i32> {
    let NodeCommand::Revoke(RevokeArgs { node, unknown, json }) = command;
    let addr = rack::monitor_address(monitor)?;
    block_on(async {
        let done = registry::gate(&addr).await?.revoke(node, *unknown).await;
        done.map_err(|error| match error {
            ControlError::UnknownNode(_) => anyhow::anyhow!(
                "{error}: if a certificate of that name may exist, revoke it with --unknown"
            ),
            error => told(error),
        })
    })?;
    match json {
        true => terminal::say_json(&serde_json::json!({ "node": node, "revoked": true }))?,
        // A name that the rack does not list has no grants.
        false if *unknown => {
            terminal::say(format!("{node} is revoked: its certificates are void."))?;
        }
        false => terminal::say(format!(
            "{node} is revoked: its certificates are void, and it gets no new grants. Programs keep its \
             memory until they end: drain it first to move that memory."
        ))?,
    }
    Ok(0)
}
