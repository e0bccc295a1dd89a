//! The links of a donor: bounded in number, each found by its link number.

use std::collections::BTreeMap;

use venice_wire::{Channel, Frame, HeaderRepr, LinkId, NodeId, Opcode};

use super::{PeerAddr, liveness::CallerLiveness, opened::OpenedGrants};
use crate::{
    DownReason, TargetConfig,
    datalink::{Link, LinkNumbers, earlier},
};

/// Handshakes remembered before a first frame confirms them, at most, and as a share of all links.
/// The oldest is dropped for a new one.
const MAX_UNCONFIRMED: usize = 64;
const UNCONFIRMED_SHARE: usize = 4;

/// One link, from the first Hello on.
#[derive(Debug)]
pub(super) struct Entry {
    pub addr: PeerAddr,
    pub node: NodeId,
    /// The contents of the Hello: the caller's incarnation, its proposal, its window.
    pub incarnation: u64,
    proposal: LinkId,
    window: u16,
    id: LinkId,
    /// Order of the Hellos: link numbers do not give it.
    serial: u64,
    pub heard_ns: u64,
    pub welcome_due: bool,
    /// A write carried out and not answered yet: its answer covers those before it too.
    pub done_due: Option<(Channel, u32)>,
    /// The grants the caller uses.
    pub opened: OpenedGrants,
    /// The liveness of the caller.
    pub liveness: CallerLiveness,
    /// True if the entry is among those with something to send.
    pub is_queued: bool,
    /// True if the recipient whose share it counts on is known.
    pub has_recipient: bool,
    /// Bytes received since it last sent something, to be counted on that share.
    pub asked_bytes: u64,
    /// Made when the first frame confirms the handshake: an unconfirmed caller gets no buffers.
    pub link: Option<Link>,
}

#[derive(Debug)]
pub(super) struct Links {
    entries: Vec<Option<Entry>>,
    by_id: BTreeMap<LinkId, usize>,
    numbers: LinkNumbers,
    next_serial: u64,
    /// Links removed since the last call of [`Links::next_removed`].
    removed: Vec<(usize, DownReason)>,
}

