//! The order in which links send: recipients get even shares of the bytes a target moves, and all
//! links of one recipient divide its share.
//!
//! This is start-time fair queueing (Goyal, Vin, Cheng 1996), twice: among recipients, and among
//! the links of each. The one in turn moves up to a train of frames; then its mark records how far
//! it has come, in bytes, and the lowest mark is next. One that was idle begins at most a turn
//! behind the others, so it saves up no more than that. One that moves less than its share is
//! always behind the others, and so next: a page fault does not wait until all requests of others
//! are answered. A turn takes time logarithmic in the number waiting, once for each train.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use venice_wire::MAX_FRAME_BYTES;

/// The recipient on whose share an access counts: a program with all its grants, processes and
/// links. The donor chooses the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecipientId(pub u64);

/// Bytes moved in one turn: about as many frames as travel as one train.
pub(super) const TURN_BYTES: u64 = 15 * MAX_FRAME_BYTES as u64;

/// Turns in a row after which a flow counts as alone: some tens of milliseconds of a busy donor.
const TURNS_ALONE: u32 = 256;

/// The links with something to send, in the order of their turns.
#[derive(Debug)]
pub(super) struct Shares {
    /// Flows with links that wait.
    waiting: Turns,
    /// First the flows of links without a known recipient, by their slots, then those of
    /// recipients.
    flows: Vec<Flow>,
    /// By slot: the link's flow, and its mark there.
    links: Box<[Place]>,
    by_recipient: BTreeMap<RecipientId, usize>,
    free: Vec<usize>,
    current: Option<Current>,
    moved_bytes: u64,
    /// The flow that had the last turn, and the turns since another had one.
    last: usize,
    turns_alone: u32,
}

/// A holder of one share.
#[derive(Debug, Default)]
struct Flow {
    /// Its links that wait.
    waiting: Turns,
    mark: u64,
    /// True if it waits, or has the turn.
    is_busy: bool,
    /// The number of links that belong to it.
    members: usize,
    recipient: Option<RecipientId>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    flow: usize,
    mark: u64,
}

/// The link in turn, the marks at which it and its flow began, and the bytes it has moved.
#[derive(Clone, Copy, Debug)]
struct Current {
    link: usize,
    link_mark: u64,
    flow: usize,
    flow_mark: u64,
    moved_bytes: u64,
}

impl Shares {
    pub(super) fn new(places: usize) -> Self {
        Self {
            waiting: Turns::with_capacity(places),
            flows: (0..places).map(|_| Flow::default()).collect(),
            links: (0..places).map(|flow| Place { flow, mark: 0 }).collect(),
            by_recipient: BTreeMap::new(),
            free: Vec::new(),
            current: None,
            moved_bytes: 0,
            last: 0,
            turns_alone: 0,
        }
    }

