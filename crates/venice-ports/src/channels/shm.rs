//! The channels over shm: accesses are copies and atomics on the donor's mapped memory.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use venice_fabric::{
    AccessError, Completion, DownReason, FabricError, LinkModel, PeerIndex, RdmaCompletion,
    RdmaRejected, ScatterGather,
};
use venice_wire::{GrantId, GrantKey, MAX_PAYLOAD_BYTES, NodeId, SLAB_BYTES};

use super::emulated::AccessLink;
use super::mapped_grant::MappedGrant;
use super::queue::Queue;
use super::watch::Watch;
use super::{ChannelError, ReadPart, WritePart};
use crate::mappings::{MappingTable, Target};
use crate::shm::client::{ANSWER_TIMEOUT, fetch_slabs_within};
use crate::{PortError, monotonic_ns, wait_until};

const _: () = assert!(cfg!(target_endian = "little"), "atomics are little-endian numbers");

/// One-sided channels to donors on this host. The donor's CPU takes no part. Every range is checked
/// against the mapping table (RAMT) before it is touched.
///
/// The end of its connection reveals a donor's death, and every later access returns an error.
/// There is no SIGBUS: the slabs are sealed against shrinking.
///
/// With an emulated link (that of these channels, else the donor's), an access returns when the
/// donor's answer would have arrived over it.
#[derive(Debug)]
pub struct ShmChannels {
    /// Longest time of an agent to answer.
    answer_timeout: Duration,
    ramt: MappingTable,
    /// Grants by their peer index in the RAMT.
    grants: Vec<Option<Grant>>,
    queue: Queue,
    watch: Option<Watch>,
    model: Option<LinkModel>,
    /// One link for each donor that is reached over an emulated link.
    links: Vec<(NodeId, AccessLink)>,
    /// Time at which the last posted write is acknowledged.
    posted_until_ns: u64,
    has_posted: bool,
}

#[derive(Debug)]
struct Grant {
    memory: MappedGrant,
    window_addr: u64,
    gone: Arc<AtomicBool>,
    /// Index in the channels' links; `None`: no link is emulated.
    link: Option<usize>,
    /// True if a write was posted to it since the last fence.
    posted: bool,
}

/// Memory that an access may touch, and the link it uses.
#[derive(Clone, Copy)]
struct Place {
    ptr: *mut u8,
    grant: usize,
    link: Option<usize>,
}

impl ShmChannels {
    /// Returns channels without mappings; `model` is the link to emulate to every donor. `None`:
    /// use the link of each donor's reply, which is none unless its rack emulates one.
    ///
    /// # Errors
    /// Never today; the signature leaves room for an error of the system.
    pub fn new(model: Option<LinkModel>) -> Result<Self, PortError> {
        Ok(Self {
            ramt: MappingTable::default(),
            grants: Vec::new(),
            queue: Queue::new(),
            watch: None,
            model,
            answer_timeout: ANSWER_TIMEOUT,
            links: Vec::new(),
            posted_until_ns: 0,
            has_posted: false,
        })
    }

    /// Sets the longest time of an agent to answer, from now on; initially five seconds.
    pub fn set_answer_timeout(&mut self, timeout: Duration) {
        self.answer_timeout = timeout;
    }

