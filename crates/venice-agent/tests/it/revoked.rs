//! Recipients over UDP are notified of the end of a grant, whatever its reason; none has to detect
//! it by the donor's silence.

use std::net::SocketAddr;

use crate::common::*;
use venice_agent::AgentConfig;
use venice_control::Grant;
use venice_fabric::FabricError;
use venice_monitor::MonitorConfig;
use venice_wire::SLAB_BYTES;

/// Uses a grant, so that the donor has an entry for it.
fn open_and_write(grant: &Grant, home: Option<SocketAddr>) -> Far {
    let mut far = Far::reaching(grant, home);
    far.write(0, b"mine").unwrap();
    assert_eq!(far.read(0, 4), Ok(b"mine".to_vec()));
    far
}

/// Checks that the idle recipient is notified, and that its mapping is gone.
fn expect_notified(mut far: Far, grant: &Grant) {
    let revocation = tokio::task::block_in_place(|| far.await_revocation());
    assert_eq!((revocation.grant, revocation.windows), (grant.id, 1));
    assert!(matches!(far.try_read(), Err(FabricError::NotMapped { .. })));
}

async fn every_end_is_notified(plain: bool) {
    let dir = tempfile::tempdir().unwrap();
    let config = MonitorConfig { plain, ..monitor_config(dir.path(), 60.0) };
    let (_monitor, at) = start_monitor(config).await;
    let config = AgentConfig { plain, ..agent_config(dir.path(), "one", at) };
    let (one, _) = start_agent(config).await;
    let mut client = rack_with(at, 1, 2 * SLAB_BYTES).await;

    let given_back = client.allocate(request(SLAB_BYTES, 1)).await.unwrap().remove(0);
    let far = open_and_write(&given_back, None);
    let kept = client.allocate(request(SLAB_BYTES, 2)).await.unwrap().remove(0);
    let mut other = open_and_write(&kept, None);
    client.release(&leases(std::slice::from_ref(&given_back))).await.unwrap();
    expect_notified(far, &given_back);
    assert_eq!(other.read(0, 4), Ok(b"mine".to_vec()), "another grant of the same donor lives on");
    drop(other);

    let far = open_and_write(&kept, None);
    let mut donor = agent_of(&kept).await;
    donor.give_back(&[(kept.id, kept.key)]).await.unwrap();
    expect_notified(far, &kept);

    let last = eventually("memory that is free again", || async {
        let mut client = rack_with(at, 1, 2 * SLAB_BYTES).await;
        client.allocate(request(SLAB_BYTES, 3)).await.ok()
    });
    let last = last.await.remove(0);
    let far = open_and_write(&last, None);
    let told = tokio::task::spawn_blocking({
        let last = last.clone();
        move || {
            let mut far = far;
            (far.await_revocation().grant, last.id)
        }
    });
    one.stop().await;
    let (told, last) = told.await.unwrap();
    assert_eq!(told, last, "a donor that stops says so");
}

#[tokio::test(flavor = "multi_thread")]
async fn sealed_recipient_is_notified() {
    every_end_is_notified(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_recipient_is_notified() {
    every_end_is_notified(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_lease_is_notified() {
    let dir = tempfile::tempdir().unwrap();
    let (_monitor, at) = start_monitor(monitor_config(dir.path(), 1.0)).await;
    let _one = agent(dir.path(), "one", at).await;
    let client = rack_with(at, 1, 2 * SLAB_BYTES).await;
    // On a busy machine the lease may expire before the grant is used.
    let (far, grant) = eventually("a grant that lives until it is used", || async {
        let client_id = u128::from(venice_ports::monotonic_ns());
        let grant = client.clone().allocate(request(SLAB_BYTES, client_id)).await.ok()?.remove(0);
        let mut far = Far::new(&grant);
        far.write(0, b"mine").is_ok().then_some((far, grant))
    })
    .await;
    expect_notified(far, &grant);
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_forward_notification() {
    for plain in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let config = MonitorConfig { plain, ..monitor_config(dir.path(), 60.0) };
        let (_monitor, at) = start_monitor(config).await;
        let mut homes = Vec::new();
        let mut daemons = Vec::new();
        for (position, name) in ["one", "two"].into_iter().enumerate() {
            let config = AgentConfig {
                plain,
                topology: Some("mesh:2x1x1".into()),
                position: Some(position as u32),
                ..agent_config(dir.path(), name, at)
            };
            let (daemon, ready) = start_agent(config).await;
            homes.push(ready.relay_addr.expect("a relay"));
            daemons.push(daemon);
        }
        let mut client = rack_with(at, 2, 4 * SLAB_BYTES).await;
        let mut wanted = request(SLAB_BYTES, 1);
        wanted.donors = vec!["two".into()];
        let grant = client.allocate(wanted).await.unwrap().remove(0);
        let far = eventually("the relays to carry an access", || async {
            let mut far = Far::reaching(&grant, Some(homes[0]));
            far.write(0, b"mine").is_ok().then_some(far)
        })
        .await;
        client.release(&leases(std::slice::from_ref(&grant))).await.unwrap();
        expect_notified(far, &grant);
    }
}
