//! Deregistration: an agent that ends in an orderly way notifies its Monitor Nodes.

use std::net::TcpListener;

use crate::common::{agent_config, monitor, rack_with, request, start_agent};
use venice_agent::AgentConfig;
use venice_wire::SLAB_BYTES;

#[tokio::test(flavor = "multi_thread")]
async fn deregistration_ignores_silent_monitor() {
    let dir = tempfile::tempdir().unwrap();
    let (_monitor, at) = monitor(dir.path(), "127.0.0.1:0", 60.0).await;
    // The kernel accepts connections for it, but nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let both = format!("{at},{}", silent.local_addr().unwrap());
    let config = || AgentConfig { monitor: both.clone(), ..agent_config(dir.path(), "one", at) };
    let (agent, _) = start_agent(config()).await;
    let mut client = rack_with(at, 1, 2 * SLAB_BYTES).await;
    client.allocate(request(SLAB_BYTES, 1)).await.unwrap();

    agent.stop().await;
    let row = client.nodes().await.unwrap().remove(0);
    assert_eq!((row.state.as_str(), row.free_bytes, row.granted_bytes), ("stopped", 0, 0));
    assert_eq!(client.grants().await.unwrap()[0].state, "lost");
    let refused = client.allocate(request(SLAB_BYTES, 2)).await.unwrap_err();
    assert!(refused.to_string().contains("no room"), "{refused}");

    // Any agent may take that name next.
    let (_agent, _) = start_agent(config()).await;
    let mut client = rack_with(at, 1, 2 * SLAB_BYTES).await;
    client.allocate(request(2 * SLAB_BYTES, 3)).await.unwrap();
}
