//! A small world in virtual time: one initiator, some donors, and a network that loses, repeats,
//! delays, damages and replays old frames, all from one seed.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use venice_fabric::{
    AccessError, GrantedMemory, Initiator, InitiatorConfig, LendingMemory, LinkConfig, PeerAddr,
    PeerIndex, Refusal, ScatterGather, Target, TargetConfig, Transmission,
};
use venice_simkernel::queue::Queue;
use venice_wire::{Checksum, GrantId, GrantKey, MAX_FRAME_BYTES, NodeId};

pub use venice_testkit::random::SplitMix64 as Rng;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

pub const RECIPIENT: NodeId = NodeId(1);
pub const RECIPIENT_ADDR: PeerAddr = PeerAddr(77);
pub const GRANT: GrantId = GrantId(5);
pub const KEY: GrantKey = GrantKey(0x5ec2e7);
/// Bytes each donor lends, and the distance between the donors' mappings.
pub const LENT_BYTES: u64 = 64 << 10;

/// The faults of the network, each in parts per thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub lost: u64,
    pub repeated: u64,
    pub delayed: u64,
    pub damaged: u64,
    /// An old frame, of any earlier session, is delivered again.
    pub stale: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Recipient,
    Donor(usize),
}

#[derive(Clone, Debug)]
struct Packet {
    from: Place,
    to: Place,
    bytes: Vec<u8>,
}

#[derive(Debug)]
pub struct Network {
    pub faults: Faults,
    pub sent: u64,
    rng: Rng,
    /// By time of arrival, then by a number that swaps packets at times.
    on_the_way: Queue<Packet>,
    history: Vec<Packet>,
}

impl Network {
    fn send(&mut self, now_ns: u64, packet: Packet) {
        self.sent += 1;
        self.keep(&packet);
        if self.rng.chance(self.faults.stale) {
            let old = self.rng.below(self.history.len() as u64) as usize;
            self.put(now_ns, self.history[old].clone());
        }
        if self.rng.chance(self.faults.repeated) {
            self.put(now_ns, packet.clone());
        }
        if !self.rng.chance(self.faults.lost) {
            self.put(now_ns, packet);
        }
    }

    fn keep(&mut self, packet: &Packet) {
        if self.history.len() < 256 {
            self.history.push(packet.clone());
        } else {
            let at = self.rng.below(256) as usize;
            self.history[at] = packet.clone();
        }
    }

    fn put(&mut self, now_ns: u64, mut packet: Packet) {
        if self.rng.chance(self.faults.damaged) {
            let at = self.rng.below(packet.bytes.len() as u64) as usize;
            packet.bytes[at] ^= 1 << self.rng.below(8);
        }
        let mut delay_ns = 10 * US;
        if self.rng.chance(self.faults.delayed) {
            delay_ns += self.rng.below(5 * MS);
        }
        self.on_the_way.push(now_ns + delay_ns, self.sent * 4 + self.rng.below(4), packet);
    }

    pub fn is_empty(&self) -> bool {
        self.on_the_way.is_empty()
    }
}

/// A donor's memory, with a log of the writes to it.
#[derive(Debug)]
pub struct Lent {
    pub bytes: Vec<u8>,
    /// The same bytes, from which answers are sent.
    shared: Arc<Shared>,
    pub written: Vec<(u64, Vec<u8>)>,
    pub reads: u64,
    /// The grants of this memory, all for the same bytes.
    pub grants: Vec<GrantId>,
}

/// The bytes from which answers are sent.
#[derive(Debug)]
struct Shared(Mutex<Vec<u8>>);

impl LendingMemory for Shared {
    fn copy_to(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0.lock().unwrap()[offset..][..into.len()]);
    }

    fn feed(&self, range: Range<usize>, checksum: &mut Checksum) {
        checksum.update(&self.0.lock().unwrap()[range]);
    }

    fn address(&self, offset: usize) -> *const u8 {
        &raw const self.0.lock().unwrap()[offset]
    }
}

impl Lent {
    pub fn new() -> Self {
        let bytes = vec![0; LENT_BYTES as usize];
        let shared = Arc::new(Shared(Mutex::new(bytes.clone())));
        Self { bytes, shared, written: Vec::new(), reads: 0, grants: vec![GRANT] }
    }

    /// Returns the number of answers to which parts of it are lent.
    pub fn loans(&self) -> usize {
        Arc::strong_count(&self.shared) - 1
    }

    /// Stores bytes without a frame.
    pub fn change(&mut self, at: usize, from: &[u8]) {
        self.bytes[at..at + from.len()].copy_from_slice(from);
        self.shared.0.lock().unwrap()[at..at + from.len()].copy_from_slice(from);
    }

