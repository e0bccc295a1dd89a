//! Bulk transfers through the udp port over a veth pair between two network namespaces, beside
//! what iperf3 gets over the very same pair, in turns. With one client each end has a processor of its
//! own, as with iperf3; `busy` is for how much of the time the ends' threads ran, all of an end
//! together. Two clients of one queue, and of two, show what a second queue brings: where there are
//! no more than two processors, in the donor's time for each page, for clients want them too.
//!
//! `cargo run --release -p venice-ports --example udp_bandwidth [MTU [plain|sealed [CLIENTS]]]` (as
//! root; MTU 1500 unless said)

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use venice_fabric::{InitiatorConfig, TargetConfig};
use venice_ports::monotonic_ns;
use venice_ports::seal::{SealKeys, SealedAs, node_key};
use venice_ports::udp::{UdpDriver, UdpServer, UdpService, UdpSocket};
use venice_wire::{GrantId, GrantKey, KeyName, NodeId, NodeSecret};

use lent::LentBytes;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use wire::{FAR, FAR_ADDRESS, NEAR, NEAR_ADDRESS, Wire, enter};

mod lent;
mod wire;

const MEMORY_BYTES: usize = 64 << 20;
const TRANSFER_BYTES: usize = 1 << 20;
const TRANSFERS_AT_ONCE: u64 = 4;
/// The median of so many is told; the ways take turns.
const ROUNDS: usize = 5;
const LENGTH_NS: u64 = 400_000_000;
const SECRET: NodeSecret = NodeSecret([1; 32]);
const NAME: KeyName = KeyName::Grant(GrantId(1));

