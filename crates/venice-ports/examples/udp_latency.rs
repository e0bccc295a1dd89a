//! Round trips over loopback: a 4 KiB read through the udp port beside a bare datagram echo.
//!
//! `cargo run --release -p venice-ports --example udp_latency`

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use venice_fabric::{GrantedMemory, InitiatorConfig, Refusal, TargetConfig};
use venice_ports::monotonic_ns;
use venice_ports::seal::{SealKeys, SealedAs, node_key};
use venice_ports::udp::{self, UdpDriver, UdpServer, UdpService};
use venice_wire::{GrantId, GrantKey, KeyName, NodeId, NodeSecret};

const ROUNDS: usize = 20_000;
const WINDOW_BYTES: u64 = 16 << 20;

struct Zeroes;

impl GrantedMemory for Zeroes {
    fn read(&mut self, _: GrantId, _: GrantKey, _: u64, into: &mut [u8]) -> Result<(), Refusal> {
        into.fill(0);
        Ok(())
    }

    fn write(&mut self, _: GrantId, _: GrantKey, _: u64, _: &[u8]) -> Result<(), Refusal> {
        Ok(())
    }
}

fn main() {
    let only = std::env::args().nth(1);
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    if wanted("bare") {
        show("bare echo, 64 B there, 4 KiB back", bare());
    }
    for is_sealed in [false, true] {
        for is_busy in [false, true] {
            let name = if is_sealed { "sealed" } else { "plain" };
            if wanted(name) || wanted(&format!("{name}-{}", if is_busy { "busy" } else { "idle" }))
            {
                through_the_port(is_sealed, is_busy);
            }
        }
    }
}

fn through_the_port(is_sealed: bool, is_busy: bool) {
    let loopback: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let socket = udp::UdpSocket::bind(loopback).unwrap();
    let (secret, name) = (NodeSecret([1; 32]), KeyName::Grant(GrantId(1)));
    let keys = is_sealed.then(|| Arc::new(secret) as Arc<dyn SealKeys + Send + Sync>);
    let target = TargetConfig::new(NodeId(1), 1);
    let service = UdpService { sockets: vec![socket], target, keys };
    let server = UdpServer::serve(service, || Zeroes).unwrap();
    let (now_ns, donor) = (monotonic_ns(), server.local_addr());
    let config = InitiatorConfig::new(NodeId(2), 2);
    let (mut driver, peer) = if is_sealed {
        let mut driver = UdpDriver::sealed(loopback, config).unwrap();
        let named = SealedAs { name, key: node_key(&secret, name) };
        let peer = driver.add_sealed_peer(now_ns, NodeId(1), donor, named).unwrap();
        (driver, peer)
    } else {
        let mut driver = UdpDriver::new(loopback, config).unwrap();
        let peer = driver.add_peer(now_ns, NodeId(1), donor).unwrap();
        (driver, peer)
    };
    driver.set_busy_poll(is_busy);
    driver.initiator().map_window(0, WINDOW_BYTES, peer, 0, GrantId(1), GrantKey(1)).unwrap();
    reads(&mut driver, 1, 100);
    let how = format!(
        "{}{}",
        if is_sealed { "sealed" } else { "plain" },
        if is_busy { ", looking out" } else { "" }
    );
    show(&format!("read of 4 KiB, {how}"), reads(&mut driver, 1, ROUNDS));
    let start_ns = monotonic_ns();
    reads(&mut driver, 32, ROUNDS / 32);
    let pages = (ROUNDS / 32 * 32) as f64;
    let seconds = (monotonic_ns() - start_ns) as f64 / 1e9;
    println!("{:40} {:8.0} pages/s", format!("32 reads in flight, {how}"), pages / seconds);
}

fn bare() -> Vec<u64> {
    let donor = UdpSocket::bind("127.0.0.1:0").unwrap();
    let recipient = UdpSocket::bind("127.0.0.1:0").unwrap();
    recipient.connect(donor.local_addr().unwrap()).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 4160];
        while let Ok((_, from)) = donor.recv_from(&mut buffer) {
            let _ = donor.send_to(&buffer, from);
        }
    });
    let mut buffer = [0; 4160];
    let mut round_trip = || {
        let start_ns = monotonic_ns();
        recipient.send(&buffer[..64]).unwrap();
        recipient.recv(&mut buffer).unwrap();
        monotonic_ns() - start_ns
    };
    (0..ROUNDS).map(|_| round_trip()).collect()
}

/// Rounds of `at_once` reads; the time of each round.
fn reads(driver: &mut UdpDriver, at_once: u64, rounds: usize) -> Vec<u64> {
    let mut round = || {
        let start_ns = monotonic_ns();
        for page in 0..at_once {
            driver.initiator().read(start_ns, page, page * 4096, 4096).unwrap();
        }
        let mut left = at_once;
        loop {
            let now_ns = monotonic_ns();
            driver.pump(now_ns).unwrap();
            while let Some(done) = driver.initiator().poll_completion() {
                done.result.unwrap();
                left -= 1;
            }
            if left == 0 {
                return monotonic_ns() - start_ns;
            }
            driver.wait(now_ns, 1_000_000_000).unwrap();
        }
    };
    (0..rounds).map(|_| round()).collect()
}

fn show(what: &str, mut times_ns: Vec<u64>) {
    times_ns.sort_unstable();
    let at = |share: f64| times_ns[(times_ns.len() as f64 * share) as usize] as f64 / 1000.0;
    println!("{what:40} p50 {:6.1} us  p99 {:6.1} us", at(0.5), at(0.99));
}
