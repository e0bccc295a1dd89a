//! `venice identity rotate`: another authority for the rack.

use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use venice_control::ControlError;
use venice_control::identity::Fingerprint;
use venice_control::server::RotationStep;

use crate::rack;
use crate::registry::{self, block_on, told};
use venice_cli::terminal;

/// Limit for the Monitor Node's next session.
const SESSION_WITHIN: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(100);

/// Text below `venice identity rotate --help`.
pub const HELP: &str = "\
EXAMPLES:
  venice identity rotate                      a new authority signs; both are trusted
  venice identity                             nodes that still have an old certificate
  venice identity rotate --finish             a day later: the former authority is void

Nodes renew their certificates within seconds, programs theirs within a day; both go on. Join tokens made
before are void after --finish, which refuses while nodes or programs may depend on the former authority.
Each step ends and reopens all connections to the Monitor Node, as a restart does. Make a new backup after
each: one of before has the former key. Requires root on the Monitor Node's machine.";

/// `venice identity rotate`
#[derive(Args, Debug)]
pub struct RotateArgs {
    /// End the rotation: the former authority is void
    #[arg(long)]
    finish: bool,
    /// Finish although nodes or programs may depend on the former authority: they have to join or
    /// start again
    #[arg(long, requires = "finish")]
    force: bool,
    /// Print an object: authority (SHA-256), finished
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Rotated {
    authority: String,
    finished: bool,
}

/// Begins or ends a rotation.
pub fn execute(args: &RotateArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    let addr = rack::monitor_address(monitor)?;
    let step = match args.finish {
        true => RotationStep::Finish { is_sure: args.force },
        false => RotationStep::Begin,
    };
    let authority = block_on(async {
        let rotated = registry::gate(&addr).await?.rotate(step).await;
        let authority = rotated.map_err(|error| match error {
            ControlError::TimedOut { .. } => anyhow::anyhow!(
                "the Monitor Node did not answer in time: `venice identity` tells how far it is"
            ),
            error => told(error),
        })?;
        wait_until_in_use(&addr, authority, args.finish).await;
        Ok(authority)
    })?;
    let rotated = Rotated { authority: authority.to_string(), finished: args.finish };
    match (args.json, args.finish) {
        (true, _) => terminal::say_json(&rotated)?,
        (false, false) => terminal::say(format!(
            "A new authority signs, {}; both are trusted.\n\
             Nodes renew within seconds, programs within a day: `venice identity` lists nodes that have \
             not. Then:  venice identity rotate --finish\n\
             Make a new backup: venice backup FILE",
            rotated.authority
        ))?,
        (false, true) => terminal::say(format!(
            "The rack has one authority, {}; the former one is void, and so are its join tokens.\n\
             Make a new backup: venice backup FILE",
            rotated.authority
        ))?,
    }
    Ok(0)
}

/// Waits until the Monitor Node has begun its next session, so that the next command finds it.
async fn wait_until_in_use(addr: &str, authority: Fingerprint, is_single: bool) {
    let end = Instant::now() + SESSION_WITHIN;
    while Instant::now() < end {
        tokio::time::sleep(POLL).await;
        let Ok(mut gate) = registry::gate(addr).await else { continue };
        let shown = gate.show().await;
        if shown.is_ok_and(|it| it.authority == authority && it.former.is_none() == is_single) {
            return;
        }
    }
    terminal::remark("the Monitor Node does not answer yet: see its log");
}
