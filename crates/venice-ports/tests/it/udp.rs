//! Tests of recipient and donor over real UDP sockets, with a proxy in between that drops,
//! duplicates and reorders datagrams. However bad the network, no byte may be wrong.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::{ID, KEY, OneGrant, Random};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use venice_fabric::{AccessError, FabricError, InitiatorConfig, PeerState, Refusal, TargetConfig};
use venice_ports::monotonic_ns;
use venice_ports::seal::{SealedAs, node_key};
use venice_ports::udp::{self, UdpDriver, UdpServer, UdpService};
use venice_wire::{GrantKey, KeyName, NodeId, NodeSecret};

const MEMORY_BYTES: usize = 1 << 20;
const DONOR: NodeId = NodeId(1);
/// Address at which the recipient maps the donor's memory.
const WINDOW: u64 = 0x7000_0000_0000;
const PATIENCE: Duration = Duration::from_secs(60);

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

const SECRET: NodeSecret = NodeSecret([0x5e; 32]);
const NAME: KeyName = KeyName::Grant(ID);

fn donor(incarnation: u64) -> UdpServer {
    let socket = udp::UdpSocket::bind(loopback()).unwrap();
    let memory = OneGrant(vec![0; MEMORY_BYTES]);
    let target = TargetConfig::new(DONOR, incarnation);
    let service =
        UdpService { sockets: vec![socket], target, keys: Some(Arc::new(SECRET)), xdp: None };
    let mut memory = Some(memory);
    UdpServer::serve(service, || memory.take().unwrap()).unwrap()
}

fn plain_donor(incarnation: u64) -> UdpServer {
    let socket = udp::UdpSocket::bind(loopback()).unwrap();
    let memory = OneGrant(vec![0; MEMORY_BYTES]);
    UdpServer::start(socket, TargetConfig::new(DONOR, incarnation), memory).unwrap()
}

/// Makes a recipient with the donor's memory mapped at [`WINDOW`].
fn recipient(donor: SocketAddr, link_seed: u64, key: GrantKey) -> UdpDriver {
    let config = InitiatorConfig::new(NodeId(100), link_seed);
    let mut driver = UdpDriver::sealed(udp::unspecified_like(donor), config).unwrap();
    let named = SealedAs { name: NAME, key: node_key(&SECRET, NAME) };
    let peer = driver.add_sealed_peer(monotonic_ns(), DONOR, donor, named).unwrap();
    driver.initiator().map_window(WINDOW, MEMORY_BYTES as u64, peer, 0, ID, key).unwrap();
    driver
}

fn plain_recipient(donor: SocketAddr, link_seed: u64) -> UdpDriver {
    let config = InitiatorConfig::new(NodeId(100), link_seed);
    let mut driver = UdpDriver::new(udp::unspecified_like(donor), config).unwrap();
    let peer = driver.add_peer(monotonic_ns(), DONOR, donor).unwrap();
    driver.initiator().map_window(WINDOW, MEMORY_BYTES as u64, peer, 0, ID, KEY).unwrap();
    driver
}

/// Completed access: its token, its result, the bytes read.
type Finished = (u64, Result<(), AccessError>, Vec<u8>);

/// Pumps until `count` accesses have finished.
fn finish(driver: &mut UdpDriver, count: usize) -> Vec<Finished> {
    let start = Instant::now();
    let mut finished = Vec::new();
    while finished.len() < count {
        assert!(start.elapsed() < PATIENCE, "{} of {count} finished", finished.len());
        let now_ns = monotonic_ns();
        driver.pump(now_ns).unwrap();
        while let Some(done) = driver.initiator().poll_completion() {
            finished.push((done.token, done.result, done.data.to_vec()));
        }
        if finished.len() < count {
            driver.wait(monotonic_ns(), 10_000_000).unwrap();
        }
    }
    finished
}

/// Lossy proxy between one recipient and the donor.
struct BadNetwork {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl BadNetwork {
    fn start(donor: SocketAddr, seed: u64) -> Self {
        let near = UdpSocket::bind(loopback()).unwrap();
        let far = UdpSocket::bind(loopback()).unwrap();
        far.connect(donor).unwrap();
        let (address, stop) = (near.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            near.set_read_timeout(Some(Duration::from_micros(200))).unwrap();
            far.set_nonblocking(true).unwrap();
            let mut random = Random(seed);
            let mut buffer = [0; 5000];
            let mut client = None;
            let (mut to_donor, mut to_client) = (Vec::new(), Vec::new());
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((len, from)) = near.recv_from(&mut buffer) {
                    client = Some(from);
                    Self::pass(&mut random, &buffer[..len], &mut to_donor, |bytes| {
                        let _ = far.send(bytes);
                    });
                }
                while let Ok(len) = far.recv(&mut buffer) {
                    Self::pass(&mut random, &buffer[..len], &mut to_client, |bytes| {
                        let _ = near.send_to(bytes, client.unwrap());
                    });
                }
            }
        });
        Self { address, stop, thread: Some(thread) }
    }

    /// Drops 5 %, duplicates 5 %, damages 2 %, and delays 10 % until later ones have passed.
    fn pass(
        random: &mut Random,
        datagram: &[u8],
        held: &mut Vec<Vec<u8>>,
        mut send: impl FnMut(&[u8]),
    ) {
        match random.below(100) {
            0..5 => {}
            5..10 => {
                send(datagram);
                send(datagram);
            }
            10..12 => {
                let mut damaged = datagram.to_vec();
                let at = random.below(damaged.len() as u64) as usize;
                damaged[at] ^= 1 << random.below(8);
                send(&damaged);
            }
            12..22 => held.push(datagram.to_vec()),
            _ => send(datagram),
        }
        if held.len() > random.below(6) as usize {
            let at = random.below(held.len() as u64) as usize;
            send(&held.swap_remove(at));
        }
    }
}

