//! A Monitor Node and agents in one process, over loopback, with real memory.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::*;
use venice_agent::{AgentConfig, AgentError};
use venice_control::client::MonitorClient;
use venice_control::{Grant, LeaseState};
use venice_fabric::{AccessError, Refusal};
use venice_ports::shm::{MappedSlab, ShmConnection, SlabFile, fetch_slabs};
use venice_testkit::identity::access;
use venice_wire::{ByteSize, GrantKey, PortId, SLAB_BYTES};

/// A grant mapped by a recipient on this host.
struct Borrowed {
    connection: ShmConnection,
    slabs: Vec<MappedSlab>,
}

fn borrow(grant: &Grant) -> Borrowed {
    let slabs = (grant.share.bytes / SLAB_BYTES) as usize;
    let socket = PathBuf::from(grant.address(PortId::Shm));
    let connection = fetch_slabs(&socket, grant.id, grant.key, slabs).unwrap();
    let map = |slab: &SlabFile| MappedSlab::map(slab, SLAB_BYTES as usize).unwrap();
    let slabs = connection.slabs.iter().map(map).collect();
    Borrowed { connection, slabs }
}

impl Borrowed {
    fn write(&self, slab: usize, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.slabs[slab].len_bytes());
        let at = self.slabs[slab].as_ptr().wrapping_add(offset);
        // SAFETY: the range lies in the mapping (asserted above).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
    }

    fn read(&self, slab: usize, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.slabs[slab].len_bytes());
        let mut bytes = vec![0; len];
        let at = self.slabs[slab].as_ptr().wrapping_add(offset);
        // SAFETY: the range lies in the mapping (asserted above).
        unsafe { std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), len) };
        bytes
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_works_over_shm_and_udp() {
    let dir = tempfile::tempdir().unwrap();
    let (_monitor, at) = monitor(dir.path(), "127.0.0.1:0", 60.0).await;
    let _one = agent(dir.path(), "one", at).await;
    let _two = agent(dir.path(), "two", at).await;
    let mut client = rack_with(at, 2, 4 * SLAB_BYTES).await;

    let grants = client.allocate(request(4 * SLAB_BYTES, 1)).await.unwrap();
    assert_eq!(grants.len(), 2, "spread over both donors");
    for (index, grant) in grants.iter().enumerate() {
        let near = borrow(grant);
        near.write(1, 4000, format!("near {index}").as_bytes());
        let mut far = Far::new(grant);
        assert_eq!(far.read(SLAB_BYTES + 4000, 6), Ok(format!("near {index}").into_bytes()));
        far.write(SLAB_BYTES - 2, b"across").unwrap();
        assert_eq!(near.read(0, SLAB_BYTES as usize - 2, 2), b"ac");
        assert_eq!(near.read(1, 0, 4), b"ross");
    }

    let near = borrow(&grants[0]);
    client.release(&leases(&grants)).await.unwrap();
    rack_with(at, 2, 4 * SLAB_BYTES).await;
    eventually("the shm connection ends", || async { near.connection.is_closed().then_some(()) })
        .await;
    assert!(client.grants().await.unwrap().is_empty());

    let again = client.allocate(request(4 * SLAB_BYTES, 2)).await.unwrap();
    near.write(1, 4000, b"stale!");
    for grant in &again {
        assert_eq!(borrow(grant).read(1, 4000, 6), [0; 6], "the next recipient gets zeroes");
    }
}

