//! Worlds of many nodes, in parts that run on threads of their own.
//!
//! A conservative parallel simulation in windows (Nicol, JACM 1993): no event reaches another part
//! sooner than the look-ahead, so all parts may run from the earliest event of all for that long
//! without a look at the others. Events of one instant are in the order of their source and of its
//! count, which depend on no partition: every number of parts gives the same run.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::barrier::Barrier;
use crate::queue::Queue;
use crate::random::mix;

/// The number of a node in the whole world, from 0.
pub type Node = u32;

/// The nodes of one part. Node `n` of a world in `parts` parts is in the part that the caller of
/// [`run`] put it in.
pub trait Part: Send {
    /// An event of a node. It is moved between queues, so it should be small.
    type Event: Send;

    /// Handles an event of `node` at the time of `out`. The result may depend on the part's state of
    /// that node and on constants, on nothing else.
    fn handle(&mut self, node: Node, event: Self::Event, out: &mut Outbox<'_, Self::Event>);

    /// Returns a number that identifies the event in the trace; equal events have equal ones.
    fn digest(event: &Self::Event) -> u64;
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
    others: &'a mut [Vec<Message<E>>],
}

/// An event on its way to another part.
#[derive(Debug)]
struct Message<E> {
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
            self.others[usize::from(part)].push(Message { at, rank, node, event });
        }
    }
}

/// One part, with its future events.
#[derive(Debug)]
struct Running<P: Part> {
    number: u16,
    part: P,
    queue: Queue<(Node, P::Event)>,
    /// By node of the whole world: events made, and the trace. Only the part's own are in use.
    counts: Vec<u32>,
    traces: Vec<u64>,
    others: Vec<Vec<Message<P::Event>>>,
    events: u64,
}

/// The result of a run.
#[derive(Debug)]
pub struct Ran<P> {
    /// The parts, as they are at the end.
    pub parts: Vec<P>,
    /// Events handled.
    pub events: u64,
    /// A hash over all events of each node in their order, the same for every partition.
    pub trace: u64,
    /// True if no event is left.
    pub is_over: bool,
}

/// Runs a world until `end`, exclusive, or until no event is left: in this thread if it has one part,
/// else each part in a thread. `part_of` has the part of each node; `first` the events at the start, each
/// made by its own node.
///
/// # Panics
/// If a part panics, or breaks the look-ahead; if `look_ahead` is 0 and there are several parts.
pub fn run<P: Part>(
    parts: Vec<P>,
    part_of: &[u16],
    look_ahead: u64,
    first: impl IntoIterator<Item = (Node, u64, P::Event)>,
    end: u64,
) -> Ran<P> {
    assert!(parts.len() == 1 || look_ahead > 0, "parts need a look-ahead");
    let count = parts.len();
    let mut running: Vec<Running<P>> = (0..)
        .zip(parts)
        .map(|(number, part)| Running {
            number,
            part,
            queue: Queue::default(),
            counts: vec![0; part_of.len()],
            traces: vec![0; part_of.len()],
            others: (0..count).map(|_| Vec::new()).collect(),
            events: 0,
        })
        .collect();
    for (node, at, event) in first {
        let owner = &mut running[usize::from(part_of[node as usize])];
        let made = &mut owner.counts[node as usize];
        owner.queue.push(at, u64::from(node) << 32 | u64::from(*made), (node, event));
        *made += 1;
    }
    match &mut running[..] {
        [only] => only.run_until(end, part_of, look_ahead),
        several => run_in_threads(several, part_of, look_ahead, end),
    }
    let trace = running.iter().map(Running::trace).fold(0, u64::wrapping_add);
    Ran {
        events: running.iter().map(|one| one.events).sum(),
        is_over: running.iter().all(|one| one.queue.is_empty()),
        trace,
        parts: running.into_iter().map(|one| one.part).collect(),
    }
}

/// What the threads share: the time of each part's next event, and its messages.
struct Shared<E> {
    next: Vec<AtomicU64>,
    mail: Vec<Mutex<Vec<Message<E>>>>,
    barrier: Barrier,
}

fn run_in_threads<P: Part>(running: &mut [Running<P>], part_of: &[u16], look_ahead: u64, end: u64) {
    let shared = Shared {
        next: running.iter().map(|_| AtomicU64::new(u64::MAX)).collect(),
        mail: running.iter().map(|_| Mutex::new(Vec::new())).collect(),
        barrier: Barrier::new(running.len()),
    };
    std::thread::scope(|scope| {
        for one in running {
            let shared = &shared;
            scope.spawn(move || one.run_windows(shared, part_of, look_ahead, end));
        }
    });
}