    /// Fetches the slabs of a grant from the agent behind `socket` and maps the whole grant of
    /// `len_bytes` from `window_addr` on.
    ///
    /// # Errors
    /// Fails if the agent refuses, `len_bytes` is not a multiple of the slab size, the range
    /// overlaps another mapping, or the system has no room.
    pub fn map_grant(
        &mut self,
        window_addr: u64,
        donor: NodeId,
        socket: &Path,
        grant: GrantId,
        key: GrantKey,
        len_bytes: u64,
    ) -> Result<(), ChannelError> {
        if len_bytes == 0 || !len_bytes.is_multiple_of(SLAB_BYTES) {
            return Err(FabricError::BadLength { window_addr, len_bytes }.into());
        }
        let slabs = (len_bytes / SLAB_BYTES) as usize;
        let memory =
            MappedGrant::new(fetch_slabs_within(socket, grant, key, slabs, self.answer_timeout)?)?;
        let gone = Arc::new(AtomicBool::new(false));
        if self.watch.is_none() {
            self.watch = Some(Watch::start()?);
        }
        if let Some(watch) = &self.watch {
            watch.add(memory.connection().fd(), Arc::clone(&gone))?;
        }
        let model = self.model.or(memory.connection().link);
        let link = model.map(|model| self.link_to(donor, model));
        let peer = PeerIndex(self.grants.len() as u32);
        self.ramt.map(window_addr, Target { peer, remote_addr: 0, room_bytes: len_bytes })?;
        self.grants.push(Some(Grant { memory, window_addr, gone, link, posted: false }));
        Ok(())
    }

    /// Removes the mapping at `window_addr` and closes the connection to its donor.
    ///
    /// # Errors
    /// [`FabricError::NotMapped`] if no mapping starts there.
    pub fn unmap(&mut self, window_addr: u64) -> Result<(), FabricError> {
        if !self.ramt.unmap(window_addr) {
            return Err(FabricError::NotMapped { window_addr, len_bytes: 0 });
        }
        let at_window = |grant: &&mut Option<Grant>| {
            grant.as_ref().is_some_and(|grant| grant.window_addr == window_addr)
        };
        if let Some(grant) = self.grants.iter_mut().find(at_window) {
            *grant = None;
        }
        if let Some(watch) = &self.watch {
            watch.review();
        }
        Ok(())
    }

    /// Returns the emulated link, if any.
    pub fn link(&self) -> Option<&LinkModel> {
        self.model.as_ref()
    }

    fn link_to(&mut self, donor: NodeId, model: LinkModel) -> usize {
        if let Some(at) = self.links.iter().position(|link| link.0 == donor) {
            return at;
        }
        self.links.push((donor, AccessLink::new(model)));
        self.links.len() - 1
    }

    /// Returns the memory at `window_addr` and how many of `len` bytes lie there in one piece.
    #[inline]
    fn locate(&mut self, window_addr: u64, len: usize) -> Result<(Place, usize), FabricError> {
        let not_mapped = FabricError::NotMapped { window_addr, len_bytes: len as u64 };
        let target = self.ramt.find(window_addr).ok_or(not_mapped)?;
        let grant = target.peer.0 as usize;
        let Some(Some(Grant { memory, gone, link, .. })) = self.grants.get(grant) else {
            return Err(not_mapped);
        };
        if gone.load(Ordering::Relaxed) {
            return Err(FabricError::PeerDown(DownReason::PortClosed));
        }
        let room = target.room_bytes.min(len as u64) as usize;
        let offset = target.remote_addr as usize;
        assert!(offset + room <= memory.len_bytes(), "a mapping is as long as its grant");
        // SAFETY: the check above proves that it lies inside the mapping.
        let ptr = unsafe { memory.base().add(offset) };
        Ok((Place { ptr, grant, link: *link }, room))
    }

    /// Returns the memory of a single access.
    #[inline]
    fn place(&mut self, window_addr: u64, len: usize) -> Result<Place, FabricError> {
        let len_bytes = len as u64;
        if len == 0 || len > MAX_PAYLOAD_BYTES {
            return Err(FabricError::BadLength { window_addr, len_bytes });
        }
        match self.locate(window_addr, len)? {
            (place, room) if room == len => Ok(place),
            _ => Err(FabricError::NotMapped { window_addr, len_bytes }),
        }
    }

    /// Returns the number that an atomic access works on.
    #[inline]
    fn number(&mut self, window_addr: u64) -> Result<(Place, &AtomicU64), FabricError> {
        let place = self.place(window_addr, 8)?;
        // The mapping starts at a page boundary, which makes this as aligned as the donor's
        // address.
        if !place.ptr.addr().is_multiple_of(8) {
            return Err(FabricError::Unaligned { window_addr });
        }
        // SAFETY: eight bytes of the mapping, aligned, mapped as long as `self` is borrowed. Other
        // processes use them atomically or accept torn values.
        Ok((place, unsafe { AtomicU64::from_ptr(place.ptr.cast()) }))
    }

