//! An attacker on the network: datagrams that are repeated, changed, cut short, plain, or under
//! unknown keys are dropped and counted, while a program on borrowed memory continues unharmed.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use venice_control::client::{Access, Login, MonitorClient};
use venice_control::{AllocationRequest, Grant, Want};
use venice_e2e::programs::{MIB, Port, Rack, paged_mode_is_missing, redis, wait_for};
use venice_fabric::InitiatorConfig;
use venice_ports::monotonic_ns;
use venice_ports::seal::{SealedAs, Sealer, node_key};
use venice_ports::udp::{UdpDriver, unspecified_like};
use venice_wire::{
    Channel, GrantId, HeaderRepr, KeyName, NodeId, NodeSecret, Opcode, PortId, SEAL_OVERHEAD_BYTES,
    SEALED_HEADER_BYTES,
};

const KEYS: u64 = 30_000;
const LIMIT: Duration = Duration::from_secs(60);
const COUNTERS: [&str; 4] = ["replayed", "forged", "unsealed", "unknown_key"];

/// A man in the middle of recipient and donor: forwards everything and keeps the datagrams to the
/// donor.
struct Listener {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    fn start(donor: SocketAddr) -> Self {
        let (near, far) = (socket(), socket());
        far.connect(donor).unwrap();
        let address = near.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (kept, stopped) = (Arc::clone(&heard), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            near.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            far.set_nonblocking(true).unwrap();
            let mut buffer = vec![0; 65_536];
            let mut recipient = None;
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((len, from)) = near.recv_from(&mut buffer) {
                    recipient = Some(from);
                    kept.lock().unwrap().push(buffer[..len].to_vec());
                    far.send(&buffer[..len]).unwrap();
                }
                while let (Ok(len), Some(to)) = (far.recv(&mut buffer), recipient) {
                    near.send_to(&buffer[..len], to).unwrap();
                }
            }
        });
        Self { address, heard, stop, thread: Some(thread) }
    }

    fn heard(&self) -> Vec<Vec<u8>> {
        self.heard.lock().unwrap().clone()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

fn socket() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").unwrap()
}

/// Borrows a grant of the rack's for the test itself.
fn borrow(rack: &Rack) -> Grant {
    let status = rack.json(&["status"]);
    let login = Login::at_sockets(vec![rack.run_dir().join("monitor.sock")]);
    let access = Access::new(status["monitor"]["addr"].as_str().unwrap(), login);
    let request = AllocationRequest {
        client_id: u128::from(monotonic_ns()),
        recipient: "test".into(),
        wants: vec![Want::memory(16 << 20, 1)],
        donors: vec!["node1".into()],
        home: String::new(),
        placement: None,
        purpose: "protection".into(),
        queueing: Default::default(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let granted = runtime
        .block_on(async { MonitorClient::connect(&access).await.unwrap().allocate(request).await });
    granted.unwrap().remove(0)
}

/// A recipient with the grant mapped at 0.
struct Recipient(UdpDriver);

impl Recipient {
    fn new(grant: &Grant, address: SocketAddr) -> Self {
        let config = InitiatorConfig::new(NodeId(1000), monotonic_ns());
        let key = grant.seal_key().expect("protection is the default");
        let named = Some(SealedAs { name: KeyName::Grant(grant.id), key });
        let local = unspecified_like(address);
        let (mut driver, peer) =
            UdpDriver::towards(local, config, grant.donor_node, address, named).unwrap();
        driver.initiator().map_window(0, grant.share.bytes, peer, 0, grant.id, grant.key).unwrap();
        Self(driver)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        self.0.initiator().write(monotonic_ns(), 1, at, bytes).unwrap();
        self.finish();
    }

    fn read(&mut self, at: u64, len: u32) -> Vec<u8> {
        self.0.initiator().read(monotonic_ns(), 1, at, len).unwrap();
        self.finish()
    }

    fn finish(&mut self) -> Vec<u8> {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < LIMIT, "the access never ends");
            self.0.pump(monotonic_ns()).unwrap();
            if let Some(done) = self.0.initiator().poll_completion() {
                assert_eq!(done.result, Ok(()));
                return done.data.to_vec();
            }
            self.0.wait(monotonic_ns(), 10_000_000).unwrap();
        }
    }
}

/// Sends everything that an attacker without the key can make of the recorded datagrams.
fn attack(donor: SocketAddr, node: NodeId, heard: &[Vec<u8>]) {
    let attacker = socket();
    let send = |datagram: &[u8]| {
        attacker.send_to(datagram, donor).unwrap();
        // The pause avoids losses for want of room: all of them must be counted as dropped.
        std::thread::sleep(Duration::from_micros(20));
    };
    for datagram in heard {
        send(datagram);
        let mut changed = datagram.clone();
        for at in [8, 16, 24, 31, SEALED_HEADER_BYTES, datagram.len() - 1] {
            changed[at] ^= 0x10;
            send(&changed);
            changed[at] ^= 0x10;
        }
        send(&datagram[..datagram.len() / 2]);
        send(&datagram[..SEALED_HEADER_BYTES]);
        send(&datagram[..1]);
        send(&[datagram, &b"more"[..]].concat());
    }
    // A plain frame, and one under a key of the attacker's own.
    let hello = HeaderRepr::new(Channel::Link, Opcode::Hello, NodeId(7), node);
    let mut frame = [0; 64];
    hello.emit(&[], &mut frame).unwrap();
    let name = KeyName::Grant(GrantId(u64::MAX));
    let mut sealer = Sealer::new(name, &node_key(&NodeSecret([0; 32]), name)).unwrap();
    let mut sealed = [0; 64 + SEAL_OVERHEAD_BYTES];
    for _ in 0..100 {
        send(&frame);
        sealed[SEALED_HEADER_BYTES..][..64].copy_from_slice(&frame);
        sealer.seal(&mut sealed, 64).unwrap();
        send(&sealed);
    }
}

