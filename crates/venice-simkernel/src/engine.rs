//! Worlds of many nodes, in parts that run on threads of their own.
//!
//! A conservative parallel simulation (Chandy and Misra, 1979): no event reaches another part sooner
//! than the look-ahead, so a part may run ahead of the others' clocks for that long. If all wait for
//! each other, their clocks go on to the earliest event of all. Events of one instant are in the order
//! of their source and of its count, which depend on no partition: every number of parts gives the same
//! run. Parts may also be processes ([`Engine::run_on`]).

mod ranks;

use serde::{Deserialize, Serialize};

use crate::clocks::{Apart, Clocks};
use crate::mailbox::Mailbox;
use crate::prefetch::{Ahead, prefetch};
use crate::queue::Queue;
use crate::random::mix;

/// The number of a node in the whole world, from 0.
pub type Node = u32;

/// The nodes of one part, and their state.
pub trait Part: Send {
    /// An event of a node of this part. It is moved between queues, so it should be small; it may be a
    /// reference into the part's state, such as the number of a packet.
    type Event: Send;
    /// An event on its way to another part: it refers to nothing.
    type Message: Send;

    /// Handles an event of `node` at the time of `out`. The result may depend on the part's state of
    /// that node and on constants, on nothing else.
    fn handle(&mut self, node: Node, event: Self::Event, out: &mut Outbox<'_, Self::Event>);

    /// Returns a number that identifies the event in the trace; equal events have equal ones in any
    /// part.
    fn digest(&self, event: &Self::Event) -> u64;

    /// Prefetches what an event that comes soon will use ([`crate::prefetch`]). Without effect on the
    /// run.
    fn prefetch(&self, _node: Node, _event: &Self::Event, _ahead: Ahead) {}

    /// Takes what the event refers to out of this part.
    fn pack(&mut self, event: Self::Event) -> Self::Message;

    /// Puts what came from another part into this one.
    fn unpack(&mut self, message: Self::Message) -> Self::Event;
}

/// Where the events go that a node makes.
#[derive(Debug)]
pub struct Outbox<'a, E> {
    now: u64,
    source: Node,
    count: &'a mut u32,
    own_part: u16,
    part_of: &'a [u16],
    look_ahead: u64,
    queue: &'a mut Queue<(Node, E)>,
    /// Events of other parts, with these.
    left: &'a mut Vec<(u16, Placed<E>)>,
}

/// An event or a message, with its place in the order.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Placed<E> {
    at: u64,
    rank: u64,
    node: Node,
    event: E,
}

impl<E> Outbox<'_, E> {
    /// Returns the present time, in the world's unit.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Makes an event of `node` after a time.
    ///
    /// # Panics
    /// If it is of another part, and sooner than the look-ahead.
    pub fn send(&mut self, node: Node, after: u64, event: E) {
        let at = self.now.saturating_add(after);
        let rank = u64::from(self.source) << 32 | u64::from(*self.count);
        *self.count = self.count.wrapping_add(1);
        let part = self.part_of[node as usize];
        if part == self.own_part {
            self.queue.push(at, rank, (node, event));
        } else {
            assert!(
                after >= self.look_ahead,
                "an event {after} ahead is sooner than the look-ahead"
            );
            self.left.push((part, Placed { at, rank, node, event }));
        }
    }
}

/// A world in its parts, with their future events; of a world on several ranks, the part of this one.
pub struct Engine<P: Part> {
    running: Vec<Running<P>>,
    part_of: Vec<u16>,
    look_ahead: u64,
    now: u64,
}

/// One part, with its future events, in cache lines of its own.
#[repr(align(128))]
#[derive(Serialize, Deserialize)]
#[serde(bound(
    serialize = "P: Serialize, P::Event: Clone + Serialize",
    deserialize = "P: Deserialize<'de>, P::Event: Deserialize<'de>"
))]
struct Running<P: Part> {
    number: u16,
    part: P,
    queue: Queue<(Node, P::Event)>,
    /// By node of the whole world: events made, and the trace. Only the part's own are in use.
    counts: Vec<u32>,
    traces: Vec<u64>,
    /// Events just made that leave this part; messages to each other part, and from them. All are
    /// empty between runs.
    #[serde(skip, default = "Vec::new")]
    left: Vec<(u16, Placed<P::Event>)>,
    #[serde(skip, default = "Vec::new")]
    others: Vec<Vec<Placed<P::Message>>>,
    #[serde(skip, default = "Vec::new")]
    came: Vec<Placed<P::Message>>,
    events: u64,
    /// Time of the last event.
    last: u64,
}