impl Links {
    pub(super) fn new(config: &TargetConfig) -> Self {
        let max_links = usize::from(config.max_links.max(1));
        Self {
            entries: (0..max_links).map(|_| None).collect(),
            by_id: BTreeMap::new(),
            numbers: LinkNumbers::new(config.incarnation),
            next_serial: 0,
            removed: Vec::with_capacity(max_links),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns the number of slots for links, used or free.
    pub(super) fn places(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, at: usize) -> Option<&Entry> {
        self.entries.get(at)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Entry> {
        self.entries.get_mut(at)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Entry)> {
        self.entries.iter_mut().enumerate().filter_map(|(at, entry)| Some((at, entry.as_mut()?)))
    }

    /// Returns the link a frame belongs to.
    pub(super) fn find(&self, from: PeerAddr, frame: &Frame<'_>) -> Option<usize> {
        let &at = self.by_id.get(&frame.link())?;
        let entry = self.entries[at].as_ref()?;
        (entry.addr == from && entry.node == frame.source()).then_some(at)
    }

    /// Returns the slot of the confirmed link with a caller.
    pub(super) fn of(&self, addr: PeerAddr) -> Option<usize> {
        self.entries.iter().position(|entry| {
            entry.as_ref().is_some_and(|entry| entry.addr == addr && entry.link.is_some())
        })
    }

    /// Returns the link this Hello opens, or has opened before. `None`: there is no room for it
    /// now.
    pub(super) fn accept_hello(
        &mut self,
        now_ns: u64,
        from: PeerAddr,
        hello: &Frame<'_>,
        config: &TargetConfig,
    ) -> Option<usize> {
        let known = self.iter_mut().find(|(_, entry)| {
            entry.addr == from
                && entry.node == hello.source()
                && entry.incarnation == hello.address()
                && entry.proposal == hello.link()
        });
        if let Some((at, _)) = known {
            return Some(at);
        }
        let at = self.make_room(now_ns, config)?;
        let id = self.draw_id();
        self.by_id.insert(id, at);
        let serial = self.next_serial;
        self.next_serial += 1;
        self.entries[at] = Some(Entry {
            addr: from,
            node: hello.source(),
            incarnation: hello.address(),
            proposal: hello.link(),
            window: hello.access_len(),
            id,
            serial,
            heard_ns: now_ns,
            welcome_due: true,
            done_due: None,
            opened: OpenedGrants::new(config.max_grants_per_link),
            liveness: CallerLiveness::default(),
            is_queued: false,
            has_recipient: false,
            asked_bytes: 0,
            link: None,
        });
        Some(at)
    }

    /// Ends the links that the caller names as given up, from whichever address it opened them.
    pub(super) fn end_replaced(&mut self, hello: &Frame<'_>) {
        let (numbers, _) = hello.payload().as_chunks();
        for &number in numbers {
            let Some(&at) = self.by_id.get(&LinkId(u32::from_le_bytes(number))) else { continue };
            let is_of_caller = |entry: &Entry| {
                (entry.node, entry.incarnation) == (hello.source(), hello.address())
            };
            if self.get(at).is_some_and(is_of_caller) {
                self.remove(at, DownReason::LinkLost);
            }
        }
    }

    fn draw_id(&mut self) -> LinkId {
        loop {
            let id = self.numbers.draw();
            if !self.by_id.contains_key(&id) {
                return id;
            }
        }
    }

    /// Returns a free slot, after dropping an unconfirmed link or one that has long been silent. A
    /// handshake in progress gives way to other handshakes only once there are many, so that a full
    /// table refuses a newcomer instead of breaking off those before it.
    fn make_room(&mut self, now_ns: u64, config: &TargetConfig) -> Option<usize> {
        let unconfirmed = self.iter_mut().filter(|(_, entry)| entry.link.is_none()).count();
        let max_unconfirmed = (self.places() / UNCONFIRMED_SHARE).clamp(1, MAX_UNCONFIRMED);
        let free = self.entries.iter().position(Option::is_none);
        if free.is_some() && unconfirmed < max_unconfirmed {
            return free;
        }
        let silent_since = now_ns.saturating_sub(config.link.silence_ns);
        let may_go = |entry: &Entry| match entry.link.is_some() {
            true => entry.heard_ns < silent_since,
            false => unconfirmed >= max_unconfirmed || entry.heard_ns < silent_since,
        };
        let (at, _) = self
            .iter_mut()
            .filter(|(_, entry)| may_go(entry))
            .min_by_key(|(_, entry)| (entry.link.is_some(), entry.heard_ns))?;
        self.remove(at, DownReason::Silent);
        Some(at)
    }

    /// Records a frame received on a link; the first one confirms the handshake. Older links of the
    /// same caller end then: a caller that uses the new link has given them up.
    pub(super) fn note_frame(&mut self, now_ns: u64, at: usize, config: &TargetConfig) {
        let Some(entry) = self.get_mut(at) else { return };
        entry.heard_ns = now_ns;
        if entry.link.is_some() {
            return;
        }
        let mut link = Link::new(&config.link, config.node, entry.node, now_ns);
        link.open(entry.id, entry.window, now_ns);
        entry.link = Some(link);
        entry.opened.reserve();
        let (addr, node, serial) = (entry.addr, entry.node, entry.serial);
        for older in 0..self.entries.len() {
            // Unconfirmed links end as well: frames of a caller's earlier session may still be in
            // flight, and one of them would open its link again.
            let is_superseded =
                |entry: &Entry| (entry.addr, entry.node) == (addr, node) && entry.serial < serial;
            if self.entries[older].as_ref().is_some_and(is_superseded) {
                self.remove(older, DownReason::Restarted);
            }
        }
    }

    pub(super) fn remove(&mut self, at: usize, reason: DownReason) {
        if let Some(entry) = self.entries[at].take() {
            self.by_id.remove(&entry.id);
            if entry.link.is_some() {
                self.removed.push((at, reason));
            }
        }
    }

    /// Removes the links of the caller at `addr`.
    pub(super) fn remove_of(&mut self, addr: PeerAddr) {
        for at in 0..self.entries.len() {
            if self.get(at).is_some_and(|entry| entry.addr == addr) {
                self.remove(at, DownReason::Silent);
            }
        }
    }

    /// Returns a slot whose link was removed, and the reason: its QPairs must be notified.
    pub(super) fn next_removed(&mut self) -> Option<(usize, DownReason)> {
        self.removed.pop()
    }

    /// Removes links that have been silent for too long; returns the time at which the next one
    /// will have been. One whose grants are over is given up at the silence bound: a caller that
    /// lives is heard within it.
    pub(super) fn expire(&mut self, now_ns: u64, config: &TargetConfig) -> Option<u64> {
        let mut next_ns = None;
        for at in 0..self.entries.len() {
            let Some(entry) = &self.entries[at] else { continue };
            let silence_ns = config.link.silence_ns.min(config.link_idle_ns);
            let are_over = entry.opened.are_over();
            let idle_ns = if are_over { silence_ns } else { config.link_idle_ns };
            let ends_ns = entry.heard_ns.saturating_add(idle_ns);
            if ends_ns <= now_ns {
                self.remove(at, DownReason::Silent);
                continue;
            }
            // Its grants may be over by then.
            let is_ending = entry.opened.is_revoking();
            let look_ns = is_ending.then(|| now_ns.saturating_add(silence_ns));
            next_ns = earlier(next_ns, earlier(Some(ends_ns), look_ns));
        }
        next_ns
    }
}

impl Entry {
    /// Returns the next time-out of the link.
    pub(super) fn poll_timeout(&self) -> Option<u64> {
        earlier(self.link.as_ref()?.poll_timeout(), self.opened.poll_timeout())
    }

    /// Returns the answer to the Hello; the same for every repetition.
    pub(super) fn welcome(&self, config: &TargetConfig) -> HeaderRepr {
        HeaderRepr {
            link: self.proposal,
            transaction: self.id.0,
            address: config.incarnation,
            access_len: config.link.window_frames(),
            detail: config.link.modes(),
            flags: config.link.header_flags(),
            ..HeaderRepr::new(Channel::Link, Opcode::Welcome, config.node, self.node)
        }
    }
}