impl Drop for BadNetwork {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

/// Starts an access; moves frames while there is no room for it.
fn start_access(
    driver: &mut UdpDriver,
    mut start: impl FnMut(&mut UdpDriver) -> Result<(), FabricError>,
) {
    let started = Instant::now();
    while let Err(error) = start(driver) {
        assert_eq!(error, FabricError::WouldBlock);
        assert!(started.elapsed() < PATIENCE, "no room for another access");
        driver.pump(monotonic_ns()).unwrap();
        driver.wait(monotonic_ns(), 10_000_000).unwrap();
    }
}

/// Makes random reads and writes, up to 32 at once on separate pages, against a plain array.
fn hammer(driver: &mut UdpDriver, seed: u64, rounds: usize) {
    let mut random = Random(seed);
    let mut model = vec![0u8; MEMORY_BYTES];
    for round in 0..rounds {
        let mut reads = Vec::new();
        let mut started = 0;
        let first_page = random.below(200);
        for page in first_page..first_page + 1 + random.below(32) {
            let at = (page * 4096 + random.below(2000)) as usize;
            let len = 1 + random.below(2096) as usize;
            let token = round as u64 * 1000 + page;
            let window_addr = WINDOW + at as u64;
            if random.below(2) == 0 {
                let data: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
                let write = |driver: &mut UdpDriver| {
                    driver.initiator().write(monotonic_ns(), token, window_addr, &data)
                };
                start_access(driver, write);
                model[at..at + len].copy_from_slice(&data);
            } else {
                let read = |driver: &mut UdpDriver| {
                    driver.initiator().read(monotonic_ns(), token, window_addr, len as u32)
                };
                start_access(driver, read);
                reads.push((token, at, len));
            }
            started += 1;
        }
        let finished = finish(driver, started);
        for (token, result, data) in finished {
            assert_eq!(result, Ok(()), "seed {seed} round {round}");
            match reads.iter().find(|read| read.0 == token) {
                Some((_, at, len)) => {
                    assert!(data == model[*at..*at + *len], "seed {seed} round {round} at {at}");
                }
                None => assert!(data.is_empty()),
            }
        }
    }
}

#[test]
fn random_accesses_read_back() {
    let donor = donor(1);
    hammer(&mut recipient(donor.local_addr(), 11, KEY), 1, 200);
}

#[test]
fn random_accesses_without_protection() {
    let donor = plain_donor(1);
    hammer(&mut plain_recipient(donor.local_addr(), 11), 1, 200);
}

#[test]
fn lossy_network_corrupts_nothing() {
    for seed in 1..=4 {
        let donor = donor(seed);
        let network = BadNetwork::start(donor.local_addr(), seed);
        hammer(&mut recipient(network.address, 100 + seed, KEY), seed, 60);
        let dropped = donor.dropped();
        assert!(dropped.forged > 0 && dropped.replayed > 0, "{dropped:?}");
    }
}

#[test]
fn lossy_network_without_protection() {
    for seed in 1..=4 {
        let donor = plain_donor(seed);
        let network = BadNetwork::start(donor.local_addr(), seed);
        hammer(&mut plain_recipient(network.address, 100 + seed), seed, 60);
    }
}

/// An end that protects its datagrams never accepts plain ones, whatever the other end does.
#[test]
fn plain_peer_is_rejected() {
    let (sealed, plain) = (donor(1), plain_donor(2));
    for (mut driver, server) in [
        (plain_recipient(sealed.local_addr(), 51), &sealed),
        (recipient(plain.local_addr(), 52, KEY), &plain),
    ] {
        driver.initiator().read(monotonic_ns(), 1, WINDOW, 64).unwrap();
        let (_, result, _) = finish(&mut driver, 1).remove(0);
        assert!(matches!(result, Err(AccessError::PeerDown(_))), "{result:?}");
        let dropped = server.dropped();
        assert!(dropped.unsealed + dropped.unknown_key > 0, "{dropped:?}");
    }
    let config = InitiatorConfig::new(NodeId(100), 1);
    let mut driver = UdpDriver::sealed(loopback(), config).unwrap();
    let error = driver.add_peer(monotonic_ns(), DONOR, plain.local_addr()).unwrap_err();
    assert!(error.to_string().contains("--plain"), "{error}");
}

#[test]
fn each_flow_stays_on_its_queue() {
    let sockets = udp::UdpSocket::bind_queues(loopback(), 3).unwrap();
    let address = sockets[0].local_addr();
    let target = TargetConfig::new(DONOR, 3);
    let service = UdpService { sockets, target, keys: Some(Arc::new(SECRET)), xdp: None };
    // Each queue has memory of its own, which reveals a flow that changes its queue.
    let donor = UdpServer::serve(service, || OneGrant(vec![0; MEMORY_BYTES])).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..6 {
            scope.spawn(move || {
                // Flows share the queue in turns: each checks only its own pages.
                let mut driver = recipient(address, 60 + seed, KEY);
                for round in 0..100u8 {
                    let bytes = [round ^ seed as u8; 512];
                    let at = WINDOW + seed * 4096;
                    driver.initiator().write(monotonic_ns(), 1, at, &bytes).unwrap();
                    driver.initiator().read(monotonic_ns(), 2, at, 512).unwrap();
                    let finished = finish(&mut driver, 2);
                    assert_eq!(finished[1], (2, Ok(()), bytes.to_vec()));
                }
            });
        }
    });
    let dropped = donor.dropped();
    assert_eq!((dropped.replayed, dropped.forged), (0, 0));
}

