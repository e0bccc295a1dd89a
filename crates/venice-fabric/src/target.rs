//! The donor's end: takes frames, checks accesses to granted memory, and returns answers.

mod kept;
mod links;
mod liveness;
mod memory;
mod opened;
mod serve;
mod shares;

use std::collections::VecDeque;

use venice_wire::{
    Channel, Frame, GrantId, HeaderRepr, LinkId, MAX_FRAME_BYTES, NO_LINK_FREE, NodeId, Opcode,
};

pub use self::{
    kept::{KeptBytes, KeptFrame, Transmission},
    memory::GrantedMemory,
    shares::RecipientId,
};
use self::{
    links::{Entry, Links},
    liveness::Finding,
    opened::Revoked,
    serve::Service,
    shares::Shares,
};
use crate::{
    DownReason, DropStats, LinkStats, QPairConfig, QPairError, QPairId, TargetConfig,
    datalink::{Link, earlier},
    qpair::QPairs,
};

/// The origin of a frame and the destination of its answer: a handle the port makes of a socket
/// address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerAddr(pub u64);

/// The donor's end of the fabric, for all its recipients.
///
/// Every access is carried out exactly once, in the order its link sent it. Call
/// [`Target::poll_transmit`] after each frame or batch of frames: writes handled since then share
/// one answer. If several recipients wait for answers, they get even shares (see [`RecipientId`]).
/// A port that looks for new requests while it sends, after a fixed number of
/// [`Target::moved_bytes`], answers a small request soon even beside recipients that saturate the
/// donor.
#[derive(Debug)]
pub struct Target {
    config: TargetConfig,
    links: Links,
    /// The order in which links with something to send are served.
    shares: Shares,
    resets: VecDeque<Reset>,
    qpairs: QPairs,
    revoked: Revoked,
    dropped: DropStats,
    /// A lower bound of the next time an action is due.
    wake_ns: Option<u64>,
}

/// A grant in use by a recipient, as listed in the donor's mapping table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DonorMapping {
    /// The recipient's address.
    pub addr: PeerAddr,
    /// The recipient's node.
    pub node: NodeId,
    /// The grant.
    pub grant: GrantId,
    /// True if the recipient is being notified of a revocation.
    pub is_revoking: bool,
}

/// A notice to a caller that no such link exists, or with [`NO_LINK_FREE`] that none can be had.
#[derive(Debug)]
struct Reset {
    to: PeerAddr,
    node: NodeId,
    link: LinkId,
    detail: u16,
}

/// Resets that may wait to be sent; a caller that receives none asks again.
const MAX_RESETS: usize = 64;

impl Target {
    /// Returns a target without links.
    pub fn new(config: TargetConfig) -> Self {
        Self {
            links: Links::new(&config),
            shares: Shares::new(usize::from(config.max_links.max(1))),
            resets: VecDeque::with_capacity(MAX_RESETS),
            qpairs: QPairs::new(config.max_qpairs, config.incarnation),
            revoked: Revoked::default(),
            dropped: DropStats::default(),
            wake_ns: None,
            config,
        }
    }

    /// Returns the number of links, unconfirmed ones included.
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// True if all frames queued so far have arrived (over a reliable port: have been sent), so
    /// that nothing is lost when this end goes away.
    pub fn is_settled(&self) -> bool {
        self.links.iter().all(|entry| entry.link.as_ref().is_none_or(Link::is_settled))
    }

    /// Returns each confirmed link: its caller's address, its node, and its counters.
    pub fn link_stats(&self) -> impl Iterator<Item = (PeerAddr, NodeId, LinkStats)> {
        self.links
            .iter()
            .filter_map(|entry| Some((entry.addr, entry.node, entry.link.as_ref()?.stats())))
    }

    /// Revokes a grant: notifies every recipient that uses it, until the recipient confirms that it
    /// has no mapping and no outstanding access there any more, or has not answered for the silence
    /// bound of a link. No link may begin to use the grant. Returns the number of recipients
    /// notified. Accesses already in flight are still carried out, so keep the memory until
    /// [`Target::mappings`] no longer lists the grant, or for as long as you are willing to wait.
    ///
    /// Keeps the last 4096 revoked grants; the memory itself must refuse an older one.
    pub fn revoke(&mut self, now_ns: u64, grant: GrantId) -> usize {
        self.revoked.push(grant);
        let mut told = 0;
        for (at, entry) in self.links.iter_mut() {
            // The memory may go away before the last answer has arrived.
            entry.link.iter_mut().for_each(Link::copy_all_lent);
            if entry.opened.revoke(grant, now_ns) {
                told += 1;
                if !std::mem::replace(&mut entry.is_queued, true) {
                    self.shares.add(at);
                }
            }
        }
        if told > 0 {
            self.wake_by(Some(now_ns));
        }
        told
    }