impl<P: Part> Running<P> {
    /// Runs window after window, with the other parts.
    fn run_windows(
        &mut self,
        shared: &Shared<P::Event>,
        part_of: &[u16],
        look_ahead: u64,
        end: u64,
    ) {
        let _leaves = shared.barrier.leave_on_panic();
        loop {
            let number = usize::from(self.number);
            let mut came = std::mem::take(&mut *shared.mail[number].lock().expect("not poisoned"));
            for Message { at, rank, node, event } in came.drain(..) {
                self.queue.push(at, rank, (node, event));
            }
            let next = self.queue.next_at().unwrap_or(u64::MAX);
            shared.next[number].store(next, Ordering::Release);
            shared.barrier.wait();
            let earliest = shared.next.iter().map(|next| next.load(Ordering::Acquire)).min();
            let earliest = earliest.expect("there are parts");
            if earliest >= end {
                return;
            }
            self.run_until(earliest.saturating_add(look_ahead).min(end), part_of, look_ahead);
            for (to, messages) in self.others.iter_mut().enumerate() {
                if !messages.is_empty() {
                    shared.mail[to].lock().expect("not poisoned").append(messages);
                }
            }
            shared.barrier.wait();
        }
    }

    /// Handles all events before `end`.
    fn run_until(&mut self, end: u64, part_of: &[u16], look_ahead: u64) {
        while let Some((now, rank, (node, event))) = self.queue.pop_ranked_before(end) {
            self.events += 1;
            let trace = &mut self.traces[node as usize];
            *trace =
                mix(trace.rotate_left(23) ^ mix(now ^ rank.rotate_left(32)) ^ P::digest(&event));
            let mut out = Outbox {
                now,
                source: node,
                count: &mut self.counts[node as usize],
                own_part: self.number,
                part_of,
                look_ahead,
                queue: &mut self.queue,
                others: &mut self.others,
            };
            self.part.handle(node, event, &mut out);
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

    /// Nodes that pass tokens on at random (PHOLD: Fujimoto 1990).
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

        fn handle(&mut self, node: Node, token: u32, out: &mut Outbox<'_, u32>) {
            let rng = &mut self.rngs[node as usize];
            let to = rng.below(self.nodes.into()) as u32;
            // Many events of one instant.
            let after = 100 + 50 * rng.below(3);
            self.passed += 1;
            out.send(to, after, token);
            if token % 7 == 0 && rng.chance(300_000) {
                out.send(node, 0, token + 1);
            }
        }

        fn digest(token: &u32) -> u64 {
            u64::from(*token)
        }
    }

    fn ran(nodes: u32, parts: u16, seed: u64) -> (u64, u64, u64) {
        let part_of: Vec<u16> = (0..nodes).map(|node| (node % u32::from(parts)) as u16).collect();
        let worlds = (0..parts).map(|_| Tokens::new(nodes, seed)).collect();
        let first = (0..nodes).map(|node| (node, u64::from(node % 3), node));
        let ran = run(worlds, &part_of, 100, first, 20_000);
        assert!(!ran.is_over);
        let passed = ran.parts.iter().map(|part| part.passed).sum();
        (ran.trace, ran.events, passed)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn every_partition_gives_same_run(nodes in 2..40u32, parts in 2..6u16, seed in any::<u64>()) {
            let alone = ran(nodes, 1, seed);
            prop_assert_eq!(ran(nodes, parts, seed), alone);
            prop_assert_eq!(alone.1, alone.2, "each event is handled once");
            prop_assert_ne!(ran(nodes, 1, seed ^ 1).0, alone.0);
        }
    }

    #[test]
    fn world_without_events_ends() {
        struct Still;
        impl Part for Still {
            type Event = ();
            fn handle(&mut self, _: Node, (): (), _: &mut Outbox<'_, ()>) {}
            fn digest((): &()) -> u64 {
                1
            }
        }
        let ran = run(vec![Still, Still], &[0, 1], 1, [(0, 5, ()), (1, 9, ())], u64::MAX);
        assert_eq!((ran.events, ran.is_over), (2, true));
    }

    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn panic_of_part_ends_run() {
        struct Fails;
        impl Part for Fails {
            type Event = ();
            fn handle(&mut self, node: Node, (): (), out: &mut Outbox<'_, ()>) {
                assert!(node == 0 || out.now() < 50, "it fails");
                out.send(node, 10, ());
            }
            fn digest((): &()) -> u64 {
                1
            }
        }
        run(vec![Fails, Fails], &[0, 1], 1, [(0, 5, ()), (1, 9, ())], u64::MAX);
    }
}