    fn check(
        &self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        len: usize,
    ) -> Result<usize, Refusal> {
        if !self.grants.contains(&grant) {
            return Err(Refusal::UnknownGrant);
        }
        if key != KEY {
            return Err(Refusal::WrongKey);
        }
        let end = addr.checked_add(len as u64).ok_or(Refusal::OutOfRange)?;
        if end > LENT_BYTES { Err(Refusal::OutOfRange) } else { Ok(addr as usize) }
    }
}

impl GrantedMemory for Lent {
    fn read(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        into: &mut [u8],
    ) -> Result<(), Refusal> {
        let at = self.check(grant, key, addr, into.len())?;
        into.copy_from_slice(&self.bytes[at..at + into.len()]);
        self.reads += 1;
        Ok(())
    }

    fn lend(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        len: usize,
    ) -> Result<Option<venice_fabric::Lent>, Refusal> {
        let at = self.check(grant, key, addr, len)?;
        self.reads += 1;
        let memory = Arc::clone(&self.shared) as Arc<dyn LendingMemory>;
        Ok(Some(venice_fabric::Lent::new(memory, at..at + len)))
    }

    fn write(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        from: &[u8],
    ) -> Result<(), Refusal> {
        let at = self.check(grant, key, addr, from.len())?;
        self.change(at, from);
        self.written.push((addr, from.to_vec()));
        Ok(())
    }
}

#[derive(Debug)]
pub struct Donor {
    pub target: Target,
    pub memory: Lent,
    /// False for a dead donor, which receives and sends nothing.
    pub is_alive: bool,
}

#[derive(Debug)]
pub struct World {
    pub now_ns: u64,
    pub initiator: Initiator,
    pub peers: Vec<PeerIndex>,
    pub donors: Vec<Donor>,
    pub network: Network,
    /// Completions, by token.
    pub done: BTreeMap<u64, Result<Vec<u8>, AccessError>>,
    pub bulk_done: BTreeMap<u64, Result<Vec<u8>, AccessError>>,
    pub link: LinkConfig,
    rng: Rng,
}

impl World {
    /// A world whose links have windows of `window` frames, and never give up before a minute.
    pub fn new(seed: u64, donors: usize, window: u16, faults: Faults) -> Self {
        let link = LinkConfig { window, silence_ns: 60 * SECOND, ..LinkConfig::default() };
        Self::with_link(seed, donors, link, faults)
    }

    pub fn with_link(seed: u64, donors: usize, link: LinkConfig, faults: Faults) -> Self {
        let mut rng = Rng(seed);
        let network = Network {
            faults,
            sent: 0,
            rng: Rng(rng.draw()),
            on_the_way: Queue::default(),
            history: Vec::new(),
        };
        let config = initiator_config(rng.draw(), &link);
        let mut world = Self {
            now_ns: rng.below(SECOND),
            initiator: Initiator::new(config),
            peers: Vec::new(),
            donors: Vec::new(),
            network,
            done: BTreeMap::new(),
            bulk_done: BTreeMap::new(),
            link,
            rng,
        };
        for n in 0..donors {
            let target = world.new_target(n);
            world.donors.push(Donor { target, memory: Lent::new(), is_alive: true });
        }
        world.connect();
        world
    }

    fn new_target(&mut self, n: usize) -> Target {
        let link = self.link.clone();
        Target::new(TargetConfig { link, ..TargetConfig::new(donor_node(n), self.rng.draw()) })
    }

    /// Adds all donors and maps them side by side from address 0 on.
    fn connect(&mut self) {
        for n in 0..self.donors.len() {
            let peer = self.initiator.add_peer(donor_node(n), self.now_ns);
            self.peers.push(peer);
            let window_addr = n as u64 * LENT_BYTES;
            self.initiator.map_window(window_addr, LENT_BYTES, peer, 0, GRANT, KEY).unwrap();
        }
    }

    /// Starts a new process on the recipient's address, without state of the one before.
    pub fn restart_initiator(&mut self) {
        let config = initiator_config(self.rng.draw(), &self.link);
        self.initiator = Initiator::new(config);
        self.peers.clear();
        self.connect();
    }

    /// Starts a new process on a donor's address, with fresh memory under the *same* grant and key:
    /// a write of the old session that gets through will show.
    pub fn restart_donor(&mut self, n: usize) {
        let target = self.new_target(n);
        self.donors[n] = Donor { target, memory: Lent::new(), is_alive: true };
    }

    /// Sends all pending frames, then advances to the next event: an arrival or a time-out. Returns
    /// false if no event is left.
    pub fn step(&mut self) -> bool {
        let goes_on = self.step_without_collecting();
        self.collect();
        goes_on
    }

