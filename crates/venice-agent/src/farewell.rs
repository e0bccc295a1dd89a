//! An agent that is ended in an orderly way tells every Monitor Node, so that none has to find out by its
//! silence.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use venice_control::client::{Access, MonitorClient};
use venice_control::{ControlError, Identity};

use crate::identity::NodeIdentity;

/// How long that may hold up its end: who does not answer finds out by itself.
const WITHIN: Duration = Duration::from_secs(1);

/// Says farewell to each of the rack's Monitor Nodes, beside each other. Ends within a second in any case.
pub(crate) async fn say(identity: &NodeIdentity, node: Identity, instance: u64) {
    let mut sayings = JoinSet::new();
    for NodeIdentity { access, .. } in identity.at_each() {
        sayings.spawn(async move {
            let said = timeout(WITHIN, say_to(&access, node, instance)).await;
            let error = match said {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(late) => late.to_string(),
            };
            let monitor = access.monitor;
            tracing::info!(monitor, error, "that this agent ends could not be said");
        });
    }
    while sayings.join_next().await.is_some() {}
}

async fn say_to(access: &Access, node: Identity, instance: u64) -> Result<(), ControlError> {
    MonitorClient::connect(access).await?.farewell(node, instance).await
}
