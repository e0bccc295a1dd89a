//! `venice join`: makes this machine a node of a rack.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use venice_control::ControlError;
use venice_control::identity::{Credential, JoinToken, KeyPem, Place, remove_join_key};

use crate::certificate_text::left;
use crate::registry::{block_on, told, told_as_asked};
use venice_cli::failure::Usage;
use venice_cli::terminal;

/// Text below `venice join --help`.
pub const HELP: &str = "\
EXAMPLES:
  venice join TOKEN                           as a node named after this host
  venice join --name node7 TOKEN
  echo TOKEN | venice join -                  hidden from the process list

A token comes from `venice init` or `venice token new` and is valid for one machine. It contains the
fingerprint of the rack's authority: a Monitor Node of another rack learns nothing.";

/// `venice join`
#[derive(Args, Debug)]
pub struct JoinArgs {
    /// Join token; - reads it from standard input
    #[arg(value_name = "TOKEN")]
    token: String,
    /// Name of the node [default: the host's name]
    #[arg(long, value_name = "NAME", env = "VENICE_NODE_NAME", value_parser = crate::name::check)]
    name: Option<String>,
    /// Directory for its certificate and key
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

/// Joins the rack.
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
    // A token is valid for one machine: first check that its certificate can be stored.
    let place = Place::prepare(&args.identity).map_err(|error| {
        let path = args.identity.display();
        anyhow::anyhow!(error).context(format!(
            "cannot store a certificate in {path}; the token is not used: run this as the directory's \
             owner or as root, or choose another --identity"
        ))
    })?;
    let credential = ask(&token, &name, &args.identity)?;
    place.keep();
    credential.save(&args.identity).map_err(|error| {
        let path = args.identity.display();
        anyhow::anyhow!(error).context(format!(
            "the token is used, but its certificate cannot be stored in {path}: fix that and run this \
             again with the same token, which stays valid for this machine until it expires"
        ))
    })?;
    venice_agent::record_monitor(&args.identity, &token.monitor)?;
    remove_join_key(&args.identity)?;
    let joined = Joined {
        node: name,
        monitor: token.monitor,
        expires_s: credential.info().expires_s,
        identity: args.identity.display().to_string(),
    };
    if args.json {
        return terminal::say_json(&joined).map(|()| 0);
    }
    terminal::say(format!(
        "This machine is {} of the rack at {}; its certificate is in {}, valid for {} and renewed by \
         the agent.\n{}",
        joined.node,
        joined.monitor,
        joined.identity,
        left(joined.expires_s),
        next_steps(&joined)
    ))?;
    Ok(0)
}

/// Requests the certificate. The key stays in the directory until the certificate is there: a
/// process that has the key may ask again.
fn ask(token: &JoinToken, name: &str, dir: &Path) -> anyhow::Result<Credential> {
    let key = KeyPem::for_join(dir)?;
    let join = async { Ok(venice_control::client::join(token, name, key).await) };
    block_on(join)?.map_err(|error| {
        let may_be_used =
            matches!(error, ControlError::TimedOut { .. } | ControlError::Peer { .. })
                || matches!(error, ControlError::Unreachable { refused: false, .. });
        if may_be_used {
            return told(error).context(
                "no answer: run this again with the same token, which stays valid for this machine \
                 even if it is used by now",
            );
        }
        // Leave the directory empty if it was empty before.
        let _ = remove_join_key(dir);
        told_as_asked(error)
    })
}

fn next_steps(joined: &Joined) -> String {
    let Joined { node, identity, .. } = joined;
    let service = venice_agent::SERVICE_IDENTITY_DIR;
    let as_service = "set lend in /etc/venice/agent.toml, then systemctl enable --now venice-agent";
    let start = if identity == service {
        format!("Start its agent: {as_service}")
    } else {
        let folder = match identity == venice_agent::IDENTITY_DIR {
            true => String::new(),
            false => format!(" --identity {identity}"),
        };
        format!(
            "Start its agent: venice agent{folder} --lend SIZE\n\
             Or as a service, which has its certificate elsewhere: install -d {service}, then cp \
             {identity}/* {service}, {as_service}"
        )
    };
    format!(
        "{start}\nA running agent of {node} in the same rack loads the new certificate by itself once its own is \
         refused; any other agent needs a restart."
    )
}
