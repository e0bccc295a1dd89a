//! `venice join`: this machine becomes a node of a rack.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use venice_control::ControlError;
use venice_control::identity::{Credential, JoinToken, KeyPem, Place, forget_joining_key};

use crate::admittance::left;
use crate::registry::{block_on, told, told_as_asked};
use venice_cli::failure::Usage;
use venice_cli::terminal;

/// Texts below `venice join --help`.
pub const HELP: &str = "\
EXAMPLES:
  venice join TOKEN                           as a node of this host's name
  venice join --name node7 TOKEN
  echo TOKEN | venice join -                  not to be seen in the process list

A token comes from `venice init` or `venice token new` and is good for one machine. It names the
rack's authority: a Monitor Node of another rack at the same address is told nothing.";

/// `venice join`
#[derive(Args, Debug)]
pub struct JoinArgs {
    /// The token; - reads it from standard input
    #[arg(value_name = "TOKEN")]
    token: String,
    /// What the node is to be called [default: the host's name]
    #[arg(long, value_name = "NAME", env = "VENICE_NODE_NAME", value_parser = crate::name::check)]
    name: Option<String>,
    /// Where its certificate and key are to be kept
    #[arg(long, value_name = "DIR", env = "VENICE_IDENTITY", default_value = venice_agent::IDENTITY_DIR)]
    identity: PathBuf,
    /// Print an object: node, monitor, expires_s (seconds since 1970), identity
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Joined {
    node: String,
    monitor: String,
    expires_s: u64,
    identity: String,
}

/// Joins.
pub fn execute(args: &JoinArgs) -> anyhow::Result<i32> {
    let text = match args.token.as_str() {
        "-" => std::io::read_to_string(std::io::stdin()).context("reading the token")?,
        token => token.to_string(),
    };
    let token: JoinToken = text.parse().map_err(|error| Usage(format!("{error}")))?;
    let name = args
        .name
        .clone()
        .unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    // A token is good for one machine: first whether what it brings can be kept.
    let place = Place::prepare(&args.identity).map_err(|error| {
        let path = args.identity.display();
        anyhow::anyhow!(error).context(format!(
            "no certificate can be kept in {path}, and the token is not used: run this as whom \
             the folder belongs to or as root, or choose another with --identity"
        ))
    })?;
    let credential = ask(&token, &name, &args.identity)?;
    place.keep();
    credential.save(&args.identity).map_err(|error| {
        let path = args.identity.display();
        anyhow::anyhow!(error).context(format!(
            "the token is used, and its certificate cannot be kept in {path}: mend that and run \
             this again with the same token, which is good for this machine until its time is over"
        ))
    })?;
    forget_joining_key(&args.identity)?;
    let joined = Joined {
        node: name,
        monitor: token.monitor,
        expires_s: credential.said().expires_s,
        identity: args.identity.display().to_string(),
    };
    if args.json {
        return terminal::say_json(&joined).map(|()| 0);
    }
    terminal::say(format!(
        "This machine is {} of the rack at {}; its certificate is in {}, good for {} and renewed \
         by the agent.\n{}",
        joined.node,
        joined.monitor,
        joined.identity,
        left(joined.expires_s),
        next_steps(&joined)
    ))?;
    Ok(0)
}

/// Asks for the certificate, with a key that lies in the folder until that is there too: whoever has
/// it may ask again.
fn ask(token: &JoinToken, name: &str, dir: &Path) -> anyhow::Result<Credential> {
    let key = KeyPem::for_joining(dir)?;
    let join = async { Ok(venice_control::client::join(token, name, key).await) };
    block_on(join)?.map_err(|error| {
        let may_be_used =
            matches!(error, ControlError::TimedOut { .. } | ControlError::Peer { .. })
                || matches!(error, ControlError::Unreachable { refused: false, .. });
        if may_be_used {
            return told(error).context(
                "no answer came: run this again with the same token, which is good for this \
                 machine even if it is used by now",
            );
        }
        // Its place is to be empty, if it was before.
        let _ = forget_joining_key(dir);
        told_as_asked(error)
    })
}

fn next_steps(joined: &Joined) -> String {
    let Joined { node, monitor, identity, .. } = joined;
    let folder = match identity == venice_agent::IDENTITY_DIR {
        true => String::new(),
        false => format!(" --identity {identity}"),
    };
    format!(
        "Start its agent: venice agent --name {node} --monitor {monitor}{folder} --lend SIZE\nAn \
         agent that runs as {node} in the same rack takes it up by itself when its own is not taken \
         any more; any other has to be restarted."
    )
}