fn counts(row: &Value) -> [u64; 4] {
    COUNTERS.map(|counter| row[counter].as_u64().unwrap_or_else(|| panic!("{counter}: {row}")))
}

#[test]
fn attacker_without_key_does_no_harm() {
    if paged_mode_is_missing("attacker_without_key_does_no_harm") {
        return;
    }
    let rack = Rack::start(Port::Udp, 128);
    let dir = tempfile::tempdir().unwrap();
    let options = ["--local", "24MiB", "--remote", "192MiB"];
    let server = rack.run(&options, &redis::server(dir.path()));
    let mut client = redis::Client::connect(&redis::socket(dir.path()));
    let keys: Vec<u64> = (0..KEYS).collect();
    client.set_all(&keys, 1);

    let grant = borrow(&rack);
    let donor: SocketAddr = grant.address(PortId::Udp).parse().unwrap();
    let listener = Listener::start(donor);
    let mut recipient = Recipient::new(&grant, listener.address);
    let page = |byte: u8| vec![byte; 4096];
    for byte in 1..=40 {
        recipient.write(4096 * u64::from(byte), &page(byte));
        recipient.write(0, &page(byte));
    }
    let heard = listener.heard();
    assert!(heard.len() >= 80);
    let secret = page(40);
    assert!(!heard.iter().any(|d| d.windows(64).any(|part| part == &secret[..64])), "in the clear");

    let node = grant.donor_node;
    let attacker = std::thread::spawn(move || attack(donor, node, &heard));
    let mut generation = 1;
    while !attacker.is_finished() || generation < 3 {
        generation += 1;
        client.set_all(&keys, generation);
        client.check_all(&keys, |_| generation);
    }
    attacker.join().unwrap();

    for byte in 1..=40 {
        assert!(recipient.read(4096 * u64::from(byte), 4096) == page(byte), "page {byte}");
    }
    assert!(recipient.read(0, 4096) == page(40), "a replayed write was carried out");
    client.check_all(&keys, |_| generation);

    let dropped = wait_for("the dropped datagrams to be told", LIMIT, || {
        let nodes = rack.json(&["nodes"]);
        let is_node1 = |row: &&Value| row["name"] == "node1";
        let row = nodes.as_array().unwrap().iter().find(is_node1)?.clone();
        assert_ne!(row["protection"], "plain", "{row}");
        let counts = counts(&row);
        counts.iter().all(|count| *count >= 80).then_some(counts)
    });
    println!("node1 dropped {COUNTERS:?} {dropped:?}");
    let status = rack.json(&["status"]);
    assert_eq!(status["plain"], false);
    for agent in status["agents"].as_array().unwrap() {
        let is_target = agent["name"] == "node1";
        assert_eq!(counts(agent).iter().all(|count| *count > 0), is_target, "{agent}");
    }
    let sheet = String::from_utf8(rack.venice(&["status"]).stdout).unwrap();
    assert!(
        sheet.contains("warning: datagrams dropped since the agents started: node1"),
        "{sheet}"
    );

    client.shut_down();
    server.finish(LIMIT).expect_code(0);
}

#[test]
fn plain_rack_warns() {
    if paged_mode_is_missing("plain_rack_warns") {
        return;
    }
    let rack = Rack::start_with(Port::Udp, 64, &["--plain"]);
    let dir = tempfile::tempdir().unwrap();
    let server = rack.run(&["--local", "16MiB", "--remote", "64MiB"], &redis::server(dir.path()));
    let mut client = redis::Client::connect(&redis::socket(dir.path()));
    let keys: Vec<u64> = (0..KEYS / 2).collect();
    client.set_all(&keys, 1);
    client.check_all(&keys, |_| 1);
    wait_for("the links to be tested", LIMIT, || {
        let links = rack.json(&["links"]);
        let rows = links.as_array().unwrap();
        assert!(rows.iter().all(|row| row["protection"] == "plain"), "{links}");
        (rows.iter().filter(|row| row["state"] == "up").count() >= 12).then_some(())
    });
    assert_eq!(rack.json(&["status"])["plain"], true);
    let sheet = String::from_utf8(rack.venice(&["status"]).stdout).unwrap();
    assert!(sheet.contains("without protection"), "{sheet}");
    assert!(borrow(&rack).seal_key().is_none());
    // More than 8 MiB of values, so that some of them were far.
    assert!(keys.len() as u64 * 1024 > 8 * MIB);
    client.shut_down();
    server.finish(LIMIT).expect_code(0);
}