    /// Shares a revoked grant again: for numbers that are reused.
    pub fn share(&mut self, grant: GrantId) {
        self.revoked.forget(grant);
    }

    /// Returns the donor's mapping table: the grants in use by each recipient.
    pub fn mappings(&self) -> impl Iterator<Item = DonorMapping> {
        self.links.iter().flat_map(|entry| {
            let (addr, node) = (entry.addr, entry.node);
            entry.opened.iter().map(move |(grant, is_revoking)| DonorMapping {
                addr,
                node,
                grant,
                is_revoking,
            })
        })
    }

    /// Returns the counters of datagrams dropped unread.
    pub fn dropped(&self) -> DropStats {
        self.dropped
    }

    /// Takes a datagram and carries out the accesses it carries or unblocks. Anything that is not a
    /// frame for this node is dropped.
    pub fn handle_frame(
        &mut self,
        now_ns: u64,
        from: PeerAddr,
        frame: &[u8],
        memory: &mut impl GrantedMemory,
    ) {
        // Borrowed in place: if moved, it would be read back before its parts are written.
        let parsed = Frame::parse_with(frame, self.config.link.integrity());
        let frame = match &parsed {
            Ok(frame) => frame,
            Err(error) => return self.dropped.note(*error),
        };
        if frame.destination() != self.config.node {
            self.dropped.not_for_here += 1;
            return;
        }
        match (frame.opcode(), self.links.find(from, frame)) {
            (Opcode::Hello, _) => self.handle_hello(now_ns, from, frame),
            (Opcode::Reset, Some(at)) => self.handle_reset(at, frame.address()),
            (Opcode::Welcome | Opcode::Reset, _) => {}
            (_, None) => {
                self.dropped.unknown_link += 1;
                self.queue_reset(from, frame, 0);
            }
            (_, Some(at)) => self.handle_link_frame(now_ns, at, frame, memory),
        }
        self.end_qpairs_of_removed();
    }

    fn handle_hello(&mut self, now_ns: u64, from: PeerAddr, hello: &Frame<'_>) {
        self.links.end_replaced(hello);
        let Some(at) = self.links.accept_hello(now_ns, from, hello, &self.config) else {
            return self.queue_reset(from, hello, NO_LINK_FREE);
        };
        if let Some(entry) = self.links.get_mut(at) {
            entry.welcome_due = true;
        }
        self.wake_by(Some(now_ns.saturating_add(self.config.link_idle_ns)));
        self.enqueue(at);
    }

    fn handle_reset(&mut self, at: usize, incarnation: u64) {
        if self.links.get_mut(at).is_some_and(|entry| entry.incarnation == incarnation) {
            self.links.remove(at, DownReason::LinkLost);
        }
    }

    /// Ends the links of the caller at `addr`, which cannot be heard any more.
    pub fn end_peer(&mut self, addr: PeerAddr) {
        self.links.remove_of(addr);
        self.end_qpairs_of_removed();
    }

    fn queue_reset(&mut self, from: PeerAddr, frame: &Frame<'_>, detail: u16) {
        let (node, link) = (frame.source(), frame.link());
        self.push_reset(Reset { to: from, node, link, detail });
    }

    fn push_reset(&mut self, reset: Reset) {
        if self.resets.len() < MAX_RESETS {
            self.resets.push_back(reset);
        }
    }

    fn handle_link_frame(
        &mut self,
        now_ns: u64,
        at: usize,
        frame: &Frame<'_>,
        memory: &mut impl GrantedMemory,
    ) {
        self.links.note_frame(now_ns, at, &self.config);
        // Links that this one supersedes: their slots may be reused soon.
        self.end_qpairs_of_removed();
        let Some(entry) = self.links.get_mut(at) else { return };
        let (revoked, qpairs) = (&self.revoked, &mut self.qpairs);
        let Some(mut service) = Service::of(entry, at as u32, revoked, qpairs, memory) else {
            return;
        };
        if service.handle(now_ns, frame).is_err() {
            self.queue_reset_of(at);
            self.links.remove(at, DownReason::Protocol);
            return;
        }
        if entry.opened.are_over() {
            let silence_ns = self.config.link.silence_ns;
            self.wake_by(Some(now_ns.saturating_add(silence_ns)));
        }
        self.count(at, frame, memory);
        if self.qpairs.live(at as u32) > 0 {
            self.wake_by(Some(now_ns.saturating_add(self.config.link.keepalive_ns)));
        }
        // Its own next time-out is computed once it has sent its frames.
        self.enqueue(at);
    }

