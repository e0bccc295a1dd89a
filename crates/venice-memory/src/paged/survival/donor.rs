//! A simulated donor: the fabric's target in front of slabs lent under leases.

use std::collections::{BTreeMap, VecDeque};

use venice_fabric::{Atomic, GrantedMemory, PeerAddr, Target, TargetConfig};
use venice_simkernel::random::Stream;
use venice_wire::{GrantId, GrantKey, NodeId, Refusal};

use super::{LEASE_NS, SILENCE_NS};

/// Most slabs that a donor lends.
const SLABS: usize = 6;
/// Most frames queued for a stalled donor.
const MAX_WAITING: usize = 256;
/// The contents of memory not written under its grant. No page ever holds it.
const JUNK: u8 = 0xe5;

/// A donor's answer to the renewal of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease is renewed. `is_reclaiming`: the donor reclaims the memory.
    Live { is_reclaiming: bool },
    /// The donor has no such grant.
    Unknown,
    /// No process listens there.
    Refused,
    /// No answer comes, and its machine accepts connections.
    Silent,
    /// Its machine is not reached.
    Unreachable,
}

/// A lent grant.
#[derive(Debug)]
struct Lent {
    key: GrantKey,
    until_ns: u64,
    /// The bytes written, by address. Accesses are replica_record pages, or replica_record fragments of pages.
    written: BTreeMap<u64, Vec<u8>>,
}

pub struct SimulatedDonor {
    number: usize,
    pub is_dead: bool,
    pub stalls: u32,
    stalled_since_ns: u64,
    pub cuts: u32,
    pub is_reclaiming: bool,
    /// Drops one write in so many, though it confirms it. For tests of the checker.
    pub drops_one_in: Option<u64>,
    target: Target,
    lent: BTreeMap<GrantId, Lent>,
    waiting: VecDeque<(usize, Vec<u8>)>,
    pub timer_ns: Option<u64>,
    rng: Stream,
}

impl SimulatedDonor {
    pub fn new(number: usize, mut rng: Stream) -> SimulatedDonor {
        SimulatedDonor {
            number,
            is_dead: false,
            stalls: 0,
            stalled_since_ns: 0,
            cuts: 0,
            is_reclaiming: false,
            drops_one_in: None,
            target: new_target(number, &mut rng),
            lent: BTreeMap::new(),
            waiting: VecDeque::new(),
            timer_ns: None,
            rng,
        }
    }

    fn is_awake(&self) -> bool {
        !self.is_dead && self.stalls == 0
    }

    /// True if the rack would choose it as a lender.
    pub fn is_lending(&self) -> bool {
        self.is_awake() && self.cuts == 0 && !self.is_reclaiming && self.lent.len() < SLABS
    }

    /// Lends memory under a new grant.
    pub fn lend(&mut self, now_ns: u64, grant: GrantId) -> GrantKey {
        let key = GrantKey(self.rng.draw());
        self.lent
            .insert(grant, Lent { key, until_ns: now_ns + LEASE_NS, written: BTreeMap::new() });
        key
    }

    pub fn renew(&mut self, now_ns: u64, grant: GrantId) -> Renewal {
        if self.cuts > 0 {
            return Renewal::Unreachable;
        }
        if self.stalls > 0 {
            return Renewal::Silent;
        }
        if self.is_dead {
            return Renewal::Refused;
        }
        let Some(lent) = self.lent.get_mut(&grant) else { return Renewal::Unknown };
        lent.until_ns = now_ns + LEASE_NS;
        Renewal::Live { is_reclaiming: self.is_reclaiming }
    }

    /// Ends a grant that the recipient gives back, if the donor is reachable.
    pub fn release(&mut self, now_ns: u64, grant: GrantId) {
        if self.is_awake() && self.cuts == 0 && self.lent.remove(&grant).is_some() {
            self.target.revoke(now_ns, grant);
        }
    }

    pub fn die(&mut self) {
        self.is_dead = true;
        self.lent.clear();
        self.waiting.clear();
    }

    /// Restarts it without memory, grants or links.
    pub fn restart(&mut self) {
        self.is_dead = false;
        self.target = new_target(self.number, &mut self.rng);
    }

    /// Ends the expired leases and returns their grants.
    pub fn end_leases(&mut self, now_ns: u64) -> Vec<GrantId> {
        if !self.is_awake() {
            return Vec::new();
        }
        let is_over = |(_, lent): &(&GrantId, &Lent)| lent.until_ns <= now_ns;
        let over: Vec<_> = self.lent.iter().filter(is_over).map(|(grant, _)| *grant).collect();
        self.take_back(now_ns, &over);
        over
    }

