//! `venice init`: founds a rack.

use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde::Serialize;
use venice_control::identity::Authority;
use venice_monitor::{IDENTITY_DIR, STORE_CHOICE_FILE};

use super::duration;
use super::token::names_loopback;
use crate::daemon::{StoreArgs, told};
use crate::registry::block_on;
use venice_cli::failure::usage;
use venice_cli::terminal;

/// Text below `venice init --help`.
pub const HELP: &str = "\
EXAMPLES:
  venice init --address 10.0.0.1:7470         on the future Monitor Node
  venice monitor                              start it there, at that address
  venice join TOKEN                           on the first machine, with the token printed
  venice token new                            for each further one

  venice init --address 10.0.0.1:7470 --store etcd://etcd1,etcd2,etcd3

The authority's key stays in the state directory, readable by its owner only: whoever has it can make
nodes of the rack. The token is in the rack's tables. With --store they are in etcd, or in another file,
from the start; store.toml in the state directory records this for the Monitor Node. A rack of
`venice up` needs no init.";

/// `venice init`
#[derive(Args, Debug)]
pub struct InitArgs {
    /// Address at which other machines reach the Monitor Node
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7470", value_parser = crate::host_port::check_reachable)]
    address: String,
    /// Directory of the Monitor Node's tables [default: /var/lib/venice/monitor]
    #[arg(
        long,
        value_name = "DIR",
        env = "VENICE_STATE_DIR",
        default_value = "/var/lib/venice/monitor",
        hide_default_value = true
    )]
    state_dir: PathBuf,
    #[command(flatten)]
    store: StoreArgs,
    /// Lifetime of the first join token: 90s, 30min, 12h, 7d
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration)]
    valid: Duration,
    /// Print an object: token, address, authority (SHA-256), state_dir, store (if set by --store)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Made {
    token: String,
    address: String,
    authority: String,
    state_dir: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<String>,
}

/// Checks that this machine can listen at the address, which the Monitor Node will do.
fn check_resolves(address: &str) -> anyhow::Result<()> {
    let Err(error) = address.to_socket_addrs() else { return Ok(()) };
    Err(usage(format!(
        "--address {address}: this machine does not know that name ({error}): use one of its addresses, \
         or enter the name in DNS or /etc/hosts"
    )))
}

/// Creates the rack's authority and the first token.
pub fn execute(args: &InitArgs) -> anyhow::Result<i32> {
    if args.state_dir.exists() && !args.state_dir.is_dir() {
        let dir = args.state_dir.display();
        return Err(usage(format!("--state-dir {dir} is not a directory: give another one")));
    }
    check_resolves(&args.address)?;
    if Authority::exists(&args.state_dir.join(IDENTITY_DIR)) {
        let dir = args.state_dir.display();
        bail!(
            "{dir} already has a rack's authority: start its Monitor Node with `venice monitor \
             --state-dir {dir}`, make join tokens with `venice token new`, or found another rack \
             in another --state-dir"
        );
    }
    let choice = args.store.choice();
    let made = venice_monitor::init(&args.state_dir, &args.address, args.valid, &choice);
    let token = block_on(async { made.await.map_err(told) })?;
    let made = Made {
        token: token.to_string(),
        address: args.address.clone(),
        authority: token.authority.to_string(),
        state_dir: args.state_dir.display().to_string(),
        store: choice.store,
    };
    if names_loopback(&made.address) {
        terminal::remark(format!(
            "{} is a loopback address: for a rack of several machines use --address ADDR with an \
             address that they reach",
            made.address
        ));
    }
    if args.json {
        return terminal::say_json(&made).map(|()| 0);
    }
    terminal::say(format!(
        "A new rack: its authority is in {}, fingerprint {}.\n\
         Start its Monitor Node:     venice monitor --state-dir {} (as a service: systemctl enable --now \
         venice-monitor)\n\
         On its first machine:       venice join {}\n\
         Then back its key up:       venice backup FILE",
        made.state_dir, made.authority, made.state_dir, made.token
    ))?;
    if let Some(store) = &made.store {
        terminal::say(format!(
            "Its tables are in {store}; {} records this for that Monitor Node. Other Monitor Nodes \
             need --store and a copy of {}.",
            args.state_dir.join(STORE_CHOICE_FILE).display(),
            args.state_dir.join(IDENTITY_DIR).display()
        ))?;
    }
    Ok(0)
}
