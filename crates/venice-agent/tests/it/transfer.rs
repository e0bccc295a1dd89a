//! Grants change hands while they are in use, over real agents and a Monitor Node.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::*;
use venice_control::client::{Access, MonitorClient};
use venice_control::{
    Caller, ClaimRequest, ControlError, Endpoint, Grant, LeaseState, Owner, RackError, Share,
    TransferRequest, TransferState, User,
};
use venice_testkit::identity::login_of;
use venice_wire::{GrantId, GrantKey, NodeId, PortId, SLAB_BYTES, SealKey};

/// The variable by which this test's child gets its grant.
const STALE_OWNER: &str = "VENICE_TEST_STALE_OWNER";

fn access_of(at: impl ToString, name: &str) -> Access {
    let user = User { node: "one".into(), uid: 1000, name: name.into(), is_admin: false };
    Access::new(at.to_string(), login_of(&Caller::User(user)))
}

async fn client_of(at: impl ToString, name: &str) -> MonitorClient {
    MonitorClient::connect(&access_of(at, name)).await.unwrap()
}

fn transfer(grants: &[Grant], client_id: u128) -> TransferRequest {
    TransferRequest {
        client_id,
        grants: grants.iter().map(|grant| grant.id).collect(),
        to: Owner { node: "one".into(), user: "bob".into(), is_bound: false },
        claim_ms: 60_000,
    }
}