    /// Ends all of its grants and returns them.
    pub fn take_back_all(&mut self, now_ns: u64) -> Vec<GrantId> {
        let all: Vec<_> = self.lent.keys().copied().collect();
        self.take_back(now_ns, &all);
        all
    }

    fn take_back(&mut self, now_ns: u64, grants: &[GrantId]) {
        for grant in grants {
            self.lent.remove(grant);
            self.target.revoke(now_ns, *grant);
        }
    }

    pub fn take_in(&mut self, now_ns: u64, actor: usize, frame: Vec<u8>) {
        if self.is_dead {
            return;
        }
        if self.stalls > 0 {
            if self.waiting.len() < MAX_WAITING {
                self.waiting.push_back((actor, frame));
            }
            return;
        }
        let mut granted =
            Granted { lent: &mut self.lent, rng: &mut self.rng, drops_one_in: self.drops_one_in };
        self.target.handle_frame(now_ns, PeerAddr(actor as u64), &frame, &mut granted);
    }

    /// Begins a stall.
    pub fn stall(&mut self, now_ns: u64) {
        if self.stalls == 0 {
            self.stalled_since_ns = now_ns;
        }
        self.stalls += 1;
    }

    /// Ends a stall. Its time counts to no lease.
    pub fn go_on(&mut self, now_ns: u64) {
        self.stalls -= 1;
        if self.stalls == 0 {
            let stalled_ns = now_ns - self.stalled_since_ns;
            self.lent.values_mut().for_each(|lent| lent.until_ns += stalled_ns);
        }
    }

    /// Handles the frames that were queued while it was stalled.
    pub fn catch_up(&mut self, now_ns: u64) {
        if self.is_awake() {
            for (actor, frame) in std::mem::take(&mut self.waiting) {
                self.take_in(now_ns, actor, frame);
            }
        }
    }

    pub fn poll_transmit(&mut self, now_ns: u64, frame: &mut [u8]) -> Option<(usize, usize)> {
        if !self.is_awake() {
            return None;
        }
        if self.target.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            self.target.handle_timeout(now_ns);
        }
        self.target.poll_transmit(now_ns, frame).map(|(to, len)| (to.0 as usize, len))
    }

    /// The time of its next timer, unless one is already set for it, nanoseconds.
    pub fn wants_timer(&mut self) -> Option<u64> {
        if !self.is_awake() {
            return None;
        }
        let leases = self.lent.values().map(|lent| lent.until_ns);
        let at_ns = leases.chain(self.target.poll_timeout()).min()?;
        if self.timer_ns.is_some_and(|timer_ns| timer_ns <= at_ns) {
            return None;
        }
        self.timer_ns = Some(at_ns);
        Some(at_ns)
    }
}

fn new_target(number: usize, rng: &mut Stream) -> Target {
    let mut config = TargetConfig::new(NodeId(number as u32 + 1), rng.draw());
    config.link.silence_ns = SILENCE_NS;
    Target::new(config)
}

struct Granted<'a> {
    lent: &'a mut BTreeMap<GrantId, Lent>,
    rng: &'a mut Stream,
    drops_one_in: Option<u64>,
}

impl Granted<'_> {
    fn check(&mut self, grant: GrantId, key: GrantKey) -> Result<&mut Lent, Refusal> {
        let lent = self.lent.get_mut(&grant).ok_or(Refusal::UnknownGrant)?;
        if lent.key == key { Ok(lent) } else { Err(Refusal::WrongKey) }
    }
}

impl GrantedMemory for Granted<'_> {
    fn read(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        into: &mut [u8],
    ) -> Result<(), Refusal> {
        match self.check(grant, key)?.written.get(&addr) {
            Some(bytes) => into.copy_from_slice(bytes),
            None => into.fill(JUNK),
        }
        Ok(())
    }

    fn write(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        from: &[u8],
    ) -> Result<(), Refusal> {
        let is_dropped = self.drops_one_in.is_some_and(|one_in| self.rng.below(one_in) == 0);
        let lent = self.check(grant, key)?;
        if !is_dropped {
            lent.written.insert(addr, from.to_vec());
        }
        Ok(())
    }

    fn atomic(
        &mut self,
        _grant: GrantId,
        _key: GrantKey,
        _addr: u64,
        _atomic: Atomic,
    ) -> Result<u64, Refusal> {
        unreachable!("this program makes no atomic accesses")
    }
}
