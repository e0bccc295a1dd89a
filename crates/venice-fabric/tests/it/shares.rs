//! Recipients of one donor get even shares of what its target moves, whatever each requests and
//! over however many links; small requests are answered soon; and the target is work-conserving.

use std::collections::BTreeMap;

use proptest::prelude::*;
use venice_fabric::{
    GrantedMemory, Initiator, InitiatorConfig, PeerAddr, PeerIndex, RecipientId, Refusal, Target,
    TargetConfig,
};
use venice_testkit::random::SplitMix64 as Rng;
use venice_wire::{GrantId, GrantKey, MAX_FRAME_BYTES, NodeId};

const DONOR: NodeId = NodeId(1);
const PAGE_BYTES: u16 = 4096;
/// Bytes the port moves before it looks for requests again.
const ROUND_BYTES: u64 = 30 * MAX_FRAME_BYTES as u64;
/// The most by which a recipient may be ahead of another: a turn at each, and the bytes of a turn's
/// last answer.
const SLACK_BYTES: f64 = 2.0 * (15 + 64) as f64 * MAX_FRAME_BYTES as f64;

/// Memory whose pages all read the same; `grants_of_one` grants in a row belong to one recipient.
struct Zeros {
    grants_of_one: u64,
}

impl GrantedMemory for Zeros {
    fn recipient(&mut self, grant: GrantId) -> RecipientId {
        RecipientId(grant.0 / self.grants_of_one)
    }

    fn read(&mut self, _: GrantId, _: GrantKey, _: u64, into: &mut [u8]) -> Result<(), Refusal> {
        into.fill(0);
        Ok(())
    }

    fn write(&mut self, _: GrantId, _: GrantKey, _: u64, _: &[u8]) -> Result<(), Refusal> {
        Ok(())
    }
}

const GRANTS_OF_ONE: u64 = 100;

/// The load of one recipient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Reads pages, as many at once as its links take.
    Reads,
    /// Writes pages, likewise.
    Writes,
    /// Reads and writes alternately.
    Both,
    /// Reads one page after the other, one at a time.
    OneByOne,
}

#[derive(Clone, Debug)]
struct Recipient {
    work: Work,
    links: usize,
}

/// One link's end, and the work done over it.
struct End {
    recipient: usize,
    initiator: Initiator,
    peer: PeerIndex,
    asked: u64,
    outstanding: u64,
    done: u64,
    /// The start of the present access, for loads that issue one at a time.
    begun_ns: u64,
    longest_ns: u64,
}

/// A donor whose port takes arrivals, answers a round, and takes arrivals again; its recipients
/// take no time.
struct Rack {
    now_ns: u64,
    target: Target,
    memory: Zeros,
    /// Bytes moved between two looks for requests.
    round_bytes: u64,
    recipients: Vec<Recipient>,
    ends: Vec<End>,
}

impl Rack {
    fn new(recipients: Vec<Recipient>) -> Self {
        let mut ends = Vec::new();
        for (number, recipient) in recipients.iter().enumerate() {
            for link in 0..recipient.links {
                let node = NodeId(2 + ends.len() as u32);
                let mut config = InitiatorConfig::new(node, 7 + ends.len() as u64);
                config.link.window = 64;
                let mut initiator = Initiator::new(config);
                let peer = initiator.add_peer(DONOR, 0);
                let grant = GrantId(number as u64 * GRANTS_OF_ONE + link as u64 % GRANTS_OF_ONE);
                initiator.map_window(0, 1 << 30, peer, 0, grant, GrantKey(1)).unwrap();
                ends.push(End {
                    recipient: number,
                    initiator,
                    peer,
                    asked: 0,
                    outstanding: 0,
                    done: 0,
                    begun_ns: 0,
                    longest_ns: 0,
                });
            }
        }
        let target = Target::new(TargetConfig::new(DONOR, 22));
        let memory = Zeros { grants_of_one: GRANTS_OF_ONE };
        Self { now_ns: 0, target, memory, round_bytes: ROUND_BYTES, recipients, ends }
    }

    /// One turn of the donor's thread; every byte moved takes a nanosecond.
    fn turn(&mut self) {
        let mut buf = [0; MAX_FRAME_BYTES];
        for (addr, end) in self.ends.iter_mut().enumerate() {
            end.ask(self.now_ns, self.recipients[end.recipient].work);
            while let Some((_, len)) = end.initiator.poll_transmit(self.now_ns, &mut buf) {
                let from = PeerAddr(addr as u64);
                self.target.handle_frame(self.now_ns, from, &buf[..len], &mut self.memory);
            }
        }
        let before = self.target.moved_bytes();
        while self.target.moved_bytes() - before < self.round_bytes {
            let Some((to, len)) = self.target.poll_transmit(self.now_ns, &mut buf) else { break };
            let end = &mut self.ends[to.0 as usize];
            end.initiator.handle_frame(self.now_ns, end.peer, &buf[..len]);
        }
        self.now_ns += (self.target.moved_bytes() - before).max(1000);
        for end in &mut self.ends {
            end.collect(self.now_ns);
            end.initiator.handle_timeout(self.now_ns);
        }
        self.target.handle_timeout(self.now_ns);
    }