    /// Like [`World::step`]; completions stay unpolled.
    pub fn step_without_collecting(&mut self) -> bool {
        self.transmit();
        self.check_no_spinning();
        let arrival_ns = self.network.on_the_way.next_at();
        let donors = self.donors.iter().filter(|donor| donor.is_alive);
        let timeouts = donors.filter_map(|donor| donor.target.poll_timeout());
        let next_ns = timeouts.chain(self.initiator.poll_timeout()).chain(arrival_ns).min();
        let Some(next_ns) = next_ns else { return false };
        self.now_ns = self.now_ns.max(next_ns);
        self.deliver();
        self.initiator.handle_timeout(self.now_ns);
        for donor in self.donors.iter_mut().filter(|donor| donor.is_alive) {
            donor.target.handle_timeout(self.now_ns);
        }
        true
    }

    /// Checks that with all frames sent and every time-out handled, the next one lies ahead: a
    /// driver that waits for it does not spin. A target may be a little early once.
    fn check_no_spinning(&mut self) {
        for _ in 0..2 {
            self.initiator.handle_timeout(self.now_ns);
            for donor in self.donors.iter_mut().filter(|donor| donor.is_alive) {
                donor.target.handle_timeout(self.now_ns);
            }
            self.transmit();
        }
        let donors = self.donors.iter().filter(|donor| donor.is_alive);
        let timeouts = donors.filter_map(|donor| donor.target.poll_timeout());
        let next_ns = timeouts.chain(self.initiator.poll_timeout()).min();
        assert!(next_ns.is_none_or(|at_ns| at_ns > self.now_ns), "a time-out without an end");
    }

    pub fn transmit(&mut self) {
        let mut buf = [0; MAX_FRAME_BYTES];
        while let Some((peer, len)) = self.initiator.poll_transmit(self.now_ns, &mut buf) {
            let to = self.peers.iter().position(|&known| known == peer).unwrap();
            self.send(Place::Recipient, Place::Donor(to), &buf[..len]);
        }
        for n in 0..self.donors.len() {
            if !self.donors[n].is_alive {
                continue;
            }
            let now_ns = self.now_ns;
            loop {
                let target = &mut self.donors[n].target;
                let Some((to, sent)) = target.poll_transmit_kept(now_ns, &mut buf) else { break };
                assert_eq!(to, RECIPIENT_ADDR);
                let len = match sent {
                    Transmission::Written(len) => len,
                    Transmission::Kept(frame) => {
                        target.kept(&frame).expect("sent just now").copy_to(&mut buf)
                    }
                };
                let bytes = buf[..len].to_vec();
                self.send(Place::Donor(n), Place::Recipient, &bytes);
            }
        }
    }

    fn send(&mut self, from: Place, to: Place, bytes: &[u8]) {
        self.network.send(self.now_ns, Packet { from, to, bytes: bytes.to_vec() });
    }

    pub fn deliver(&mut self) {
        let until_ns = self.now_ns + 1;
        while let Some((_, _, packet)) = self.network.on_the_way.pop_ranked_before(until_ns) {
            match (packet.from, packet.to) {
                (_, Place::Donor(n)) if self.donors[n].is_alive => {
                    let Donor { target, memory, .. } = &mut self.donors[n];
                    target.handle_frame(self.now_ns, RECIPIENT_ADDR, &packet.bytes, memory);
                }
                (Place::Donor(n), Place::Recipient) => {
                    let peer = self.peers[n];
                    self.initiator.handle_frame(self.now_ns, peer, &packet.bytes);
                }
                _ => {}
            }
        }
    }

    pub fn collect(&mut self) {
        while let Some(completion) = self.initiator.poll_completion() {
            let outcome = completion.result.map(|()| completion.data.to_vec());
            let earlier = self.done.insert(completion.token, outcome);
            assert_eq!(earlier, None, "token {} completed twice", completion.token);
        }
        while let Some(completion) = self.initiator.poll_rdma_completion() {
            assert_eq!(completion.lists, ScatterGather::default());
            let outcome = completion.result.map(|()| completion.buffer);
            let earlier = self.bulk_done.insert(completion.token, outcome);
            assert_eq!(earlier, None, "bulk token {} completed twice", completion.token);
        }
    }

    /// Runs until `is_over`; fails after 10 virtual minutes.
    pub fn run_until(&mut self, mut is_over: impl FnMut(&Self) -> bool) {
        let give_up_ns = self.now_ns + 600 * SECOND;
        while !is_over(self) {
            assert!(self.step(), "nothing left to happen");
            assert!(self.now_ns < give_up_ns, "not over in 10 virtual minutes");
        }
    }

    /// Runs for a virtual time of `duration_ns`.
    pub fn run_for(&mut self, duration_ns: u64) {
        let end_ns = self.now_ns + duration_ns;
        while self.now_ns < end_ns && self.step() {}
    }
}

fn initiator_config(seed: u64, link: &LinkConfig) -> InitiatorConfig {
    InitiatorConfig { link: link.clone(), ..InitiatorConfig::new(RECIPIENT, seed) }
}

pub fn donor_node(n: usize) -> NodeId {
    NodeId(100 + n as u32)
}