    /// Counts the bytes of a frame on its recipient's share.
    fn count(&mut self, at: usize, frame: &Frame<'_>, memory: &mut impl GrantedMemory) {
        let Some(entry) = self.links.get_mut(at) else { return };
        entry.asked_bytes += frame.as_bytes().len() as u64;
        if !entry.has_recipient
            && let Some(grant) = entry.opened.first()
        {
            entry.has_recipient = true;
            self.shares.join(at, memory.recipient(grant));
        }
    }

    fn queue_reset_of(&mut self, at: usize) {
        let Some(entry) = self.links.get_mut(at) else { return };
        let Some(link) = entry.link.as_ref().and_then(Link::id) else { return };
        let reset = Reset { to: entry.addr, node: entry.node, link, detail: 0 };
        self.push_reset(reset);
    }

    fn end_qpairs_of_removed(&mut self) {
        while let Some((at, reason)) = self.links.next_removed() {
            self.shares.leave(at);
            self.qpairs.link_down(at as u32, reason);
        }
    }

    /// Requests a QPair with a service of the caller at `to`. A [`crate::QPairEvent::Connected`] or
    /// [`crate::QPairEvent::Closed`] follows.
    ///
    /// # Errors
    /// [`QPairError::NoLink`] if it has no link to this target, [`QPairError::TooMany`].
    pub fn qpair_connect(
        &mut self,
        now_ns: u64,
        to: PeerAddr,
        service: u32,
        config: QPairConfig,
    ) -> Result<QPairId, QPairError> {
        let at = self.links.of(to).ok_or(QPairError::NoLink)?;
        let entry = self.links.get_mut(at).ok_or(QPairError::NoLink)?;
        let link = entry.link.as_ref().ok_or(QPairError::NoLink)?;
        let qpair = self.qpairs.connect(at as u32, link, service, config)?;
        self.wake_by(Some(now_ns.saturating_add(self.config.link.keepalive_ns)));
        Ok(qpair)
    }

    /// Returns the QPairs of this target, for all other QPair operations.
    pub fn qpairs(&self) -> &QPairs {
        &self.qpairs
    }

    /// See [`Target::qpairs`].
    pub fn qpairs_mut(&mut self) -> &mut QPairs {
        &mut self.qpairs
    }

    /// Returns the address of the other end of a QPair; `None` if the handle is unknown, or its
    /// link gone.
    pub fn qpair_peer(&self, qpair: QPairId) -> Option<PeerAddr> {
        let at = self.qpairs.link_of(qpair)?;
        self.links.get(at as usize).map(|entry| entry.addr)
    }

    fn enqueue(&mut self, at: usize) {
        if let Some(entry) = self.links.get_mut(at)
            && !std::mem::replace(&mut entry.is_queued, true)
        {
            self.shares.add(at);
        }
    }

    fn wake_by(&mut self, at_ns: Option<u64>) {
        self.wake_ns = earlier(self.wake_ns, at_ns);
    }

    /// Returns the time at which to call [`Target::handle_timeout`], and then
    /// [`Target::poll_transmit`], if nothing happens before. It may be early, never late.
    pub fn poll_timeout(&self) -> Option<u64> {
        earlier(self.wake_ns, self.qpairs.poll_timeout())
    }