    /// Returns the pages moved for each recipient.
    fn done(&self) -> Vec<u64> {
        let mut done = BTreeMap::new();
        self.ends.iter().for_each(|end| *done.entry(end.recipient).or_default() += end.done);
        done.into_values().collect()
    }

    /// Runs until `bytes` more bytes have been moved; returns each recipient's part.
    fn run(&mut self, bytes: u64) -> Vec<u64> {
        (0..20).for_each(|_| self.turn());
        let (before, until) = (self.done(), self.target.moved_bytes() + bytes);
        while self.target.moved_bytes() < until {
            self.turn();
        }
        self.done().iter().zip(before).map(|(done, before)| done - before).collect()
    }
}

impl End {
    fn ask(&mut self, now_ns: u64, work: Work) {
        let most = if work == Work::OneByOne { 1 } else { u64::MAX };
        while self.outstanding < most {
            let at = self.asked % 1000 * u64::from(PAGE_BYTES);
            let writes = match work {
                Work::Reads | Work::OneByOne => false,
                Work::Writes => true,
                Work::Both => self.asked.is_multiple_of(2),
            };
            let begun = if writes {
                self.initiator.write(now_ns, self.asked, at, &[1; PAGE_BYTES as usize])
            } else {
                self.initiator.read(now_ns, self.asked, at, PAGE_BYTES.into())
            };
            if begun.is_err() {
                return;
            }
            (self.asked, self.outstanding) = (self.asked + 1, self.outstanding + 1);
            self.begun_ns = now_ns;
        }
    }

    fn collect(&mut self, now_ns: u64) {
        while let Some(completion) = self.initiator.poll_completion() {
            completion.result.as_ref().expect("no access fails");
            (self.done, self.outstanding) = (self.done + 1, self.outstanding - 1);
            self.longest_ns = self.longest_ns.max(now_ns - self.begun_ns);
        }
    }
}

fn recipient() -> impl Strategy<Value = Recipient> {
    let work = prop_oneof![Just(Work::Reads), Just(Work::Writes), Just(Work::Both)];
    (work, 1usize..6).prop_map(|(work, links)| Recipient { work, links })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Any load, over any number of links: even within a tenth, and a turn.
    #[test]
    fn saturating_recipients_share_evenly(
        recipients in prop::collection::vec(recipient(), 2..6)
    ) {
        let count = recipients.len() as u64;
        let mut rack = Rack::new(recipients.clone());
        // Long compared with the windows of the links, whose pages may count at either end.
        let bytes = count * (16 << 20);
        let shares = rack.run(bytes);
        let even = bytes as f64 / count as f64;
        for share in &shares {
            let moved = (share * u64::from(PAGE_BYTES)) as f64;
            prop_assert!((moved - even).abs() < even / 10.0 + SLACK_BYTES, "{recipients:?}: {shares:?}");
        }
    }
}

fn reading(links: usize) -> Recipient {
    Recipient { work: Work::Reads, links }
}

#[test]
fn share_is_independent_of_links() {
    let shares = Rack::new(vec![reading(4), reading(1)]).run(32 << 20);
    let ratio = shares[0] as f64 / shares[1] as f64;
    assert!((0.95..1.05).contains(&ratio), "{shares:?}");
}

/// The measure detects unfairness: at a donor that takes each grant for a recipient, links count.
#[test]
fn per_link_shares_are_uneven() {
    let mut rack = Rack::new(vec![reading(4), reading(1)]);
    rack.memory.grants_of_one = 1;
    let shares = rack.run(32 << 20);
    let ratio = shares[0] as f64 / shares[1] as f64;
    assert!((3.8..4.2).contains(&ratio), "{shares:?}");
}

/// The links of one recipient divide its share evenly, too.
#[test]
fn links_of_recipient_share_evenly() {
    let mut rack = Rack::new(vec![reading(3), reading(1)]);
    rack.run(48 << 20);
    let of_link: Vec<u64> = rack.ends[..3].iter().map(|end| end.done).collect();
    let (least, most) = (of_link.iter().min().unwrap(), of_link.iter().max().unwrap());
    assert!(most - least < most / 10, "{of_link:?}");
}