    pub(super) fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.current.is_some() || !self.waiting.is_empty()
    }

    /// True if more than one flow has something to send, or had recently.
    pub(super) fn is_contended(&self) -> bool {
        self.turns_alone < TURNS_ALONE
            || self.waiting.len() + usize::from(self.current.is_some()) > 1
    }

    /// Counts the link at this slot on the recipient's share from here on.
    pub(super) fn join(&mut self, at: usize, recipient: RecipientId) {
        self.leave(at);
        let flow = match self.by_recipient.get(&recipient) {
            Some(&flow) => flow,
            None => self.add_flow(recipient),
        };
        self.links[at] = Place { flow, mark: self.flows[flow].waiting.mark };
        let flow = &mut self.flows[flow];
        flow.members += 1;
        flow.waiting.reserve(flow.members);
    }

    fn add_flow(&mut self, recipient: RecipientId) -> usize {
        let new = Flow { recipient: Some(recipient), ..Flow::default() };
        let flow = match self.free.pop() {
            Some(flow) => {
                self.flows[flow] = new;
                flow
            }
            None => {
                self.flows.push(new);
                self.flows.len() - 1
            }
        };
        self.by_recipient.insert(recipient, flow);
        flow
    }

    /// Removes the link at this slot; the next one there counts on its own, until it joins another.
    pub(super) fn leave(&mut self, at: usize) {
        let flow = std::mem::replace(&mut self.links[at].flow, at);
        self.links[at].mark = self.flows[at].waiting.mark;
        if flow != at {
            self.flows[flow].members -= 1;
            self.forget_if_over(flow);
        }
    }

    fn forget_if_over(&mut self, flow: usize) {
        let Flow { recipient, members: 0, is_busy: false, .. } = self.flows[flow] else { return };
        if let Some(recipient) = recipient {
            self.by_recipient.remove(&recipient);
            self.flows[flow] = Flow::default();
            self.free.push(flow);
        }
    }

    /// Queues the link at this slot, which has something to send and is not waiting already.
    pub(super) fn add(&mut self, at: usize) {
        // A link interrupted in its turn may no longer be the next.
        self.end_turn(true);
        let Place { flow: number, mark } = self.links[at];
        let flow = &mut self.flows[number];
        flow.waiting.push(mark, at);
        if !std::mem::replace(&mut flow.is_busy, true) {
            self.waiting.push(flow.mark, number);
        }
    }

    /// Returns the link in turn. [`Shares::spend`] or [`Shares::rest`] must follow.
    pub(super) fn turn(&mut self) -> Option<usize> {
        if let Some(current) = self.current {
            return Some(current.link);
        }
        let (flow_mark, flow) = self.waiting.pop()?;
        let is_same = std::mem::replace(&mut self.last, flow) == flow;
        self.turns_alone = if is_same { self.turns_alone.saturating_add(1) } else { 0 };
        let (link_mark, link) = self.flows[flow].waiting.pop().expect("a busy flow has links");
        self.current = Some(Current { link, link_mark, flow, flow_mark, moved_bytes: 0 });
        Some(link)
    }

    /// Counts bytes moved by the link in turn, which has sent something.
    pub(super) fn spend(&mut self, bytes: u64) {
        self.moved_bytes += bytes;
        let Some(current) = &mut self.current else { return };
        current.moved_bytes += bytes;
        if current.moved_bytes >= TURN_BYTES {
            self.end_turn(true);
        }
    }

    /// Ends the turn of a link that has nothing more to send.
    pub(super) fn rest(&mut self) {
        self.end_turn(false);
    }

    fn end_turn(&mut self, goes_on: bool) {
        let Some(current) = self.current.take() else { return };
        let Current { link, link_mark, flow: at, flow_mark, moved_bytes } = current;
        let link_mark = link_mark + moved_bytes;
        if self.links[link].flow == at {
            self.links[link].mark = link_mark;
        }
        let flow = &mut self.flows[at];
        flow.mark = flow_mark + moved_bytes;
        if goes_on {
            flow.waiting.push(link_mark, link);
        }
        if flow.waiting.is_empty() {
            flow.is_busy = false;
            self.forget_if_over(at);
        } else {
            self.waiting.push(flow.mark, at);
        }
    }
}

/// A queue with the lowest mark first, and the earliest of equal ones.
#[derive(Debug, Default)]
struct Turns {
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    /// The furthest mark at which a turn has begun: none begins more than a turn below it.
    mark: u64,
    pushed: u64,
}

impl Turns {
    fn with_capacity(places: usize) -> Self {
        Self { heap: BinaryHeap::with_capacity(places), ..Self::default() }
    }

    fn reserve(&mut self, places: usize) {
        self.heap.reserve(places.saturating_sub(self.heap.len()));
    }

    fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    fn len(&self) -> usize {
        self.heap.len()
    }

    fn push(&mut self, mark: u64, which: usize) {
        self.pushed += 1;
        let least = self.mark.saturating_sub(TURN_BYTES);
        self.heap.push(Reverse((mark.max(least), self.pushed, which)));
    }

    fn pop(&mut self) -> Option<(u64, usize)> {
        let Reverse((mark, _, which)) = self.heap.pop()?;
        self.mark = self.mark.max(mark);
        Some((mark, which))
    }
}