    /// Performs the actions due at `now_ns`: replays, acknowledgements, forgetting idle links.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.qpairs.handle_timeout(now_ns);
        if self.wake_ns.is_none_or(|wake_ns| now_ns < wake_ns) {
            return;
        }
        self.wake_ns = self.links.expire(now_ns, &self.config);
        self.watch_callers(now_ns);
        self.end_qpairs_of_removed();
        for (at, entry) in self.links.iter_mut() {
            let Some(link) = &mut entry.link else { continue };
            link.handle_timeout(now_ns);
            let timeout_ns = entry.poll_timeout();
            self.wake_ns = earlier(self.wake_ns, timeout_ns);
            if !std::mem::replace(&mut entry.is_queued, true) {
                self.shares.add(at);
            }
        }
    }

    /// Pings callers with QPairs that have been silent.
    fn watch_callers(&mut self, now_ns: u64) {
        for at in 0..self.links.places() {
            if self.qpairs.live(at as u32) == 0 {
                continue;
            }
            let Some(entry) = self.links.get_mut(at) else { continue };
            let Some(link) = &mut entry.link else { continue };
            match entry.liveness.check(now_ns, entry.heard_ns, &self.config.link) {
                Finding::Fine(again_ns) => self.wake_by(Some(again_ns)),
                Finding::Ask { number, again_ns } => {
                    link.ask_ping(number, entry.liveness.is_repeated());
                    self.wake_by(Some(again_ns));
                }
                Finding::Silent => {
                    self.queue_reset_of(at);
                    self.links.remove(at, DownReason::Silent);
                }
            }
        }
    }

    /// Returns the bytes moved since the start, in both directions: of answered requests, and of
    /// sent frames. For ports that stop after a fixed amount to look for new requests.
    pub fn moved_bytes(&self) -> u64 {
        self.shares.moved_bytes()
    }

    /// True if there may be something to send; false once [`Target::poll_transmit`] had nothing
    /// more.
    pub fn has_more(&self) -> bool {
        !self.resets.is_empty() || self.shares.has_waiting()
    }

    /// True if more than one recipient waits to be answered, or did recently.
    pub fn is_contended(&self) -> bool {
        self.shares.is_contended()
    }

    /// Writes the next frame to send into `buf`; returns its destination and its length in bytes.
    /// Call until it returns `None`.
    ///
    /// # Panics
    /// Panics if `buf` is shorter than [`MAX_FRAME_BYTES`].
    pub fn poll_transmit(&mut self, now_ns: u64, buf: &mut [u8]) -> Option<(PeerAddr, usize)> {
        let (to, transmission) = self.poll(now_ns, false, buf)?;
        let Transmission::Written(len) = transmission else {
            unreachable!("kept frames were not requested")
        };
        Some((to, len))
    }

    /// Returns the next frame. `leaves_kept`: a frame kept for a replay may stay in place.
    fn poll(
        &mut self,
        now_ns: u64,
        leaves_kept: bool,
        buf: &mut [u8],
    ) -> Option<(PeerAddr, Transmission)> {
        assert!(buf.len() >= MAX_FRAME_BYTES, "a frame can be {MAX_FRAME_BYTES} bytes");
        if let Some(Reset { to, node, link, detail }) = self.resets.pop_front() {
            let address = self.config.incarnation;
            let header = HeaderRepr::new(Channel::Link, Opcode::Reset, self.config.node, node);
            let flags = self.config.link.header_flags();
            let header = HeaderRepr { flags, link, address, detail, ..header };
            let len = header.emit(&[], buf).expect("the length was checked");
            return Some((to, Transmission::Written(len)));
        }
        while let Some(at) = self.qpairs.next_woken() {
            self.enqueue(at as usize);
        }
        while let Some(at) = self.shares.turn() {
            let Some(entry) = self.links.get_mut(at) else {
                self.shares.rest();
                continue;
            };
            let (config, qpairs) = (&self.config, &mut self.qpairs);
            let sent = entry.poll_transmit(now_ns, config, qpairs, at, leaves_kept, buf);
            let to = entry.addr;
            entry.is_queued = sent.is_some();
            let timeout_ns = entry.poll_timeout();
            match &sent {
                Some(sent) => {
                    let asked_bytes = std::mem::take(&mut entry.asked_bytes);
                    self.shares.spend(asked_bytes + sent.len_bytes() as u64);
                }
                None => self.shares.rest(),
            }
            self.wake_by(timeout_ns);
            if let Some(transmission) = sent {
                return Some((to, transmission));
            }
        }
        None
    }
}

impl Entry {
    fn poll_transmit(
        &mut self,
        now_ns: u64,
        config: &TargetConfig,
        qpairs: &mut QPairs,
        at: usize,
        leaves_kept: bool,
        buf: &mut [u8],
    ) -> Option<Transmission> {
        if std::mem::take(&mut self.welcome_due) {
            let welcome = self.welcome(config);
            let len = welcome.emit(&[], buf).expect("the length was checked");
            return Some(Transmission::Written(len));
        }
        let link = self.link.as_mut()?;
        if link.room() > 0
            && let Some((channel, transaction)) = self.done_due.take()
        {
            let done = HeaderRepr { transaction, ..link.header(channel, Opcode::Done) };
            link.push(done, 0);
        }
        while let Some(grant) = self.opened.next_notice(now_ns, &config.link) {
            link.notify(Opcode::Revoked, grant);
        }
        if let Some(len) = qpairs.transmit_put(at as u32, link, buf) {
            return Some(Transmission::Written(len));
        }
        // While frames are kept for replay, answers must find room beside those of QPairs.
        let share = link.outstanding_limit().div_ceil(if link.is_lossy() { 4 } else { 2 });
        if let Some(len) = qpairs.transmit(now_ns, at as u32, link, share, buf) {
            return Some(Transmission::Written(len));
        }
        if leaves_kept && let Some((sequence, len)) = link.poll_transmit_kept(now_ns) {
            let link = link.id().unwrap_or_default();
            return Some(Transmission::Kept(KeptFrame { at, link, sequence, len }));
        }
        let lender = |_, _: &mut [u8]| unreachable!("answers carry their payloads");
        link.poll_transmit(now_ns, lender, buf).map(Transmission::Written)
    }
}