    /// Returns the time at which an access started now ends; 0 without emulation.
    #[inline]
    fn due_ns(
        &mut self,
        link: Option<usize>,
        over: impl FnOnce(&mut AccessLink, u64) -> u64,
    ) -> u64 {
        link.map_or(0, |link| over(&mut self.links[link].1, monotonic_ns()))
    }
}

/// CRMA, blocking: see [`super::Channels`].
impl ShmChannels {
    #[inline]
    pub(super) fn read(&mut self, window_addr: u64, into: &mut [u8]) -> Result<(), ChannelError> {
        let place = self.place(window_addr, into.len())?;
        let due_ns = self.due_ns(place.link, |link, now_ns| link.single_ns(now_ns, 0, into.len()));
        load(place.ptr, into);
        wait_until(due_ns);
        Ok(())
    }

    #[inline]
    pub(super) fn write(&mut self, window_addr: u64, from: &[u8]) -> Result<(), ChannelError> {
        let place = self.place(window_addr, from.len())?;
        let due_ns = self.due_ns(place.link, |link, now_ns| link.single_ns(now_ns, from.len(), 0));
        store(from, place.ptr);
        wait_until(due_ns);
        Ok(())
    }

    #[inline]
    pub(super) fn post(&mut self, window_addr: u64, from: &[u8]) -> Result<(), ChannelError> {
        let place = self.place(window_addr, from.len())?;
        let due_ns = self.due_ns(place.link, |link, now_ns| link.single_ns(now_ns, from.len(), 0));
        self.posted_until_ns = self.posted_until_ns.max(due_ns);
        if let Some(grant) = &mut self.grants[place.grant] {
            grant.posted = true;
        }
        self.has_posted = true;
        store(from, place.ptr);
        Ok(())
    }

    #[inline]
    pub(super) fn fence(&mut self) -> Result<(), ChannelError> {
        std::sync::atomic::fence(Ordering::SeqCst);
        wait_until(self.posted_until_ns);
        if !std::mem::take(&mut self.has_posted) {
            return Ok(());
        }
        let mut lost = false;
        for grant in self.grants.iter_mut().flatten() {
            lost |= std::mem::take(&mut grant.posted) && grant.gone.load(Ordering::Relaxed);
        }
        if lost { Err(AccessError::PeerDown(DownReason::PortClosed).into()) } else { Ok(()) }
    }

    #[inline]
    pub(super) fn fetch_add(&mut self, window_addr: u64, add: u64) -> Result<u64, ChannelError> {
        let (place, number) = self.number(window_addr)?;
        let old = number.fetch_add(add, Ordering::SeqCst);
        wait_until(self.due_ns(place.link, |link, now_ns| link.single_ns(now_ns, 8, 8)));
        Ok(old)
    }