/// The state that the threads share: how far each part has come, and its mail.
struct Shared<M> {
    clocks: Clocks,
    mail: Vec<Apart<Mailbox<Placed<M>>>>,
}

impl<P: Part> Engine<P> {
    /// Makes a world. `part_of` has the part of each node; `first` the events at the start, each made
    /// by its own node.
    ///
    /// # Panics
    /// If there are several parts and `look_ahead` is 0.
    pub fn new(
        parts: Vec<P>,
        part_of: Vec<u16>,
        look_ahead: u64,
        first: impl IntoIterator<Item = (Node, u64, P::Event)>,
    ) -> Self {
        assert!(parts.len() == 1 || look_ahead > 0, "parts need a look-ahead");
        Self::from_part(0, parts, part_of, look_ahead, first)
    }

    /// Makes some parts of a world, from the one of a number on.
    fn from_part(
        number: u16,
        parts: Vec<P>,
        part_of: Vec<u16>,
        look_ahead: u64,
        first: impl IntoIterator<Item = (Node, u64, P::Event)>,
    ) -> Self {
        let running = (number..).zip(parts).map(|(number, part)| Running {
            number,
            part,
            queue: Queue::default(),
            counts: vec![0; part_of.len()],
            traces: vec![0; part_of.len()],
            left: Vec::new(),
            others: Vec::new(),
            came: Vec::new(),
            events: 0,
            last: 0,
        });
        let mut running: Vec<Running<P>> = running.collect();
        for (node, at, event) in first {
            let place = part_of[node as usize].checked_sub(number).map(usize::from);
            let Some(owner) = place.and_then(|place| running.get_mut(place)) else { continue };
            let made = &mut owner.counts[node as usize];
            owner.queue.push(at, u64::from(node) << 32 | u64::from(*made), (node, event));
            *made += 1;
        }
        Self { running, part_of, look_ahead, now: 0 }
    }

    /// Divides the world anew, between two runs: `parts` are empty, `part_of` has the part of each node
    /// in them. `carry` moves the state of a node; events are moved as messages are. The run goes on as
    /// it would have.
    ///
    /// # Panics
    /// If there are several parts and `look_ahead` is 0, or the number of nodes differs.
    pub fn divide(
        mut self,
        parts: Vec<P>,
        part_of: Vec<u16>,
        look_ahead: u64,
        mut carry: impl FnMut(Node, &mut P, &mut P),
    ) -> Self {
        assert_eq!(part_of.len(), self.part_of.len(), "another number of nodes");
        let mut divided = Self::new(parts, part_of, look_ahead, []);
        divided.now = self.now;
        for (node, (before, after)) in self.part_of.iter().zip(&divided.part_of).enumerate() {
            let from = &mut self.running[usize::from(*before)];
            let to = &mut divided.running[usize::from(*after)];
            (to.counts[node], to.traces[node]) = (from.counts[node], from.traces[node]);
            carry(node as Node, &mut from.part, &mut to.part);
        }
        for from in &mut self.running {
            for (at, rank, (node, event)) in Vec::from(std::mem::take(&mut from.queue)) {
                let to = &mut divided.running[usize::from(divided.part_of[node as usize])];
                let event = to.part.unpack(from.part.pack(event));
                to.queue.push(at, rank, (node, event));
            }
        }
        let first = &mut divided.running[0];
        (first.events, first.last) = (
            self.running.iter().map(|one| one.events).sum(),
            self.running.iter().map(|one| one.last).max().unwrap_or(0),
        );
        divided
    }

    /// Runs until `end`, exclusive, or until no event is left: in this thread if there is one part,
    /// else each part in a thread.
    ///
    /// # Panics
    /// If a part panics, or breaks the look-ahead.
    pub fn run_until(&mut self, end: u64) {
        let count = self.running.len();
        self.running.iter_mut().for_each(|one| one.others.resize_with(count, Vec::new));
        let (part_of, look_ahead) = (&self.part_of[..], self.look_ahead);
        match &mut self.running[..] {
            [only] => while only.run_until(end, part_of, look_ahead, usize::MAX) {},
            several => run_in_threads(several, part_of, look_ahead, end),
        }
        self.now = end;
    }

    /// Returns the time until which it ran.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Returns the time of the last event handled, which does not depend on where it stopped.
    pub fn last_event(&self) -> u64 {
        self.running.iter().map(|one| one.last).max().unwrap_or(0)
    }

