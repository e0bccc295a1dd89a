//! Certificates are renewed without interrupting service.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::common::{
    Far, PATIENCE, agent_config, agent_of, eventually, monitor_config, rack_with, request,
    start_agent, start_monitor,
};
use venice_agent::AgentConfig;
use venice_control::client::{Access, AgentClient, EnrolmentClient, Login, MonitorClient, join};
use venice_control::identity::{Credential, Holder, JoinToken, KeyPem};
use venice_control::{Caller, ControlError, LeaseState};
use venice_monitor::MonitorConfig;
use venice_wire::SLAB_BYTES;

/// Long enough that a busy machine renews within the last third.
const LIFE: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread")]
async fn renewal_interrupts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let config =
        MonitorConfig { certificate_s: LIFE.as_secs_f64(), ..monitor_config(dir.path(), 60.0) };
    let (_monitor, at) = start_monitor(config).await;
    let config = agent_config(dir.path(), "one", at);
    // Replaces the certificate with a lifetime of a month.
    let identity = venice_testkit::identity::node_for(dir.path(), "one", LIFE);
    let _agent = start_agent(config).await;
    let mut client = rack_with(at, 1, 2 * SLAB_BYTES).await;
    let grant = client.allocate(request(SLAB_BYTES, 1)).await.unwrap().remove(0);
    let mut renewing = agent_of(&grant).await;
    let begin = Credential::load(&identity).unwrap().info().expires_s;
    let mut far = Far::new(&grant);

    let mut round = 0u8;
    loop {
        round = round.wrapping_add(1);
        let (back, read) = tokio::task::spawn_blocking(move || {
            far.write(0, &[round; 64]).unwrap();
            let read = far.read(0, 64).unwrap();
            (far, read)
        })
        .await
        .unwrap();
        far = back;
        assert_eq!(read, [round; 64]);
        // Over the first connection, and over a new one each time.
        let leases = [(grant.id, grant.key)];
        for agent in [&mut renewing, &mut agent_of(&grant).await] {
            let state = &agent.renew(&leases).await.unwrap()[0];
            assert!(matches!(state, LeaseState::Live { .. }), "{state:?}");
        }
        client.nodes().await.unwrap();
        let expires_s = Credential::load(&identity).unwrap().info().expires_s;
        // Two renewals later, the first certificates have expired.
        if expires_s > begin + LIFE.as_secs() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let row = client.nodes().await.unwrap().remove(0);
    assert_eq!(row.state, "up");
    assert!(row.certificate_expires_s.unwrap() > begin);
    assert_eq!(row.refused, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_node_rejoins_without_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (_monitor, at) = start_monitor(monitor_config(dir.path(), 60.0)).await;
    let mut config = agent_config(dir.path(), "one", at);
    let (identity, socket) = (config.identity.clone(), dir.path().join("agent.sock"));
    config.local_socket = Some(socket.clone());
    let (_agent, ready) = start_agent(config).await;
    let mut client = rack_with(at, 1, 2 * SLAB_BYTES).await;
    let grant = client.allocate(request(SLAB_BYTES, 1)).await.unwrap().remove(0);
    // A program of that node, which the agent has vouched for.
    let enter = || Access::new(at.to_string(), Login::at_sockets(vec![socket.clone()]));
    MonitorClient::connect(&enter()).await.unwrap().nodes().await.unwrap();

    let mut gate = EnrolmentClient::connect(&venice_testkit::identity::access(at)).await.unwrap();
    gate.revoke("one", false).await.unwrap();
    let state = || async { client.clone().nodes().await.unwrap().remove(0).state };
    assert_eq!(state().await, "revoked");
    let refused = MonitorClient::connect(&enter()).await;
    assert!(matches!(refused, Err(ControlError::NoLogin(_))), "{refused:?}");

    let made = gate.new_token(Duration::from_secs(60), "one").await.unwrap();
    let (id, secret, authority) = (made.id, made.secret, made.authority);
    let token = JoinToken { id, secret, authority, monitor: at.to_string() };
    join(&token, "one", KeyPem::generate().unwrap()).await.unwrap().save(&identity).unwrap();
    eventually("the node to be back", || async { (state().await == "up").then_some(()) }).await;
    assert_eq!(ready.control_addr.to_string(), grant.control_addr);
    let mut client = MonitorClient::connect(&enter()).await.unwrap();
    assert_eq!(client.nodes().await.unwrap()[0].epoch, 1, "the same agent");
    let renewed = &agent_of(&grant).await.renew(&[(grant.id, grant.key)]).await.unwrap()[0];
    assert!(matches!(renewed, LeaseState::Live { .. }), "{renewed:?}");
}

/// Revokes node `two`, and waits until the agent has stored that.
async fn revoke_two(at: SocketAddr, identity: &Path) {
    let mut gate = EnrolmentClient::connect(&venice_testkit::identity::access(at)).await.unwrap();
    gate.revoke("two", true).await.unwrap();
    let kept = || async { identity.join("revoked.json").exists().then_some(()) };
    eventually("the agent to keep it", kept).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_agent_enforces_revocations() {
    let dir = tempfile::tempdir().unwrap();
    let (monitor, at) = start_monitor(monitor_config(dir.path(), 60.0)).await;
    let config = agent_config(dir.path(), "one", at);
    let identity = config.identity.clone();
    let (agent, _) = start_agent(config).await;
    let _client = rack_with(at, 1, 2 * SLAB_BYTES).await;
    let two = venice_testkit::identity::login_of(&Caller::Node("two".into()));
    revoke_two(at, &identity).await;
    // It restarts without a Monitor Node to inform it.
    agent.stop().await;
    monitor.stop().await;
    let config = AgentConfig { identity, ..agent_config(dir.path(), "one", at) };
    let (_agent, ready) = start_agent(config).await;
    let addr = ready.control_addr.to_string();
    let mut client = AgentClient::connect(&two, "one", &addr, PATIENCE).await.unwrap();
    let refused = client.ping().await.unwrap_err();
    assert!(refused.to_string().contains("was revoked"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn monitor_relearns_revocations_from_agents() {
    let dir = tempfile::tempdir().unwrap();
    let (monitor, at) = start_monitor(monitor_config(dir.path(), 60.0)).await;
    let config = agent_config(dir.path(), "one", at);
    let identity = config.identity.clone();
    let (_agent, ready) = start_agent(config).await;
    let _client = rack_with(at, 1, 2 * SLAB_BYTES).await;
    let two = venice_testkit::identity::login_of(&Caller::Node("two".into()));
    revoke_two(at, &identity).await;
    monitor.stop().await;
    std::fs::remove_file(dir.path().join("monitor/rack.redb")).unwrap();
    let config = MonitorConfig { listen: at.to_string(), ..monitor_config(dir.path(), 60.0) };
    let (_monitor, _) = start_monitor(config).await;

    let mut gate = EnrolmentClient::connect(&venice_testkit::identity::access(at)).await.unwrap();
    let learnt = || {
        let mut gate = gate.clone();
        async move {
            let revoked = gate.show().await.unwrap().revoked;
            revoked.iter().any(|it| it.node == "two").then_some(())
        }
    };
    eventually("the Monitor Node to learn it", learnt).await;
    let mut of_two =
        EnrolmentClient::connect(&Access::new(at.to_string(), two.clone())).await.unwrap();
    let refused = of_two.renew().await.expect_err("it was revoked");
    assert!(refused.to_string().contains("was revoked"), "{refused}");
    // The agent has kept its revocations although the Monitor Node lacked them.
    let addr = ready.control_addr.to_string();
    let mut client = AgentClient::connect(&two, "one", &addr, PATIENCE).await.unwrap();
    assert!(client.ping().await.unwrap_err().to_string().contains("was revoked"));
    // With a token it joins again, at both servers.
    let made = gate.new_token(Duration::from_secs(60), "two").await.unwrap();
    let (id, secret, authority) = (made.id, made.secret, made.authority);
    let token = JoinToken { id, secret, authority, monitor: at.to_string() };
    let anew = Login::held(
        Holder::new(join(&token, "two", KeyPem::generate().unwrap()).await.unwrap()).unwrap(),
    );
    let let_in = || async {
        let mut client = AgentClient::connect(&anew, "one", &addr, PATIENCE).await.ok()?;
        client.ping().await.ok()
    };
    eventually("the agent to let it in", let_in).await;
    let mut gate =
        EnrolmentClient::connect(&Access::new(at.to_string(), anew.clone())).await.unwrap();
    gate.renew().await.unwrap();
}