fn main() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("needs root: it makes two network namespaces");
        return;
    }
    let mtu = std::env::args().nth(1).map_or(1500, |text| text.parse().expect("an MTU"));
    let _wire = Wire::new(mtu);
    println!("veth pair between two namespaces, MTU {mtu}");
    let only = std::env::args().nth(2);
    let only_clients =
        std::env::args().nth(3).map(|text| text.parse::<usize>().expect("a number of clients"));
    let mut ways = Vec::new();
    for is_sealed in [false, true] {
        if only.as_deref().is_some_and(|only| (only == "sealed") != is_sealed) {
            continue;
        }
        for (queues, clients) in [(1, 1), (1, 2), (2, 2)] {
            if only_clients.is_some_and(|only| only != clients) {
                continue;
            }
            for direction in [Direction::Read, Direction::Write] {
                ways.push(Way { is_sealed, queues, clients, direction });
            }
        }
    }
    let (mut tcp, mut found) = (Vec::new(), vec![Vec::new(); ways.len()]);
    for _ in 0..ROUNDS {
        tcp.push(iperf());
        for (way, rates) in ways.iter().zip(&mut found) {
            rates.push(transfer(*way));
        }
    }
    println!("{:44} {:7.2} Gb/s", "iperf3, TCP", median(tcp.clone()));
    for (way, rates) in ways.iter().zip(found) {
        let Way { is_sealed, queues, clients, direction } = way;
        let how = if *is_sealed { "sealed" } else { "plain" };
        let what = format!("RDMA {direction:?}, {how}, {queues} queues, {clients} clients");
        let of_tcp = rates.iter().zip(&tcp).map(|(rate, tcp)| rate.gbps / tcp * 100.0).collect();
        let of = |of: fn(&Rate) -> f64| median(rates.iter().map(of).collect());
        let (gbps, near, far) = (of(|r| r.gbps), of(|r| r.near_busy), of(|r| r.far_busy));
        let donor_ns = of(|r| r.far_busy * 4096.0 * 8.0 / r.gbps);
        println!(
            "{what:44} {gbps:7.2} Gb/s  {:4.0} % of iperf3, turn by turn; busy: near {:3.0} %, \
             far {:3.0} %; donor {donor_ns:4.0} ns a page",
            median(of_tcp),
            near * 100.0,
            far * 100.0
        );
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

#[derive(Clone, Copy)]
struct Way {
    is_sealed: bool,
    queues: usize,
    clients: usize,
    direction: Direction,
}

/// What came of it: payload, and the share of the time that the clients' threads and the server's ran.
#[derive(Clone, Copy)]
struct Rate {
    gbps: f64,
    near_busy: f64,
    far_busy: f64,
    all_busy: f64,
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("two processors");
}

/// How long this clock's threads have run, in nanoseconds.
fn ran_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[derive(Clone, Copy, Debug)]
enum Direction {
    Read,
    Write,
}

fn transfer(way: Way) -> Rate {
    let Way { is_sealed, queues, clients, direction } = way;
    let is_alone = (queues, clients) == (1, 1);
    let (tell, told) = channel();
    let server = std::thread::spawn(move || {
        enter(FAR);
        if is_alone {
            pin(1);
        }
        let sockets = UdpSocket::bind_queues((FAR_ADDRESS, 0).into(), queues).unwrap();
        let mut target = TargetConfig::new(NodeId(1), 1);
        target.link.window = 256;
        let keys = is_sealed.then(|| Arc::new(SECRET) as Arc<dyn SealKeys + Send + Sync>);
        let service = UdpService { sockets, target, keys, xdp: None };
        let server = UdpServer::serve(service, || LentBytes::new(vec![1; MEMORY_BYTES])).unwrap();
        tell.send(server.local_addr()).unwrap();
        server
    });
    let address = told.recv().unwrap();
    let clients: Vec<_> = (0..clients)
        .map(|number| {
            std::thread::spawn(move || {
                if is_alone {
                    pin(0);
                }
                client(address, number, is_sealed, direction)
            })
        })
        .collect();
    let rates: Vec<Rate> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    drop(server.join().unwrap());
    let sum = |of: fn(&Rate) -> f64| rates.iter().map(of).sum::<f64>();
    let (gbps, near_busy) = (sum(|rate| rate.gbps), sum(|rate| rate.near_busy));
    Rate { gbps, near_busy, all_busy: rates[0].all_busy, far_busy: rates[0].all_busy - near_busy }
}

fn client(address: SocketAddr, number: usize, is_sealed: bool, direction: Direction) -> Rate {
    enter(NEAR);
    let mut config = InitiatorConfig::new(NodeId(100 + number as u32), 7 + number as u64);
    config.link.window = 256;
    let named = is_sealed.then(|| SealedAs { name: NAME, key: node_key(&SECRET, NAME) });
    let local = (NEAR_ADDRESS, 0).into();
    let (mut driver, peer) = UdpDriver::towards(local, config, NodeId(1), address, named).unwrap();
    driver.set_busy_poll(true);
    let window = MEMORY_BYTES as u64;
    driver.initiator().map_window(0, window, peer, 0, GrantId(1), GrantKey(1)).unwrap();
    let mut buffers: Vec<_> =
        (0..TRANSFERS_AT_ONCE).map(|n| (n, vec![2; TRANSFER_BYTES])).collect();
    let (mut bytes, mut started_ns, mut ran) = (0u64, None, [0; 2]);
    let clocks = [ClockId::ThreadCPUTime, ClockId::ProcessCPUTime];
    loop {
        let now_ns = monotonic_ns();
        while let Some((token, buffer)) = buffers.pop() {
            let at = token * TRANSFER_BYTES as u64;
            let initiator = driver.initiator();
            match direction {
                Direction::Read => initiator.rdma_read(now_ns, token, at, buffer).unwrap(),
                Direction::Write => initiator.rdma_write(now_ns, token, at, buffer).unwrap(),
            }
        }
        driver.pump(now_ns).unwrap();
        while let Some(done) = driver.initiator().poll_rdma_completion() {
            done.result.unwrap();
            buffers.push((done.token, done.buffer));
            match started_ns {
                // The first transfer warms everything up.
                None => {
                    started_ns = Some(monotonic_ns());
                    ran = clocks.map(ran_ns);
                }
                Some(_) => bytes += TRANSFER_BYTES as u64,
            }
        }
        let lasted_ns = started_ns.map_or(0, |start_ns| monotonic_ns() - start_ns);
        if lasted_ns > LENGTH_NS {
            if std::env::var_os("STATS").is_some() {
                eprintln!("{:?}", driver.initiator().peer_stats(peer));
            }
            let [near, all] = clocks.map(ran_ns);
            let [near_busy, all_busy] =
                [near - ran[0], all - ran[1]].map(|ns| ns as f64 / lasted_ns as f64);
            let gbps = bytes as f64 * 8.0 / lasted_ns as f64;
            return Rate { gbps, near_busy, far_busy: all_busy - near_busy, all_busy };
        }
        driver.wait(monotonic_ns(), 100_000_000).unwrap();
    }
}

/// What iperf3 gets with one TCP connection, in gigabits a second.
fn iperf() -> f64 {
    let far = FAR_ADDRESS.to_string();
    let mut server = inside(FAR, &["iperf3", "-s", "-1", "-B", &far]);
    let mut server = server.stdout(Stdio::null()).spawn().expect("iperf3 is installed");
    std::thread::sleep(Duration::from_millis(200));
    let words = ["iperf3", "-c", &far, "-A", "0,1", "-t", "1", "-J"];
    let output = inside(NEAR, &words).output().unwrap();
    let _ = server.wait();
    let text = String::from_utf8_lossy(&output.stdout);
    let received = text.split("\"sum_received\"").nth(1).expect("iperf3 tells what was received");
    let rate = received.split("\"bits_per_second\":").nth(1).unwrap();
    let rate = rate.trim_start().split([',', '\n', '}']).next().unwrap();
    rate.trim().parse::<f64>().unwrap() / 1e9
}

fn inside(namespace: &str, words: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).args(words);
    command
}