    /// Returns the number of events that these parts have handled.
    pub fn events(&self) -> u64 {
        self.running.iter().map(|one| one.events).sum()
    }

    /// Returns a hash over all events of each node in their order, the same for every partition.
    pub fn trace(&self) -> u64 {
        self.running.iter().map(Running::trace).fold(0, u64::wrapping_add)
    }

    /// True if no event is left.
    pub fn is_over(&self) -> bool {
        self.running.iter().all(|one| one.queue.is_empty())
    }

    /// Returns the part of each node.
    pub fn part_of(&self) -> &[u16] {
        &self.part_of
    }

    /// Returns the parts.
    pub fn parts(&self) -> impl Iterator<Item = &P> {
        self.running.iter().map(|one| &one.part)
    }

    /// Returns the parts, to change them between two runs.
    pub fn parts_mut(&mut self) -> impl Iterator<Item = &mut P> {
        self.running.iter_mut().map(|one| &mut one.part)
    }
}

/// Events that come before one whose memory is prefetched: an event takes some 100 ns, memory as long.
const FAR: usize = 3;
const NEAR: usize = 1;

/// Events that a part handles before it tells the others how far it has come.
const BATCH: usize = 8;

fn run_in_threads<P: Part>(running: &mut [Running<P>], part_of: &[u16], look_ahead: u64, end: u64) {
    let shared = Shared {
        clocks: Clocks::new(running.len()),
        mail: running.iter().map(|_| Apart::default()).collect(),
    };
    std::thread::scope(|scope| {
        for one in running.iter_mut() {
            let shared = &shared;
            scope.spawn(move || one.run_beside(shared, part_of, look_ahead, end));
        }
    });
    running.iter_mut().for_each(|one| one.read(&shared.mail));
}

impl<P: Part> Running<P> {
    /// Runs beside the other parts, each event once none of theirs can come before it.
    fn run_beside(
        &mut self,
        shared: &Shared<P::Message>,
        part_of: &[u16],
        look_ahead: u64,
        end: u64,
    ) {
        let Shared { clocks, mail } = shared;
        let _leaves = clocks.leave_on_panic();
        let number = usize::from(self.number);
        let mut rounds = 0;
        loop {
            let others = clocks.of_others(number);
            if rounds > 1 {
                clocks.leave_wait(number);
            }
            // Sent before that clock was set, so there to read.
            self.read(mail);
            let safe = others.saturating_add(look_ahead).min(end);
            let next = self.queue.next_at().unwrap_or(u64::MAX);
            clocks.set(number, next.min(safe));
            if next.min(safe) >= end {
                return clocks.end(number);
            }
            if next >= safe {
                rounds += 1;
                if rounds > 1 {
                    clocks.enter_wait(number, next, |part| !mail[part].0.is_empty());
                }
                clocks.wait(number, others, rounds);
                continue;
            }
            rounds = 0;
            while self.run_until(safe, part_of, look_ahead, BATCH) {
                self.post(mail);
                clocks.set(number, self.last);
            }
            self.post(mail);
        }
    }

    /// Takes the messages that came from other parts.
    fn read(&mut self, mail: &[Apart<Mailbox<Placed<P::Message>>>]) {
        let mailbox = &mail[usize::from(self.number)].0;
        if mailbox.is_empty() {
            return;
        }
        mailbox.exchange(&mut self.came);
        for Placed { at, rank, node, event } in self.came.drain(..) {
            let event = self.part.unpack(event);
            self.queue.push(at, rank, (node, event));
        }
    }

    /// Moves the messages made since the last time to the other parts.
    fn post(&mut self, mail: &[Apart<Mailbox<Placed<P::Message>>>]) {
        for (mailbox, sent) in mail.iter().zip(&mut self.others) {
            if !sent.is_empty() {
                mailbox.0.post(sent);
            }
        }
    }

    /// Handles events before `end`, up to `most` of them; `false`: there are no more.
    fn run_until(&mut self, end: u64, part_of: &[u16], look_ahead: u64, most: usize) -> bool {
        for _ in 0..most {
            let Some((now, rank, (node, event))) = self.queue.pop_ranked_before(end) else {
                return false;
            };
            self.prefetch();
            self.events += 1;
            self.last = now;
            let digest = self.part.digest(&event);
            let trace = &mut self.traces[node as usize];
            *trace = mix(trace.rotate_left(23) ^ mix(now ^ rank.rotate_left(32)) ^ digest);
            let mut out = Outbox {
                now,
                source: node,
                count: &mut self.counts[node as usize],
                own_part: self.number,
                part_of,
                look_ahead,
                queue: &mut self.queue,
                left: &mut self.left,
            };
            self.part.handle(node, event, &mut out);
            for (to, Placed { at, rank, node, event }) in self.left.drain(..) {
                let event = self.part.pack(event);
                self.others[usize::from(to)].push(Placed { at, rank, node, event });
            }
        }
        true
    }

