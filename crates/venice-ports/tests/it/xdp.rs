//! Tests of recipient and donor over a virtual wire, single datagrams by AF_XDP at the donor's end
//! or at both. No byte may be wrong on either path, and ends must be reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::netns::{DEVICE, FAR, NEAR, Wire};
use crate::common::{ID, KEY, OneGrant, Random};
use venice_fabric::{
    AccessError, GrantedMemory, InitiatorConfig, PeerState, Refusal, TargetConfig,
};
use venice_ports::PortError;
use venice_ports::monotonic_ns;
use venice_ports::seal::{SealKeys, SealedAs, node_key};
use venice_ports::udp::{
    UdpDriver, UdpServer, UdpService, UdpSocket, Xdp, XdpError, XdpInterface, XdpMode,
};
use venice_wire::{GrantId, GrantKey, KeyName, NodeId, NodeSecret};

const MEMORY_BYTES: usize = 4 << 20;
const DONOR: NodeId = NodeId(1);
const WINDOW: u64 = 0x7000_0000_0000;
const PATIENCE: Duration = Duration::from_secs(60);
const SECRET: NodeSecret = NodeSecret([0x5e; 32]);
const NAME: KeyName = KeyName::Grant(ID);

fn lacks_root(test: &str) -> bool {
    let lacks = !rustix::process::geteuid().is_root();
    if lacks {
        println!("SKIPPED: {test}: needs root");
    }
    lacks
}

fn device(mode: XdpMode) -> XdpInterface {
    XdpInterface { name: DEVICE.to_owned(), mode }
}

/// Memory of one grant, which may end.
struct Ending(OneGrant, Arc<AtomicBool>);

impl GrantedMemory for Ending {
    fn read(&mut self, id: GrantId, key: GrantKey, at: u64, to: &mut [u8]) -> Result<(), Refusal> {
        if self.1.load(Ordering::Acquire) {
            return Err(Refusal::UnknownGrant);
        }
        self.0.read(id, key, at, to)
    }

    fn write(&mut self, id: GrantId, key: GrantKey, at: u64, from: &[u8]) -> Result<(), Refusal> {
        if self.1.load(Ordering::Acquire) {
            return Err(Refusal::UnknownGrant);
        }
        self.0.write(id, key, at, from)
    }
}

/// One configuration of both ends.
#[derive(Clone, Copy, Debug)]
struct Setting {
    is_sealed: bool,
    at_donor: Option<XdpMode>,
    at_recipient: Option<XdpMode>,
}

struct Ends {
    server: UdpServer,
    driver: UdpDriver,
    is_over: Arc<AtomicBool>,
}

impl Setting {
    fn lay(self, wire: &Wire) -> Ends {
        let is_over = Arc::new(AtomicBool::new(false));
        let server = wire.far(|| self.serve(&is_over));
        let (near, far) = ((NEAR, 0).into(), server.local_addr());
        let config = InitiatorConfig::new(NodeId(100), 7);
        let named = self.is_sealed.then(|| SealedAs { name: NAME, key: node_key(&SECRET, NAME) });
        let mut driver = wire.near(|| {
            let (mut driver, peer) = UdpDriver::towards(near, config, DONOR, far, named).unwrap();
            driver.initiator().map_window(WINDOW, MEMORY_BYTES as u64, peer, 0, ID, KEY).unwrap();
            self.at_recipient.iter().for_each(|mode| driver.use_xdp(&device(*mode)).unwrap());
            driver
        });
        driver.set_busy_poll(true);
        Ends { server, driver, is_over }
    }

    fn serve(self, is_over: &Arc<AtomicBool>) -> UdpServer {
        let socket = UdpSocket::bind((FAR, 0).into()).unwrap();
        let open = |mode| Xdp::open(&device(mode), &socket, self.is_sealed).unwrap();
        let xdp = self.at_donor.map(open);
        let service = UdpService {
            sockets: vec![socket],
            target: TargetConfig::new(DONOR, 1),
            keys: self.is_sealed.then(|| Arc::new(SECRET) as Arc<dyn SealKeys + Send + Sync>),
            xdp,
        };
        let memory = || Ending(OneGrant(vec![0; MEMORY_BYTES]), Arc::clone(is_over));
        UdpServer::serve(service, memory).unwrap()
    }
}

