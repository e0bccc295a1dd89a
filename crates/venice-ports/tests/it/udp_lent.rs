//! Tests of bulk reads over real UDP sockets, answered from where the bytes are, while a thread on
//! the donor's host writes some of them all the time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::lent::LentBytes;
use venice_fabric::{GrantedMemory, InitiatorConfig, TargetConfig};
use venice_ports::monotonic_ns;
use venice_ports::udp::{UdpDriver, UdpServer, UdpSocket};
use venice_wire::{GrantId, GrantKey, NodeId};

const MEMORY_BYTES: usize = 1 << 20;
/// Bytes that the thread writes all the time.
const BUSY_BYTES: usize = 64 << 10;
const READS: u64 = 20;
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn bulk_reads_survive_concurrent_writes() {
    let memory = LentBytes::new(vec![7; MEMORY_BYTES]);
    let socket = UdpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let target = TargetConfig::new(NodeId(1), 1);
    let server = UdpServer::start(socket, target, memory.clone()).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (mut memory, is_over) = (memory, &is_over);
        scope.spawn(move || {
            let (mut byte, mut at) = (0u8, 0);
            while !is_over.load(Ordering::Relaxed) {
                memory.write(GrantId(1), GrantKey(1), at, &[byte; 512]).unwrap();
                at = (at + 512) % BUSY_BYTES as u64;
                byte = byte.wrapping_add(1);
            }
        });
        let outcome = scope.spawn(|| read_again_and_again(&server)).join();
        is_over.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
}

fn read_again_and_again(server: &UdpServer) {
    let config = InitiatorConfig::new(NodeId(100), 1);
    let mut driver = UdpDriver::new("127.0.0.1:0".parse().unwrap(), config).unwrap();
    let peer = driver.add_peer(monotonic_ns(), NodeId(1), server.local_addr()).unwrap();
    driver
        .initiator()
        .map_window(0, MEMORY_BYTES as u64, peer, 0, GrantId(1), GrantKey(1))
        .unwrap();
    let start = Instant::now();
    let mut buffer = vec![0; MEMORY_BYTES];
    for token in 0..READS {
        buffer.fill(0);
        driver.initiator().rdma_read(monotonic_ns(), token, 0, buffer).unwrap();
        buffer = loop {
            assert!(start.elapsed() < PATIENCE, "{token} of {READS} reads have ended");
            driver.pump(monotonic_ns()).unwrap();
            if let Some(done) = driver.initiator().poll_rdma_completion() {
                assert_eq!((done.token, done.result), (token, Ok(())));
                break done.buffer;
            }
            driver.wait(monotonic_ns(), 10_000_000).unwrap();
        };
        assert!(buffer[BUSY_BYTES..].iter().all(|&byte| byte == 7), "read {token}");
    }
}