    /// Prefetches what the next events of this tick use.
    #[inline]
    fn prefetch(&self) {
        if let Some((node, event)) = self.queue.ahead(FAR) {
            prefetch(&self.traces[*node as usize], 1);
            prefetch(&self.counts[*node as usize], 1);
            self.part.prefetch(*node, event, Ahead::Far);
        }
        if let Some((node, event)) = self.queue.ahead(NEAR) {
            self.part.prefetch(*node, event, Ahead::Near);
        }
    }

    /// Returns the sum of its nodes' traces.
    fn trace(&self) -> u64 {
        let used = self.traces.iter().enumerate().filter(|(_, trace)| **trace != 0);
        used.map(|(node, trace)| mix(trace ^ node as u64)).fold(0, u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::random::Stream;
    use crate::ranks::in_threads;

    /// Nodes that pass tokens on at random (PHOLD: Fujimoto 1990).
    #[derive(Serialize, Deserialize)]
    struct Tokens {
        nodes: u32,
        rngs: Vec<Stream>,
        passed: u64,
    }

    impl Tokens {
        fn new(nodes: u32, seed: u64) -> Self {
            let root = Stream::new(seed);
            let rngs = (0..nodes).map(|node| root.split("node", &[node.into()])).collect();
            Self { nodes, rngs, passed: 0 }
        }
    }

    impl Part for Tokens {
        type Event = u32;
        type Message = u32;

        fn handle(&mut self, node: Node, token: u32, out: &mut Outbox<'_, u32>) {
            let rng = &mut self.rngs[node as usize];
            let to = rng.below(self.nodes.into()) as u32;
            // Many events of one instant.
            let after = 100 + 50 * rng.below(3);
            self.passed += 1;
            out.send(to, after, token);
            if token.is_multiple_of(7) && rng.chance(300_000) {
                out.send(node, 0, token + 1);
            }
        }

        fn digest(&self, token: &u32) -> u64 {
            u64::from(*token)
        }

        fn pack(&mut self, token: u32) -> u32 {
            token
        }

        fn unpack(&mut self, token: u32) -> u32 {
            token
        }
    }

    #[test]
    fn far_events_come_at_once() {
        let worlds = (0..3).map(|_| Tokens::new(9, 1)).collect();
        let far = 1 << 60;
        let mut engine = Engine::new(worlds, part_of(9, 3), 100, [(4, far, 1)]);
        engine.run_until(far);
        assert_eq!(engine.events(), 0);
        engine.run_until(far + 1_000);
        assert!(engine.last_event() > far);
    }

    fn part_of(nodes: u32, parts: u16) -> Vec<u16> {
        (0..nodes).map(|node| (node % u32::from(parts)) as u16).collect()
    }

    /// One token at each of the first nodes, some apart in time.
    fn first(tokens: u32) -> impl Iterator<Item = (Node, u64, u32)> {
        (0..tokens).map(|node| (node, u64::from(node % 3) * 90, node))
    }

    fn restored(states: &[Vec<u8>], part_of: &[u16], now: u64) -> Engine<Tokens> {
        let states: Vec<&[u8]> = states.iter().map(Vec::as_slice).collect();
        Engine::restore_parts(&states, part_of.to_vec(), 100, now).unwrap()
    }

    fn divided(engine: Engine<Tokens>, parts: u16) -> Engine<Tokens> {
        let nodes = engine.part_of().len() as u32;
        let worlds = (0..parts).map(|_| Tokens::new(nodes, 0)).collect();
        engine.divide(worlds, part_of(nodes, parts), 100, |node, from, to| {
            let rng = &mut from.rngs[node as usize];
            std::mem::swap(&mut to.rngs[node as usize], rng);
            to.passed += std::mem::take(&mut from.passed);
        })
    }

    /// Trace, events, and tokens passed.
    fn summary(engine: &Engine<Tokens>) -> [u64; 3] {
        [engine.trace(), engine.events(), engine.parts().map(|part| part.passed).sum()]
    }

    /// Runs a world, saved and restored at each of the stops, in another number of parts if it says so.
    fn ran((nodes, tokens): (u32, u32), parts: u16, seed: u64, stops: &[(u64, u16)]) -> [u64; 3] {
        let worlds = (0..parts).map(|_| Tokens::new(nodes, seed)).collect();
        let mut engine = Engine::new(worlds, part_of(nodes, parts), 100, first(tokens));
        for (end, parts) in stops {
            engine.run_until(*end);
            engine = divided(restored(&engine.save_parts(), engine.part_of(), *end), *parts);
        }
        engine.run_until(20_000);
        assert!(!engine.is_over());
        summary(&engine)
    }

    /// Runs a world on ranks; after each of the stops for a while on as many threads at rank 0.
    fn ran_on(
        (nodes, tokens): (u32, u32),
        count: u16,
        seed: u64,
        stops: &[(u64, u16)],
    ) -> [u64; 3] {
        let ran = in_threads(count.into(), |ranks| {
            let (number, parts) = (ranks.number() as u16, part_of(nodes, count));
            let world = Tokens::new(nodes, seed);
            let mut engine = Engine::of_rank(number, world, parts.clone(), 100, first(tokens));
            for (end, threads) in stops {
                engine.run_on(*end, &*ranks);
                let states = ranks.gather(engine.save_parts().remove(0));
                let mut dealt = vec![Vec::new(); count.into()];
                if number == 0 {
                    let mut whole = divided(restored(&states, &parts, *end), *threads);
                    whole.run_until(end + 500);
                    dealt = divided(whole, count).save_parts();
                }
                let own = ranks.exchange(dealt).swap_remove(0);
                engine = restored(&[own], &parts, end + 500);
            }
            engine.run_on(20_000, &*ranks);
            summary(&engine)
        });
        ran.into_iter().fold([0; 3], |sum, one| [0, 1, 2].map(|at| sum[at].wrapping_add(one[at])))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn every_partition_gives_same_run(
            nodes in 7..40u32,
            parts in 2..6u16,
            seed in any::<u64>(),
        ) {
            let world = (nodes, nodes);
            let alone = ran(world, 1, seed, &[]);
            prop_assert_eq!(ran(world, parts, seed, &[]), alone);
            let stops = [(333, parts), (10_000, 1), (12_000, parts + 1)];
            prop_assert_eq!(ran(world, parts, seed, &stops), alone, "restored and divided");
            prop_assert_eq!(alone[1], alone[2], "each event is handled once");
            prop_assert_ne!(ran(world, 1, seed ^ 1, &[])[0], alone[0]);
        }

        /// With few tokens a rank is often alone, and its own events limit how far it may run.
        #[test]
        fn ranks_give_same_run(
            nodes in 5..30u32,
            share in 1..6u32,
            count in 1..6u16,
            seed in any::<u64>(),
            stop in 1..15_000u64,
        ) {
            let world = (nodes, (nodes / share).max(2));
            let alone = ran(world, 1, seed, &[]);
            prop_assert_eq!(ran_on(world, count, seed, &[]), alone);
            let stops = [(stop, 3), (stop + 501, 1), (stop + 4_000, 2)];
            prop_assert_eq!(ran_on(world, count, seed, &stops), alone, "saved and dealt anew");
        }
    }

    #[test]
    fn world_without_events_ends() {
        struct Still;
        impl Part for Still {
            type Event = ();
            type Message = ();
            fn handle(&mut self, _: Node, (): (), _: &mut Outbox<'_, ()>) {}
            fn digest(&self, (): &()) -> u64 {
                1
            }
            fn pack(&mut self, (): ()) {}
            fn unpack(&mut self, (): ()) {}
        }
        let mut engine = Engine::new(vec![Still, Still], vec![0, 1], 1, [(0, 5, ()), (1, 9, ())]);
        engine.run_until(u64::MAX);
        assert_eq!((engine.events(), engine.is_over(), engine.last_event()), (2, true, 9));
    }

    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn panic_of_part_ends_run() {
        struct Fails;
        impl Part for Fails {
            type Event = ();
            type Message = ();
            fn handle(&mut self, node: Node, (): (), out: &mut Outbox<'_, ()>) {
                assert!(node == 0 || out.now() < 50, "it fails");
                out.send(node, 10, ());
            }
            fn digest(&self, (): &()) -> u64 {
                1
            }
            fn pack(&mut self, (): ()) {}
            fn unpack(&mut self, (): ()) {}
        }
        let first = [(0, 5, ()), (1, 9, ())];
        Engine::new(vec![Fails, Fails], vec![0, 1], 1, first).run_until(u64::MAX);
    }
}
