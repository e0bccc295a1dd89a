//! `venice node`: turning nodes out.

use clap::{Args, Subcommand};

use venice_control::ControlError;

use crate::rack;
use crate::registry::{self, block_on, told};
use venice_cli::terminal;

/// Texts below `venice node --help`, and those of its commands.
pub const HELP: &str = "\
EXAMPLES:
  venice drain node7                          first, if what it lends is to be kept
  venice node revoke node7                    its certificates, and its users', are void at once;
                                              so are join tokens made for it
  venice node revoke --unknown node7          although the rack does not know that name any more
  venice token new --node node7               to let it in again

For root on the Monitor Node's machine.";

/// `venice node ...`
#[derive(Subcommand, Debug)]
pub enum NodeCommand {
    /// Turn a node out of the rack
    #[command(after_help = HELP)]
    Revoke(RevokeArgs),
}

/// `venice node revoke`
#[derive(Args, Debug)]
pub struct RevokeArgs {
    /// Which node
    #[arg(value_name = "NODE", value_parser = crate::name::check)]
    node: String,
    /// Also a name that the rack does not know, in case somebody holds a certificate of it
    #[arg(long)]
    unknown: bool,
    /// Print an object: node, revoked
    #[arg(long)]
    json: bool,
}

/// Turns a node out.
pub fn execute(command: &NodeCommand, monitor: Option<&str>) -> anyhow::Result<i32> {
    let NodeCommand::Revoke(RevokeArgs { node, unknown, json }) = command;
    let addr = rack::monitor_address(monitor)?;
    block_on(async {
        let done = registry::gate(&addr).await?.revoke(node, *unknown).await;
        done.map_err(|error| match error {
            ControlError::UnknownNode(_) => anyhow::anyhow!(
                "{error}: if somebody may hold a certificate of that name, turn it out with \
                 --unknown"
            ),
            error => told(error),
        })
    })?;
    match json {
        true => terminal::say_json(&serde_json::json!({ "node": node, "revoked": true }))?,
        // Of a name that the rack does not know nobody has anything.
        false if *unknown => {
            terminal::say(format!("{node} is turned out: its certificates are void."))?;
        }
        false => terminal::say(format!(
            "{node} is turned out: its certificates are void, and nothing more is placed on it. \
             Programs that have memory of it go on with that until they end: drain first to have \
             them move."
        ))?,
    }
    Ok(0)
}