impl Ends {
    /// Pumps until `found` returns a value.
    fn until<T>(&mut self, what: &str, mut found: impl FnMut(&mut UdpDriver) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            self.driver.pump(monotonic_ns()).unwrap();
            if let Some(found) = found(&mut self.driver) {
                return found;
            }
            assert!(start.elapsed() < PATIENCE, "no {what}");
            self.driver.wait(monotonic_ns(), 10_000_000).unwrap();
        }
    }

    fn completion(&mut self) -> (Result<(), AccessError>, Vec<u8>) {
        self.until("completion", |driver| {
            let done = driver.initiator().poll_completion()?;
            Some((done.result, done.data.to_vec()))
        })
    }

    fn read(&mut self, at: usize, len: usize) -> (Result<(), AccessError>, Vec<u8>) {
        let window_addr = WINDOW + at as u64;
        self.driver.initiator().read(monotonic_ns(), 0, window_addr, len as u32).unwrap();
        self.completion()
    }

    /// Makes one access after the other, of all sizes, then atomics.
    fn exchange(&mut self, random: &mut Random, model: &mut [u8]) {
        for _ in 0..300 {
            let len =
                if random.below(2) == 0 { 1 + random.below(100) } else { 1 + random.below(4096) };
            let at = random.below((MEMORY_BYTES / 2) as u64 - len);
            let (len, at) = (len as usize, at as usize);
            if random.below(2) == 0 {
                let data = random.bytes(len);
                let window_addr = WINDOW + at as u64;
                self.driver.initiator().write(monotonic_ns(), 0, window_addr, &data).unwrap();
                assert_eq!(self.completion().0, Ok(()));
                model[at..at + len].copy_from_slice(&data);
            } else {
                let (result, data) = self.read(at, len);
                assert_eq!(result, Ok(()));
                assert!(data == model[at..at + len], "{len} at {at}");
            }
        }
        let word = MEMORY_BYTES / 2;
        for count in 0..50u64 {
            let window_addr = WINDOW + word as u64;
            self.driver.initiator().fetch_add(monotonic_ns(), 0, window_addr, 3).unwrap();
            let (result, before) = self.completion();
            assert_eq!((result, before), (Ok(()), (3 * count).to_le_bytes().to_vec()));
        }
    }

    /// Sends small requests that travel together, and must not be merged.
    fn small_requests(&mut self, model: &[u8]) {
        for _ in 0..20 {
            for index in 0..32 {
                let window_addr = WINDOW + 64 * index;
                self.driver.initiator().read(monotonic_ns(), index, window_addr, 64).unwrap();
            }
            for _ in 0..32 {
                let (token, result, data) = self.until("completion", |driver| {
                    let done = driver.initiator().poll_completion()?;
                    Some((done.token, done.result, done.data.to_vec()))
                });
                assert_eq!(result, Ok(()));
                let at = 64 * token as usize;
                assert!(data == model[at..at + 64], "{token}");
            }
        }
    }

    /// Makes bulk transfers both ways, with single accesses in between.
    fn stream(&mut self, random: &mut Random) {
        const LEN: usize = 1 << 20;
        let at = MEMORY_BYTES / 2 + 4096;
        let window_addr = WINDOW + at as u64;
        for _ in 0..4 {
            let data = random.bytes(LEN);
            let initiator = self.driver.initiator();
            initiator.rdma_write(monotonic_ns(), 1, window_addr, data.clone()).unwrap();
            assert_eq!(self.read(0, 64).0, Ok(()));
            let bulk = |driver: &mut UdpDriver| driver.initiator().poll_rdma_completion();
            assert_eq!(self.until("write", bulk).result, Ok(()));
            let initiator = self.driver.initiator();
            initiator.rdma_read(monotonic_ns(), 2, window_addr, vec![0; LEN]).unwrap();
            assert_eq!(self.read(0, 4096).0, Ok(()));
            let read = self.until("read", bulk);
            assert_eq!(read.result, Ok(()));
            assert!(read.buffer == data);
        }
    }

    /// Ends the grant at the donor, and checks the notification.
    fn revoke(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.server.revoke(ID);
        let revoked = self.until("word", |driver| driver.initiator().poll_revoked());
        assert_eq!(revoked.grant, ID);
    }
}

fn settings() -> Vec<Setting> {
    let mut all = Vec::new();
    for is_sealed in [false, true] {
        for mode in [XdpMode::Generic, XdpMode::Native] {
            let at_donor = Some(mode);
            all.push(Setting { is_sealed, at_donor, at_recipient: None });
            all.push(Setting { is_sealed, at_donor, at_recipient: Some(mode) });
        }
        all.push(Setting { is_sealed, at_donor: None, at_recipient: Some(XdpMode::Generic) });
    }
    all
}