async fn claim(client: &mut MonitorClient) -> Vec<Grant> {
    let request = ClaimRequest { recipient: "bob's".into(), transfer: None };
    client.claim(request).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn transferred_memory_keeps_its_content() {
    let dir = tempfile::tempdir().unwrap();
    let (_monitor, at) = start_monitor(monitor_config(dir.path(), 60.0)).await;
    let _one = agent(dir.path(), "one", at).await;
    let _client = rack_with(at, 1, 2 * SLAB_BYTES).await;
    let (mut ada, mut bob) = (client_of(at, "ada").await, client_of(at, "bob").await);
    let grants = ada.allocate(request(SLAB_BYTES, 1)).await.unwrap();
    let mut old = tokio::task::block_in_place(|| Far::new(&grants[0]));
    tokio::task::block_in_place(|| old.write(4096, b"from ada")).unwrap();

    let refused = bob.transfer(transfer(&grants, 2)).await.unwrap_err();
    assert!(matches!(refused, ControlError::Forbidden(_)), "{refused}");
    assert_eq!(claim(&mut bob).await, []);
    let rows = ada.transfer(transfer(&grants, 3)).await.unwrap();
    assert_eq!(rows[0].state, TransferState::Done);
    assert_eq!(renew(&grants[0]).await, LeaseState::Transferred { to: "bob@one".into() });

    let mine = claim(&mut bob).await;
    assert_eq!(
        (mine.len(), mine[0].id, mine[0].share.clone()),
        (1, rows[0].to, grants[0].share.clone())
    );
    assert!(matches!(renew(&mine[0]).await, LeaseState::Live { .. }));
    tokio::task::block_in_place(|| {
        let mut new = Far::new(&mine[0]);
        assert_eq!(new.read(4096, 8), Ok(b"from ada".to_vec()));
        new.write(4096, b"from bob").unwrap();
        assert!(old.write(4096, b"too late").is_err());
        assert_eq!(new.read(4096, 8), Ok(b"from bob".to_vec()));
        assert_eq!(old.poll_revocation(), Some(grants[0].id));
    });
    // The old owner's release, and a repeated transfer, change nothing.
    ada.release(&leases(&grants)).await.unwrap();
    assert_eq!(ada.transfer(transfer(&grants, 3)).await.unwrap(), rows);
    let row = bob.grants().await.unwrap().remove(0);
    assert_eq!(
        (row.owner_user.as_str(), row.ownership, row.state.as_str()),
        ("bob", 2, "committed")
    );
    bob.release(&leases(&mine)).await.unwrap();
    rack_with(at, 1, 2 * SLAB_BYTES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mapped_memory_is_not_transferred() {
    let dir = tempfile::tempdir().unwrap();
    let (_monitor, at) = start_monitor(monitor_config(dir.path(), 60.0)).await;
    let _one = agent(dir.path(), "one", at).await;
    let _client = rack_with(at, 1, 2 * SLAB_BYTES).await;
    let mut ada = client_of(at, "ada").await;
    let grants = ada.allocate(request(SLAB_BYTES, 1)).await.unwrap();
    let fetch = || {
        venice_ports::shm::fetch_slabs(
            std::path::Path::new(grants[0].address(PortId::Shm)),
            grants[0].id,
            grants[0].key,
            1,
        )
    };
    let mapped = tokio::task::block_in_place(fetch).unwrap();
    // It may keep the mapping whether it is connected or not.
    drop(mapped);
    let refused = ada.transfer(transfer(&grants, 2)).await.unwrap_err();
    let is_failed = matches!(&refused, ControlError::Rack(RackError::TransferFailed(why)) if why.contains("--port udp"));
    assert!(is_failed, "{refused}");
    assert!(matches!(renew(&grants[0]).await, LeaseState::Live { .. }), "nothing has changed");
}

/// Writes its count to the memory over and over, until an access fails. In the child only.
#[test]
fn stale_owner_program() {
    let Ok(grant) = std::env::var(STALE_OWNER) else { return };
    let mut far = Far::new(&parse(&grant));
    let mut count = 0u64;
    let failure = loop {
        count += 1;
        let bytes = count.to_le_bytes();
        let written = far.try_write(0, &bytes).and_then(|()| far.try_write(4096, &bytes));
        if let Err(error) = written {
            break error;
        }
        println!("wrote {count}");
        std::io::stdout().flush().unwrap();
    };
    println!("refused {failure}");
}

/// The grant, for the child.
fn format(grant: &Grant) -> String {
    let seal: Vec<String> =
        grant.seal_key().unwrap().0.iter().map(|byte| byte.to_string()).collect();
    format!(
        "{} {} {} {} {}",
        grant.id.0,
        grant.key.0,
        grant.donor_node.0,
        grant.address(PortId::Udp),
        seal.join(",")
    )
}

fn parse(text: &str) -> Grant {
    let words: Vec<&str> = text.split(' ').collect();
    let seal: Vec<u8> = words[4].split(',').map(|byte| byte.parse().unwrap()).collect();
    Grant {
        id: GrantId(words[0].parse().unwrap()),
        donor: String::new(),
        donor_node: NodeId(words[2].parse().unwrap()),
        donor_epoch: 1,
        share: Share::of_slabs(1),
        key: GrantKey(words[1].parse().unwrap()),
        control_addr: String::new(),
        endpoints: Endpoint::of_memory(words[3], Some(SealKey(seal.try_into().unwrap())), ""),
        lease_s: 60.0,
    }
}

/// The old owner's process.
struct StaleOwner(Child);

impl StaleOwner {
    fn start(grant: &Grant) -> (Self, BufReader<std::process::ChildStdout>) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["transfer::stale_owner_program", "--exact", "--nocapture"])
            .env(STALE_OWNER, format(grant))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        (Self(child), out)
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for StaleOwner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads lines until one contains `word`.
fn await_line(out: &mut impl BufRead, word: &str) -> String {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "no line with {word}");
        let mut line = String::new();
        assert!(out.read_line(&mut line).unwrap() > 0, "it ended without {word}");
        if line.contains(word) {
            return line;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_owner_reaches_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_monitor, at) = start_monitor(monitor_config(dir.path(), 60.0)).await;
    let _one = agent(dir.path(), "one", at).await;
    let _client = rack_with(at, 1, 2 * SLAB_BYTES).await;
    let (mut ada, mut bob) = (client_of(at, "ada").await, client_of(at, "bob").await);
    for (round, pause) in [Duration::ZERO, Duration::from_secs(3)].into_iter().enumerate() {
        let id = 10 * (1 + round as u128);
        let grants = ada.allocate(request(SLAB_BYTES, id)).await.unwrap();
        let (owner, mut out) = StaleOwner::start(&grants[0]);
        tokio::task::block_in_place(|| await_line(&mut out, "wrote 100"));
        owner.signal(rustix::process::Signal::STOP);
        ada.transfer(transfer(&grants, id + 1)).await.unwrap();
        let mine = claim(&mut bob).await;
        let mut new = tokio::task::block_in_place(|| Far::new(&mine[0]));
        let read = |new: &mut Far| {
            let word = |bytes: Vec<u8>| u64::from_le_bytes(bytes.try_into().unwrap());
            [0, 4096].map(|at| word(new.read(at, 8).unwrap()))
        };
        let before = tokio::task::block_in_place(|| read(&mut new));
        assert!(before[0] >= 100 && before[0].abs_diff(before[1]) <= 1, "{before:?}");
        // The donor forgets the old number after two seconds.
        tokio::time::sleep(pause).await;
        tokio::task::block_in_place(|| {
            new.write(8192, b"bob's own").unwrap();
            owner.signal(rustix::process::Signal::CONT);
            let line = await_line(&mut out, "refused");
            println!("after {pause:?}: {line}");
            assert_eq!(read(&mut new), before, "no byte of it landed");
            assert_eq!(new.read(8192, 9), Ok(b"bob's own".to_vec()));
        });
        bob.release(&leases(&mine)).await.unwrap();
    }
}
