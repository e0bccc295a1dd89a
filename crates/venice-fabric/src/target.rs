//! The donor's end: frames in, checked accesses to granted memory, answers out.

mod links;

use std::collections::VecDeque;

use venice_wire::{
    Channel, Frame, GrantId, GrantKey, HeaderRepr, LinkId, MAX_FRAME_BYTES, MAX_PAYLOAD_BYTES,
    NodeId, Opcode, Refusal,
};

use self::links::{Entry, Links};
use crate::{TargetConfig, datalink::Link};

/// Where a frame came from and its answer goes: a handle the port makes of a socket address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerAddr(pub u64);

/// The memory behind a [`Target`]. Each call is one access by a recipient, and must check that the
/// grant is live, the key is its key, and the range lies inside it, before it touches a byte.
pub trait GrantedMemory {
    /// Fills `into` from `addr` on.
    ///
    /// # Errors
    /// Why the access is refused; what `into` holds then is never sent.
    fn read(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        into: &mut [u8],
    ) -> Result<(), Refusal>;

    /// Stores `from` at `addr`.
    ///
    /// # Errors
    /// Why the access is refused; no byte has been stored then.
    fn write(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        from: &[u8],
    ) -> Result<(), Refusal>;
}

/// The donor's end of the fabric, for all its recipients.
///
/// Every access is carried out exactly once, in the order its link sent it. Call
/// [`Target::poll_transmit`] after each frame or batch of frames: writes that were handled since
/// share one answer.
#[derive(Debug)]
pub struct Target {
    config: TargetConfig,
    links: Links,
    /// Places in `links` with something to send.
    queue: VecDeque<usize>,
    resets: VecDeque<Reset>,
    /// No later than the next time anything is to be done.
    wake_ns: Option<u64>,
}

/// Tells a caller that there is no such link.
#[derive(Debug)]
struct Reset {
    to: PeerAddr,
    node: NodeId,
    link: LinkId,
}

/// Resets waiting to be sent; whoever gets none asks again.
const MAX_RESETS: usize = 64;

impl Target {
    /// A target without links.
    pub fn new(config: TargetConfig) -> Self {
        Self {
            links: Links::new(&config),
            queue: VecDeque::with_capacity(usize::from(config.max_links)),
            resets: VecDeque::with_capacity(MAX_RESETS),
            wake_ns: None,
            config,
        }
    }

    /// Links there are, unconfirmed ones included.
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// Takes a datagram and carries out the accesses it brings or unblocks. What is no frame for
    /// this node is dropped.
    pub fn handle_frame(
        &mut self,
        now_ns: u64,
        from: PeerAddr,
        frame: &[u8],
        memory: &mut impl GrantedMemory,
    ) {
        let Ok(frame) = Frame::parse(frame) else { return };
        if frame.destination() != self.config.node {
            return;
        }
        match (frame.opcode(), self.links.find(from, &frame)) {
            (Opcode::Hello, _) => self.handle_hello(now_ns, from, &frame),
            (Opcode::Reset, Some(at)) => self.handle_reset(at, frame.address()),
            (Opcode::Welcome | Opcode::Reset, _) => {}
            (_, None) => self.queue_reset(from, &frame),
            (_, Some(at)) => self.handle_link_frame(now_ns, at, &frame, memory),
        }
    }

    fn handle_hello(&mut self, now_ns: u64, from: PeerAddr, hello: &Frame<'_>) {
        let Some(at) = self.links.greet(now_ns, from, hello, &self.config) else { return };
        if let Some(entry) = self.links.get_mut(at) {
            entry.welcome_due = true;
        }
        self.wake_by(Some(now_ns.saturating_add(self.config.link_idle_ns)));
        self.enqueue(at);
    }

    fn handle_reset(&mut self, at: usize, incarnation: u64) {
        if self.links.get_mut(at).is_some_and(|entry| entry.incarnation == incarnation) {
            self.links.remove(at);
        }
    }

    fn queue_reset(&mut self, from: PeerAddr, frame: &Frame<'_>) {
        if self.resets.len() < MAX_RESETS {
            let (node, link) = (frame.source(), frame.link());
            self.resets.push_back(Reset { to: from, node, link });
        }
    }

    fn handle_link_frame(
        &mut self,
        now_ns: u64,
        at: usize,
        frame: &Frame<'_>,
        memory: &mut impl GrantedMemory,
    ) {
        self.links.hear(now_ns, at, &self.config);
        let Some(Entry { link: Some(link), done_due, .. }) = self.links.get_mut(at) else { return };
        link.note(now_ns, frame);
        let is_sequenced = frame.channel() != Channel::Link;
        let served = if is_sequenced {
            serve_in_order(now_ns, link, done_due, frame, memory)
        } else {
            Ok(())
        };
        let timeout_ns = link.poll_timeout();
        if served.is_err() {
            self.queue_reset_of(at);
            self.links.remove(at);
            return;
        }
        self.wake_by(timeout_ns);
        self.enqueue(at);
    }

    fn queue_reset_of(&mut self, at: usize) {
        let Some(entry) = self.links.get_mut(at) else { return };
        let Some(link) = entry.link.as_ref().and_then(Link::id) else { return };
        let reset = Reset { to: entry.addr, node: entry.node, link };
        if self.resets.len() < MAX_RESETS {
            self.resets.push_back(reset);
        }
    }