/// Returns the longest page time of a recipient that requests a page at a time beside five that
/// flood the donor, and the pages it got in `turns` turns.
fn beside_floods(work: Work, round_bytes: u64, turns: u64) -> (u64, u64) {
    let mut recipients = vec![Recipient { work: Work::OneByOne, links: 1 }];
    recipients.extend((0..5).map(|_| Recipient { work, links: 8 }));
    let mut rack = Rack::new(recipients);
    rack.round_bytes = round_bytes;
    (0..20).for_each(|_| rack.turn());
    rack.ends[0].longest_ns = 0;
    let before = rack.ends[0].done;
    (0..turns).for_each(|_| rack.turn());
    (rack.ends[0].longest_ns, rack.ends[0].done - before)
}

/// The longest round, and the answer that ends it: one to all writes of a link.
const LONGEST_ROUND_NS: u64 = ROUND_BYTES + 64 * MAX_FRAME_BYTES as u64;

/// A recipient that requests a page at a time gets it in the next round, however many others flood
/// the donor with reads and writes.
#[test]
fn small_request_is_served_next_round() {
    for work in [Work::Reads, Work::Writes, Work::Both] {
        let (longest_ns, done) = beside_floods(work, ROUND_BYTES, 500);
        assert!(done >= 499, "{work:?}: only {done} of 500 rounds had one of its answers");
        assert!(longest_ns <= LONGEST_ROUND_NS, "{work:?}: {longest_ns} ns");
    }
}

/// At a port that answers everything before it looks again it waits for all of that.
#[test]
fn unpolled_port_delays_small_request() {
    for work in [Work::Reads, Work::Writes, Work::Both] {
        let (longest_ns, _) = beside_floods(work, u64::MAX, 10);
        assert!(longest_ns > 10 * LONGEST_ROUND_NS, "{work:?}: {longest_ns} ns");
    }
}

/// A recipient's unused share goes to others; it gets its share again when it returns, not more.
#[test]
fn unused_share_goes_to_others() {
    let mut rack = Rack::new(vec![reading(2), reading(2), reading(2)]);
    rack.run(8 << 20);
    rack.recipients[2].work = Work::OneByOne;
    let moved = rack.run(24 << 20);
    assert!(moved[0] * 100 > 45 * moved.iter().sum::<u64>(), "{moved:?}");
    assert!(moved[1] * 100 > 45 * moved.iter().sum::<u64>(), "{moved:?}");
    rack.recipients[2].work = Work::Reads;
    let moved = rack.run(24 << 20);
    let even = moved.iter().sum::<u64>() / 3;
    assert!(moved.iter().all(|share| share.abs_diff(even) * 10 < even), "{moved:?}");
}

/// The target is work-conserving: each round is full, or empties the target.
#[test]
fn rounds_are_work_conserving() {
    let mut rng = Rng(5);
    let mut buf = [0; MAX_FRAME_BYTES];
    let mut rack =
        Rack::new(vec![reading(3), Recipient { work: Work::Writes, links: 2 }, reading(1)]);
    for _ in 0..200 {
        let which = rng.below(rack.recipients.len() as u64) as usize;
        let idle = rng.chance(300);
        rack.recipients[which].work = if idle { Work::OneByOne } else { Work::Both };
        let before = rack.target.moved_bytes();
        rack.turn();
        if rack.target.moved_bytes() - before < rack.round_bytes {
            assert!(!rack.target.has_more(), "it stopped early");
            assert_eq!(rack.target.poll_transmit(rack.now_ns, &mut buf), None);
        }
    }
}

/// Links that come and go take no share with them.
#[test]
fn share_ends_with_links() {
    let mut rack = Rack::new(vec![reading(1), reading(1)]);
    for round in 0..5 {
        let shares = rack.run(8 << 20);
        let even = shares.iter().sum::<u64>() / 2;
        assert!(shares.iter().all(|share| share.abs_diff(even) * 10 < even), "{round}: {shares:?}");
        // The second starts anew, like another program on the same address.
        let fresh = Rack::new(vec![reading(1), reading(1)]).ends.pop().unwrap();
        let config = InitiatorConfig::new(NodeId(3), 100 + round);
        let mut initiator = Initiator::new(config);
        let peer = initiator.add_peer(DONOR, rack.now_ns);
        let grant = GrantId((round + 1) * GRANTS_OF_ONE);
        initiator.map_window(0, 1 << 30, peer, 0, grant, GrantKey(1)).unwrap();
        rack.ends[1] = End { initiator, peer, ..fresh };
    }
}