    #[inline]
    pub(super) fn compare_swap(
        &mut self,
        window_addr: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64, ChannelError> {
        let (place, number) = self.number(window_addr)?;
        let old = compare_swap(number, expected, new);
        wait_until(self.due_ns(place.link, |link, now_ns| link.single_ns(now_ns, 16, 8)));
        Ok(old)
    }
}

/// RDMA, blocking: see [`super::Channels`].
impl ShmChannels {
    pub(super) fn rdma_read_scattered(
        &mut self,
        parts: &mut [ReadPart<'_>],
    ) -> Result<(), ChannelError> {
        let mut due_ns = 0;
        for ReadPart { window_addr, into } in parts {
            due_ns = due_ns.max(self.bulk_read(*window_addr, into)?);
        }
        wait_until(due_ns);
        Ok(())
    }

    pub(super) fn rdma_write_gathered(
        &mut self,
        parts: &[WritePart<'_>],
    ) -> Result<(), ChannelError> {
        let mut due_ns = 0;
        for WritePart { window_addr, from } in parts {
            due_ns = due_ns.max(self.bulk_write(*window_addr, from)?);
        }
        wait_until(due_ns);
        Ok(())
    }

    /// Reads a range that may span mappings; returns the time at which the read ends.
    fn bulk_read(&mut self, window_addr: u64, into: &mut [u8]) -> Result<u64, FabricError> {
        let (mut addr, mut left, mut due_ns) = (window_addr, into, 0);
        check_bulk(window_addr, left.len())?;
        while !left.is_empty() {
            let (place, room) = self.locate(addr, left.len())?;
            let over_ns = self.due_ns(place.link, |link, now_ns| link.bulk_read_ns(now_ns, room));
            due_ns = due_ns.max(over_ns);
            let (piece, rest) = left.split_at_mut(room);
            load(place.ptr, piece);
            (addr, left) = (addr.wrapping_add(room as u64), rest);
        }
        Ok(due_ns)
    }

    /// Writes a range that may span mappings; returns the time at which the write ends.
    fn bulk_write(&mut self, window_addr: u64, from: &[u8]) -> Result<u64, FabricError> {
        let (mut addr, mut left, mut due_ns) = (window_addr, from, 0);
        check_bulk(window_addr, left.len())?;
        while !left.is_empty() {
            let (place, room) = self.locate(addr, left.len())?;
            let over_ns = self.due_ns(place.link, |link, now_ns| link.bulk_write_ns(now_ns, room));
            due_ns = due_ns.max(over_ns);
            let (piece, rest) = left.split_at(room);
            store(piece, place.ptr);
            (addr, left) = (addr.wrapping_add(room as u64), rest);
        }
        Ok(due_ns)
    }
}

/// Polled accesses: see [`super::Channels`]. The access itself happens at once; its completion can
/// be polled from the time at which it would end.
impl ShmChannels {
    pub(super) fn start_read(
        &mut self,
        token: u64,
        window_addr: u64,
        len: u32,
    ) -> Result<(), FabricError> {
        let len = len as usize;
        let place = self.place(window_addr, len)?;
        let (page, bytes) = self.queue.take_page()?;
        load(place.ptr, &mut bytes[..len]);
        let due_ns = self.due_ns(place.link, |link, now_ns| link.single_ns(now_ns, 0, len));
        self.queue.push(due_ns, token, Ok(()), page, len);
        Ok(())
    }

    pub(super) fn start_write(
        &mut self,
        token: u64,
        window_addr: u64,
        from: &[u8],
    ) -> Result<(), FabricError> {
        let place = self.place(window_addr, from.len())?;
        let (page, _) = self.queue.take_page()?;
        store(from, place.ptr);
        let due_ns = self.due_ns(place.link, |link, now_ns| link.single_ns(now_ns, from.len(), 0));
        self.queue.push(due_ns, token, Ok(()), page, 0);
        Ok(())
    }

    pub(super) fn start_fetch_add(
        &mut self,
        token: u64,
        window_addr: u64,
        add: u64,
    ) -> Result<(), FabricError> {
        self.start_atomic(token, window_addr, 8, |number| number.fetch_add(add, Ordering::SeqCst))
    }

    pub(super) fn start_compare_swap(
        &mut self,
        token: u64,
        window_addr: u64,
        expected: u64,
        new: u64,
    ) -> Result<(), FabricError> {
        self.start_atomic(token, window_addr, 16, |number| compare_swap(number, expected, new))
    }

    fn start_atomic(
        &mut self,
        token: u64,
        window_addr: u64,
        request_bytes: usize,
        act: impl FnOnce(&AtomicU64) -> u64,
    ) -> Result<(), FabricError> {
        let (page, _) = self.queue.take_page()?;
        let (place, old) = match self.number(window_addr) {
            Ok((place, number)) => (place, act(number)),
            Err(error) => {
                self.queue.give_page_back(page);
                return Err(error);
            }
        };
        self.queue.fill(page, &old.to_le_bytes());
        let due_ns =
            self.due_ns(place.link, |link, now_ns| link.single_ns(now_ns, request_bytes, 8));
        self.queue.push(due_ns, token, Ok(()), page, 8);
        Ok(())
    }

    pub(super) fn start_rdma_read(
        &mut self,
        token: u64,
        window_addr: u64,
        mut buffer: Vec<u8>,
    ) -> Result<(), RdmaRejected> {
        let done = self.bulk_read_if_room(window_addr, &mut buffer);
        self.finish_bulk(token, done, buffer)
    }

    pub(super) fn start_rdma_write(
        &mut self,
        token: u64,
        window_addr: u64,
        buffer: Vec<u8>,
    ) -> Result<(), RdmaRejected> {
        let done = if self.queue.has_bulk_room() {
            self.bulk_write(window_addr, &buffer)
        } else {
            Err(FabricError::WouldBlock)
        };
        self.finish_bulk(token, done, buffer)
    }

    fn bulk_read_if_room(&mut self, addr: u64, into: &mut [u8]) -> Result<u64, FabricError> {
        if self.queue.has_bulk_room() {
            self.bulk_read(addr, into)
        } else {
            Err(FabricError::WouldBlock)
        }
    }

    /// Returns the buffer of a transfer that was not accepted; queues the error of one that failed
    /// on the way.
    fn finish_bulk(
        &mut self,
        token: u64,
        done: Result<u64, FabricError>,
        buffer: Vec<u8>,
    ) -> Result<(), RdmaRejected> {
        let lists = ScatterGather::default();
        let (due_ns, result) = match done {
            Ok(due_ns) => (due_ns, Ok(())),
            Err(FabricError::NotMapped { .. }) => (0, Err(AccessError::NotMapped)),
            Err(FabricError::PeerDown(reason)) => (0, Err(AccessError::PeerDown(reason))),
            Err(error) => return Err(RdmaRejected { error, buffer, lists }),
        };
        self.queue.push_bulk(due_ns, RdmaCompletion { token, result, buffer, lists });
        Ok(())
    }

    pub(super) fn poll(&mut self) -> Result<Option<Completion<'_>>, PortError> {
        let now_ns = self.now_if_emulated_ns();
        Ok(self.queue.poll(now_ns))
    }

    pub(super) fn poll_rdma(&mut self) -> Result<Option<RdmaCompletion>, PortError> {
        let now_ns = self.now_if_emulated_ns();
        Ok(self.queue.poll_bulk(now_ns))
    }

    /// Returns the present time, or 0 without emulation: every access then ends at once, and no
    /// clock is read.
    fn now_if_emulated_ns(&self) -> u64 {
        if self.links.is_empty() { 0 } else { monotonic_ns() }
    }

    pub(super) fn wait(&mut self, timeout_ns: u64) -> Result<(), PortError> {
        let until_ns = monotonic_ns().saturating_add(timeout_ns);
        wait_until(self.queue.next_due_ns().unwrap_or(until_ns).min(until_ns));
        Ok(())
    }
}

fn check_bulk(window_addr: u64, len: usize) -> Result<(), FabricError> {
    let len_bytes = len as u64;
    if len == 0 || window_addr.checked_add(len_bytes).is_none() {
        return Err(FabricError::BadLength { window_addr, len_bytes });
    }
    Ok(())
}

#[inline]
fn compare_swap(number: &AtomicU64, expected: u64, new: u64) -> u64 {
    match number.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(old) | Err(old) => old,
    }
}

/// Copies out of a grant.
#[inline]
fn load(from: *const u8, into: &mut [u8]) {
    // SAFETY: the caller has located `into.len()` bytes at `from`, which stay mapped while it
    // borrows the channels; `into` is a reference and does not overlap them.
    unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
}

/// Copies into a grant.
#[inline]
fn store(from: &[u8], into: *mut u8) {
    // SAFETY: as in `load`.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) }
}