    fn enqueue(&mut self, at: usize) {
        if let Some(entry) = self.links.get_mut(at)
            && !std::mem::replace(&mut entry.is_queued, true)
        {
            self.queue.push_back(at);
        }
    }

    fn wake_by(&mut self, at_ns: Option<u64>) {
        self.wake_ns = self.wake_ns.into_iter().chain(at_ns).min();
    }

    /// When to call [`Target::handle_timeout`], and then [`Target::poll_transmit`], if nothing
    /// happens before. It may be early, never late.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.wake_ns
    }

    /// Does what the time asks for: replays, acknowledgements, forgetting idle links.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.wake_ns.is_none_or(|wake_ns| now_ns < wake_ns) {
            return;
        }
        self.wake_ns = self.links.expire(now_ns, self.config.link_idle_ns);
        for (at, entry) in self.links.iter_mut() {
            let Some(link) = &mut entry.link else { continue };
            link.handle_timeout(now_ns);
            let timeout_ns = link.poll_timeout();
            self.wake_ns = self.wake_ns.into_iter().chain(timeout_ns).min();
            if !std::mem::replace(&mut entry.is_queued, true) {
                self.queue.push_back(at);
            }
        }
    }

    /// Writes the next frame to send into `buf`; returns where it goes and its length in bytes.
    /// Call until it has none.
    ///
    /// # Panics
    /// If `buf` is shorter than [`MAX_FRAME_BYTES`].
    pub fn poll_transmit(&mut self, now_ns: u64, buf: &mut [u8]) -> Option<(PeerAddr, usize)> {
        assert!(buf.len() >= MAX_FRAME_BYTES, "a frame can be {MAX_FRAME_BYTES} bytes");
        if let Some(Reset { to, node, link }) = self.resets.pop_front() {
            let address = self.config.incarnation;
            let header = HeaderRepr::new(Channel::Link, Opcode::Reset, self.config.node, node);
            let header = HeaderRepr { link, address, ..header };
            return Some((to, header.emit(&[], buf).expect("the length was checked")));
        }
        while let Some(at) = self.queue.pop_front() {
            let Some(entry) = self.links.get_mut(at) else { continue };
            let sent = entry.poll_transmit(now_ns, &self.config, buf);
            let to = entry.addr;
            entry.is_queued = sent.is_some();
            let timeout_ns = entry.link.as_ref().and_then(Link::poll_timeout);
            self.wake_by(timeout_ns);
            if let Some(len) = sent {
                self.queue.push_back(at);
                return Some((to, len));
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
        buf: &mut [u8],
    ) -> Option<usize> {
        if std::mem::take(&mut self.welcome_due) {
            let welcome = self.welcome(config);
            return Some(welcome.emit(&[], buf).expect("the length was checked"));
        }
        let link = self.link.as_mut()?;
        if link.room() > 0
            && let Some((channel, transaction)) = self.done_due.take()
        {
            let done = HeaderRepr { transaction, ..link.header(channel, Opcode::Done) };
            link.push(done, 0);
        }
        link.poll_transmit(now_ns, buf)
    }
}

/// A caller that sends what only a donor may.
struct NotARequest;

/// Carries out the request in `frame` if it is its turn, and those that waited behind it.
///
/// No request is taken while there is no room for its answer. A caller that keeps to the window it
/// was told never gets that far; any other has to send again.
fn serve_in_order(
    now_ns: u64,
    link: &mut Link,
    done_due: &mut Option<(Channel, u32)>,
    frame: &Frame<'_>,
    memory: &mut impl GrantedMemory,
) -> Result<(), NotARequest> {
    if link.room() == 0 || !link.accept(now_ns, frame) {
        return Ok(());
    }
    serve(link, done_due, frame, memory)?;
    while link.room() > 0 {
        let Some(parked) = link.take_parked(now_ns) else { break };
        let frame = Frame::parse(parked.bytes()).expect("it was parsed before it was parked");
        let served = serve(link, done_due, &frame, memory);
        link.give_back(now_ns, parked);
        served?;
    }
    Ok(())
}

/// Carries out one request. Its answer, if there is one now, answers every earlier write too.
fn serve(
    link: &mut Link,
    done_due: &mut Option<(Channel, u32)>,
    request: &Frame<'_>,
    memory: &mut impl GrantedMemory,
) -> Result<(), NotARequest> {
    let (grant, key, addr) = (request.grant(), request.key(), request.address());
    let (len, payload) = (usize::from(request.access_len()), request.payload());
    let (channel, transaction) = (request.channel(), request.transaction());
    let refusal = match request.opcode() {
        Opcode::Read if len == 0 || len > MAX_PAYLOAD_BYTES => Refusal::Malformed,
        Opcode::Write if len == 0 || len != payload.len() => Refusal::Malformed,
        Opcode::Read => match memory.read(grant, key, addr, &mut link.stage()[..len]) {
            Ok(()) => {
                *done_due = None;
                let data = HeaderRepr { transaction, ..link.header(channel, Opcode::Data) };
                link.push(data, len);
                return Ok(());
            }
            Err(refusal) => refusal,
        },
        Opcode::Write => match memory.write(grant, key, addr, payload) {
            Ok(()) => {
                *done_due = Some((channel, transaction));
                return Ok(());
            }
            Err(refusal) => refusal,
        },
        _ => return Err(NotARequest),
    };
    *done_due = None;
    let detail = refusal.code();
    let refused = HeaderRepr { transaction, detail, ..link.header(channel, Opcode::Refused) };
    link.push(refused, 0);
    Ok(())
}