#[test]
fn serves_two_recipients() {
    let donor = donor(5);
    let address = donor.local_addr();
    // The recipients alternate as writer and reader of one page.
    let mut first = recipient(address, 21, KEY);
    let mut second = recipient(address, 22, KEY);
    for byte in 0..50u8 {
        let (writer, reader) =
            if byte % 2 == 0 { (&mut first, &mut second) } else { (&mut second, &mut first) };
        let page = [byte; 4096];
        writer.initiator().write(monotonic_ns(), 1, WINDOW + 4096, &page).unwrap();
        assert_eq!(finish(writer, 1)[0].1, Ok(()));
        reader.initiator().read(monotonic_ns(), 2, WINDOW + 4096, 4096).unwrap();
        assert_eq!(finish(reader, 1), [(2, Ok(()), page.to_vec())]);
    }
}

#[test]
fn wrong_key_is_refused() {
    let donor = donor(6);
    let mut driver = recipient(donor.local_addr(), 31, GrantKey(1));
    driver.initiator().read(monotonic_ns(), 7, WINDOW, 64).unwrap();
    let refused = Err(AccessError::Refused(Refusal::WrongKey));
    assert_eq!(finish(&mut driver, 1), [(7, refused, vec![])]);
}

#[test]
fn dead_donor_fails_access() {
    let donor = donor(7);
    let mut driver = recipient(donor.local_addr(), 41, KEY);
    driver.initiator().write(monotonic_ns(), 1, WINDOW, b"before").unwrap();
    assert_eq!(finish(&mut driver, 1)[0].1, Ok(()));
    drop(donor);
    driver.initiator().read(monotonic_ns(), 2, WINDOW, 6).unwrap();
    let (token, result, data) = finish(&mut driver, 1).remove(0);
    assert!(matches!((token, result), (2, Err(AccessError::PeerDown(_)))), "{result:?}");
    assert!(data.is_empty());
    let later = driver.initiator().read(monotonic_ns(), 3, WINDOW, 6);
    assert!(matches!(later, Err(FabricError::PeerDown(_))), "{later:?}");
}

#[test]
fn rejects_peer_of_other_family() {
    let config = InitiatorConfig::new(NodeId(100), 1);
    let mut driver = UdpDriver::new(loopback(), config).unwrap();
    assert!(driver.add_peer(monotonic_ns(), DONOR, "[::1]:9".parse().unwrap()).is_err());
    let peer = driver.add_peer(monotonic_ns(), DONOR, "127.0.0.1:9".parse().unwrap()).unwrap();
    assert_eq!(driver.initiator().peer_state(peer), PeerState::Connecting);
}

/// Returns how often this thread has gone to sleep so far.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// A turn must not sleep if an answer is waiting already: nothing else may come before the link's
/// next timer.
#[test]
fn turn_handles_waiting_answer() {
    const READS: u64 = 100;
    let server = plain_donor(1);
    let mut driver = plain_recipient(server.local_addr(), 1);
    driver.initiator().read(monotonic_ns(), 0, WINDOW, 64).unwrap();
    finish(&mut driver, 1);
    let mut slept = 0;
    for token in 1..=READS {
        driver.initiator().read(monotonic_ns(), token, WINDOW, 64).unwrap();
        driver.pump(monotonic_ns()).unwrap();
        while driver.initiator().poll_completion().is_none() {
            let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
            let come = poll(&mut [PollFd::new(&driver.fd(), PollFlags::IN)], Some(&limit));
            assert_eq!(come, Ok(1), "no answer to read {token}");
            let before = sleeps();
            driver.turn(1_000_000_000).unwrap();
            slept += sleeps() - before;
        }
    }
    // A frame of the link alone may come now and then.
    assert!(slept < READS / 4, "slept {slept} times with {READS} answers waiting");
}
