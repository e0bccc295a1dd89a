//! Deregistration: an agent that ends in an orderly way tells every Monitor Node, so that none has
//! to wait for missed heartbeats.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use venice_control::client::{Access, MonitorClient};
use venice_control::{ControlError, Identity};

use crate::identity::NodeIdentity;

/// Timeout of the deregistration; a Monitor Node without an answer misses the heartbeats instead.
const WITHIN: Duration = Duration::from_secs(1);

/// Deregisters at all Monitor Nodes concurrently. Ends within a second in any case.
pub(crate) async fn deregister(identity: &NodeIdentity, node: Identity, instance: u64) {
    let mut calls = JoinSet::new();
    for NodeIdentity { access, .. } in identity.at_each() {
        calls.spawn(async move {
            let said = timeout(WITHIN, deregister_at(&access, node, instance)).await;
            let error = match said {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(late) => late.to_string(),
            };
            let monitor = access.monitor;
            tracing::info!(monitor, error, "deregistration failed");
        });
    }
    while calls.join_next().await.is_some() {}
}

async fn deregister_at(access: &Access, node: Identity, instance: u64) -> Result<(), ControlError> {
    MonitorClient::connect(access).await?.deregister(node, instance).await
}