#[test]
fn accesses_with_xdp_at_either_end() {
    if lacks_root("accesses_with_xdp_at_either_end") {
        return;
    }
    for mtu in [9000, 1500] {
        let wire = Wire::new(mtu);
        for (seed, setting) in settings().into_iter().enumerate() {
            println!("MTU {mtu}, {setting:?}");
            let mut ends = setting.lay(&wire);
            let (mut random, mut model) = (Random(seed as u64), vec![0; MEMORY_BYTES]);
            ends.exchange(&mut random, &mut model);
            ends.small_requests(&model);
            ends.stream(&mut random);
            ends.exchange_counts(setting);
            ends.revoke();
        }
        assert!(!wire.far_link().contains("xdp"), "{}", wire.far_link());
    }
}

impl Ends {
    /// Checks that single accesses went by AF_XDP where it was enabled, and that the counters add
    /// up.
    fn exchange_counts(&mut self, setting: Setting) {
        let near = self.driver.xdp_counts();
        let has_both = setting.at_donor.is_some() && setting.at_recipient.is_some();
        assert_eq!(near.received >= 200, setting.at_recipient.is_some(), "{near:?}");
        assert_eq!(near.sent >= 200, setting.at_recipient.is_some(), "{near:?}");
        // The server reports at intervals.
        let start = Instant::now();
        let is_used = |ends: &Ends| ends.server.xdp_counts().received >= 100;
        while setting.at_donor.is_some() && !is_used(self) {
            assert!(start.elapsed() < PATIENCE, "{:?}", self.server.xdp_counts());
            assert_eq!(self.read(0, 64).0, Ok(()));
        }
        let far = self.server.xdp_counts();
        assert!(setting.at_donor.is_some() || far.received == 0, "{far:?}");
        assert!(!has_both || far.sent >= 100, "{far:?}");
    }
}

#[test]
fn detects_dead_donor() {
    if lacks_root("detects_dead_donor") {
        return;
    }
    let wire = Wire::new(9000);
    let mode = Some(XdpMode::Generic);
    for at_recipient in [None, mode] {
        let mut ends = Setting { is_sealed: true, at_donor: mode, at_recipient }.lay(&wire);
        assert_eq!(ends.read(0, 64).0, Ok(()));
        assert!(wire.far_link().contains("xdp"), "{}", wire.far_link());
        let Ends { server, driver, is_over } = ends;
        drop(server);
        assert!(!wire.far_link().contains("xdp"), "{}", wire.far_link());
        let idle = Setting { is_sealed: true, at_donor: None, at_recipient: None };
        let server = wire.far(|| idle.serve(&is_over));
        let mut ends = Ends { server, driver, is_over };
        assert!(matches!(ends.read(0, 64).0, Err(AccessError::PeerDown(_))));
        let peer = venice_fabric::PeerIndex(0);
        assert_ne!(ends.driver.initiator().peer_state(peer), PeerState::Up);
    }
}

#[test]
fn errors_name_cause() {
    if lacks_root("errors_name_cause") {
        return;
    }
    Xdp::probe().expect("as root, on this kernel");
    let wire = Wire::new(9000);
    let opened = |interface: &str, at: &str| {
        let interface = interface.parse().unwrap();
        let socket = UdpSocket::bind(at.parse().unwrap()).unwrap();
        Xdp::open(&interface, &socket, true).map(|xdp| (xdp, socket)).map_err(whole)
    };
    wire.far(|| {
        let here = format!("{FAR}:0");
        assert!(opened("eth7", &here).unwrap_err().contains("ip link"));
        assert!(opened(DEVICE, "127.0.0.1:0").unwrap_err().contains("listen on that one"));
        assert!(opened(DEVICE, "[::]:0").unwrap_err().contains("is for IPv4"));
        let (_first, _socket) = opened(DEVICE, "0.0.0.0:0").unwrap();
        let error = opened(DEVICE, &here).unwrap_err();
        assert!(error.contains("one program at a time"), "{error}");
    });
    wire.far(|| {
        let sockets = UdpSocket::bind_queues((FAR, 0).into(), 2).unwrap();
        let xdp = Some(Xdp::open(&device(XdpMode::Generic), &sockets[0], false).unwrap());
        let target = TargetConfig::new(DONOR, 1);
        let service = UdpService { sockets, target, keys: None, xdp };
        let memory = || OneGrant(Vec::new());
        let error = UdpServer::serve(service, memory).unwrap_err();
        assert!(matches!(error, PortError::Xdp(XdpError::SeveralSockets { queues: 2 })));
    });
}

fn whole(error: XdpError) -> String {
    error.to_string()
}