/// Memory is available right after a release, however it was returned: to the Monitor Node, or to
/// the donors directly.
#[tokio::test(flavor = "multi_thread")]
async fn released_memory_is_lent_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (_monitor, at) = monitor(dir.path(), "127.0.0.1:0", 60.0).await;
    let _one = agent(dir.path(), "one", at).await;
    let _two = agent(dir.path(), "two", at).await;
    let mut client = rack_with(at, 2, 4 * SLAB_BYTES).await;
    for round in 0..12 {
        let grants = client.allocate(request(4 * SLAB_BYTES, round)).await;
        let grants = grants.unwrap_or_else(|error| panic!("round {round}: {error}"));
        if round % 3 == 2 {
            let mut donor = agent_of(&grants[0]).await;
            // No caller waits for the answer.
            let gone = Duration::from_millis(1);
            let _ =
                tokio::time::timeout(gone, donor.give_back(&[(grants[0].id, grants[0].key)])).await;
        }
        client.release(&leases(&grants)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_key_is_refused_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (_monitor, at) = monitor(dir.path(), "127.0.0.1:0", 60.0).await;
    let _one = agent(dir.path(), "one", at).await;
    let mut client = rack_with(at, 1, 2 * SLAB_BYTES).await;
    let grants = client.allocate(request(SLAB_BYTES, 1)).await.unwrap();
    let grant = &grants[0];
    borrow(grant).write(0, 0, b"secret");

    let forged = Grant { key: GrantKey(grant.key.0 ^ 1), ..grant.clone() };
    let refused = Err(AccessError::Refused(Refusal::WrongKey));
    assert_eq!(Far::new(&forged).read(0, 6), refused);
    assert_eq!(Far::new(&forged).write(0, b"forged"), refused);
    let socket = PathBuf::from(forged.address(PortId::Shm));
    let Err(said) = fetch_slabs(&socket, forged.id, forged.key, 1) else { panic!("slabs for it") };
    assert!(said.to_string().contains("not the grant's key"), "{said}");

    let counted = || async {
        let rows = MonitorClient::connect(&access(at)).await.ok()?.nodes().await.ok()?;
        (rows[0].refused > 0).then_some(rows[0].refused)
    };
    let all = || async { counted().await.filter(|count| *count == 3) };
    eventually("the Monitor Node hears of each from the donor", all).await;
    assert_eq!(Far::new(grant).read(0, 6), Ok(b"secret".to_vec()), "nothing was written");
    assert_eq!(counted().await, Some(3), "the right key counts for nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_expires_without_renewal() {
    let dir = tempfile::tempdir().unwrap();
    let (_monitor, at) = monitor(dir.path(), "127.0.0.1:0", 1.0).await;
    let _one = agent(dir.path(), "one", at).await;
    let mut client = rack_with(at, 1, 2 * SLAB_BYTES).await;
    let grants = client.allocate(request(SLAB_BYTES, 1)).await.unwrap();
    let near = borrow(&grants[0]);
    near.write(0, 0, b"secret");

    // Twice the lease; on a machine too busy to renew in time it is `Unknown`, and the rest of the
    // test is still valid.
    let mut live = 0;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        live += usize::from(matches!(renew(&grants[0]).await, LeaseState::Live { .. }));
    }
    assert!(live > 0);

    rack_with(at, 1, 2 * SLAB_BYTES).await;
    assert_eq!(renew(&grants[0]).await, LeaseState::Unknown);
    eventually("the shm connection ends", || async { near.connection.is_closed().then_some(()) })
        .await;
    eventually("the Monitor Node forgets the grant", || async {
        MonitorClient::connect(&access(at))
            .await
            .ok()?
            .grants()
            .await
            .ok()?
            .is_empty()
            .then_some(())
    })
    .await;
    let next = client.allocate(request(2 * SLAB_BYTES, 2)).await.unwrap();
    let next = borrow(&next[0]);
    assert_eq!(next.read(0, 0, 6), [0; 6]);
    assert_eq!(next.read(1, 0, 6), [0; 6]);
}

#[tokio::test(flavor = "multi_thread")]
async fn data_plane_survives_monitor_death() {
    let dir = tempfile::tempdir().unwrap();
    let (first, at) = monitor(dir.path(), "127.0.0.1:0", 60.0).await;
    let _one = agent(dir.path(), "one", at).await;
    let mut client = rack_with(at, 1, 2 * SLAB_BYTES).await;
    let grants = client.allocate(request(SLAB_BYTES, 1)).await.unwrap();
    let (near, mut far) = (borrow(&grants[0]), Far::new(&grants[0]));
    far.write(0, b"before").unwrap();
    drop(client);
    first.stop().await;

    near.write(0, 100, b"without");
    assert_eq!(far.read(100, 7), Ok(b"without".to_vec()));
    assert!(matches!(renew(&grants[0]).await, LeaseState::Live { .. }));
    assert!(!near.connection.is_closed());

    let (_second, _) = monitor(dir.path(), &at.to_string(), 60.0).await;
    let mut client = rack_with(at, 1, SLAB_BYTES).await;
    let rows = client.grants().await.unwrap();
    assert_eq!((rows.len(), rows[0].id, rows[0].state.as_str()), (1, grants[0].id.0, "committed"));
    assert_eq!(far.read(0, 6), Ok(b"before".to_vec()));
    client.release(&leases(&grants[..1])).await.unwrap();
    rack_with(at, 1, 2 * SLAB_BYTES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_waits_for_monitor() {
    let dir = tempfile::tempdir().unwrap();
    let (first, at) = monitor(dir.path(), "127.0.0.1:0", 60.0).await;
    first.stop().await;
    let _one = agent(dir.path(), "one", at).await;
    let _second = monitor(dir.path(), &at.to_string(), 60.0).await;
    rack_with(at, 1, 2 * SLAB_BYTES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicate_agent_name_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_monitor, at) = monitor(dir.path(), "127.0.0.1:0", 60.0).await;
    let (first, _) = agent(dir.path(), "same", at).await;
    let mut client = rack_with(at, 1, 2 * SLAB_BYTES).await;
    let grants = client.allocate(request(SLAB_BYTES, 1)).await.unwrap();

    let mut config = agent_config(dir.path(), "same", at);
    config.shm_socket = Some(dir.path().join("other.sock"));
    let second = venice_agent::run(config, std::future::pending());
    let error = tokio::time::timeout(PATIENCE, second).await.unwrap().unwrap_err();
    assert!(matches!(&error, AgentError::NameTaken { name, .. } if name == "same"), "{error}");
    assert!(error.to_string().contains("--name"), "{error}");

    let near = borrow(&grants[0]);
    let old_node = grants[0].donor_node;
    drop(first);
    eventually("its recipients notice", || async { near.connection.is_closed().then_some(()) })
        .await;
    let _third = agent(dir.path(), "same", at).await;
    rack_with(at, 1, 2 * SLAB_BYTES).await;
    // On a loaded machine the agent may miss heartbeats and count as down for a while.
    let grants = eventually("the third lends", || async {
        let mut client = MonitorClient::connect(&access(at)).await.ok()?;
        client.allocate(request(2 * SLAB_BYTES, 2)).await.ok()
    });
    let grants = grants.await;
    assert_eq!(grants[0].donor_node, old_node, "a name keeps its number");
}

#[tokio::test(flavor = "multi_thread")]
async fn links_are_tested() {
    let dir = tempfile::tempdir().unwrap();
    let (_monitor, at) = monitor(dir.path(), "127.0.0.1:0", 60.0).await;
    let _one = agent(dir.path(), "one", at).await;
    let _two = agent(dir.path(), "two", at).await;
    for (from, to) in [("one", "two"), ("two", "one")] {
        let row = eventually(&format!("a test of {from} to {to}"), || async {
            let mut client = MonitorClient::connect(&access(at)).await.ok()?;
            let rows = client.links().await.ok()?;
            rows.into_iter().find(|row| (row.from.as_str(), row.to.as_str()) == (from, to))
        })
        .await;
        assert_eq!(row.port, "udp");
        assert_eq!(row.state, "up");
        assert!(row.latency_us > Some(0.0) && row.loss_ratio <= Some(1.0), "{row:?}");
        assert_ne!(row.protection, "plain");
        let mut client = MonitorClient::connect(&access(at)).await.unwrap();
        let nodes = client.nodes().await.unwrap();
        let row = nodes.iter().find(|row| row.name == to).unwrap();
        assert_eq!((row.forged, row.replayed, row.unsealed, row.unknown_key), (0, 0, 0, 0));
    }
    eventually("the tests' own traffic to be seen", || async {
        let mut client = MonitorClient::connect(&access(at)).await.ok()?;
        let rows = client.links().await.ok()?;
        rows.into_iter().find(|row| row.bytes_per_s > Some(0.0)).map(drop)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_agent_is_refused_in_sealed_rack() {
    let dir = tempfile::tempdir().unwrap();
    let (_monitor, at) = monitor(dir.path(), "127.0.0.1:0", 60.0).await;
    let config = AgentConfig { plain: true, ..agent_config(dir.path(), "open", at) };
    let run = venice_agent::run(config, std::future::pending());
    let error = tokio::time::timeout(PATIENCE, run).await.unwrap().unwrap_err();
    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(source.contains("--plain"), "{error}: {source}");
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_settings_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = "127.0.0.1:1".parse().unwrap();
    let refused = async |config| {
        let run = venice_agent::run(config, std::future::pending());
        tokio::time::timeout(PATIENCE, run).await.unwrap().unwrap_err().to_string()
    };
    let huge = AgentConfig { lend: ByteSize(1 << 60), ..agent_config(dir.path(), "huge", nowhere) };
    assert!(refused(huge).await.contains("available"));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let config = AgentConfig { listen: Some(listen), ..agent_config(dir.path(), "a", nowhere) };
    assert!(refused(config).await.contains("in use"));
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let config = AgentConfig { shm_socket: Some(file), ..agent_config(dir.path(), "a", nowhere) };
    assert!(refused(config).await.contains("not a socket"));
}
