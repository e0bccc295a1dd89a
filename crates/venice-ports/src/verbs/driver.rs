//! The recipient's end: takes accesses and returns completions; the devices alone carry them out.

mod grants;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use venice_fabric::{AccessError, Completion, DownReason, FabricError, PeerIndex};
use venice_wire::MAX_PAYLOAD_BYTES;

use super::abi::{SendWr, Sge, Wc, constants};
use super::device::Addresses;
use super::link::{Link, Place};
use super::memory::{Buffer, Domain};
use super::operations::{Operation, Operations, Rest};
use super::queue::CompletionQueue;
use super::{Device, VerbsError};
use crate::mappings::{MappingTable, Target};

/// Most completions taken from the device at once.
const BATCH: usize = 32;
/// Bytes of one request of a bulk transfer: short enough not to delay small accesses.
const CHUNK_BYTES: u64 = 1 << 20;
/// Event of the completion channel; those of links are the links' numbers.
const COMPLETIONS: u64 = u64::MAX;

/// Flag in the number of a request: it is a read or an atomic.
const BRINGS_DATA: u64 = 1 << 63;

/// Limits of the outstanding work of a [`VerbsDriver`].
#[derive(Clone, Copy, Debug)]
pub struct VerbsConfig {
    /// Most outstanding accesses, 1 to 32 768, each with a page of buffer.
    pub accesses: u16,
    /// Most requests posted for one grant.
    pub requests_per_grant: u32,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self { accesses: 256, requests_per_grant: 128 }
    }
}

/// A buffer for bulk transfers, made by [`VerbsDriver::add_buffer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferId(u32);

/// Direction of a bulk transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bulk {
    /// From the donor into the buffer.
    Read,
    /// From the buffer to the donor.
    Write,
}

/// Mappings of donors' memory, reached by an RDMA device.
///
/// Single accesses to one grant are carried out in the order given; a write waits for the reads
/// before it. Bulk transfers have an order of their own. Start accesses, then poll completions;
/// [`VerbsDriver::wait`] sleeps until there is one. After construction, [`VerbsDriver::add_grant`],
/// [`VerbsDriver::make_ready`] and [`VerbsDriver::add_buffer`] nothing takes memory from the C
/// library, and nothing but [`VerbsDriver::join_grant`] allocates.
#[derive(Debug)]
pub struct VerbsDriver {
    // Field order, which is the order of drops: queue pairs, then the memory they reach.
    pub(super) links: Vec<Link>,
    buffers: Vec<Buffer>,
    /// Pages, one for each access.
    pages: Buffer,
    completions: Arc<CompletionQueue>,
    domain: Arc<Domain>,
    mappings: MappingTable,
    operations: Operations,
    events: OwnedFd,
    config: VerbsConfig,
    /// Free entries of the completion queue.
    room: usize,
    /// Addresses for grants that come later.
    addresses: Option<Addresses>,
    lowest_fd: RawFd,
    /// Longest time of a donor to answer [`VerbsDriver::add_grant`].
    answer_limit_ns: u64,
}

impl VerbsDriver {
    /// Makes a driver on `device`, without mappings.
    ///
    /// # Errors
    /// Fails if the device or the kernel has no room for its queues.
    pub fn new(device: &Arc<Device>, config: VerbsConfig) -> Result<Self, VerbsError> {
        let accesses = config.accesses.clamp(1, 1 << 15);
        let depth = (usize::from(accesses) * 2 + config.requests_per_grant as usize)
            .min(device.limits().max_cqe.max(1) as usize);
        let domain = Domain::new(device)?;
        let completions = CompletionQueue::new(device, depth)?;
        let pages = Buffer::new(&domain, usize::from(accesses) * MAX_PAYLOAD_BYTES)?;
        let system = |errno: Errno| VerbsError::System {
            step: "making an epoll descriptor",
            source: errno.into(),
        };
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let interest = epoll::EventData::new_u64(COMPLETIONS);
        epoll::add(&events, completions.fd(), interest, epoll::EventFlags::IN).map_err(system)?;
        Ok(Self {
            links: Vec::new(),
            buffers: Vec::new(),
            pages,
            completions,
            domain,
            mappings: MappingTable::default(),
            operations: Operations::new(accesses),
            events,
            config,
            room: depth,
            addresses: None,
            lowest_fd: 0,
            answer_limit_ns: grants::ANSWER_LIMIT_NS,
        })
    }

    /// Maps `len_bytes` from `window_addr` on to a grant, from `remote_addr` of it on.
    ///
    /// # Errors
    /// [`FabricError::Overlap`]; [`FabricError::BadLength`] also for a range that reaches beyond
    /// the grant.
    ///
    /// # Panics
    /// Panics if the grant is not of this driver.
    pub fn map_window(
        &mut self,
        window_addr: u64,
        len_bytes: u64,
        peer: PeerIndex,
        remote_addr: u64,
    ) -> Result<(), FabricError> {
        let grant_bytes = self.links[peer.0 as usize].grant_bytes();
        if remote_addr.checked_add(len_bytes).is_none_or(|end| end > grant_bytes) {
            return Err(FabricError::BadLength { window_addr, len_bytes });
        }
        self.mappings.map(window_addr, Target { peer, remote_addr, room_bytes: len_bytes })
    }

    /// Removes a mapping; outstanding accesses continue.
    ///
    /// # Errors
    /// [`FabricError::NotMapped`] if no mapping starts there.
    pub fn unmap_window(&mut self, window_addr: u64) -> Result<(), FabricError> {
        match self.mappings.unmap(window_addr) {
            true => Ok(()),
            false => Err(FabricError::NotMapped { window_addr, len_bytes: 0 }),
        }
    }

    /// Returns the bytes from `addr` to the end of its mapping; `None` if `addr` is not mapped.
    pub fn room_at(&self, addr: u64) -> Option<u64> {
        self.mappings.find(addr).map(|target| target.room_bytes)
    }

    /// Returns the error for which a grant can no longer be reached, if any.
    ///
    /// # Panics
    /// Panics if the grant is not of this driver.
    pub fn peer_error(&self, peer: PeerIndex) -> Option<AccessError> {
        self.links[peer.0 as usize].down()
    }

    /// Starts a read of `len` bytes, 1 to 4096, in one mapping. The completion brings them.
    ///
    /// # Errors
    /// Any [`FabricError`] but `Overlap`; the access was not accepted.
    pub fn read(&mut self, token: u64, window_addr: u64, len: u32) -> Result<(), FabricError> {
        self.access(token, window_addr, len.into(), constants::WR_RDMA_READ, |_| {}, (0, 0))
    }

    /// Starts a write of `data`, 1 to 4096 bytes, into one mapping.
    ///
    /// # Errors
    /// Same as [`VerbsDriver::read`].
    pub fn write(&mut self, token: u64, window_addr: u64, data: &[u8]) -> Result<(), FabricError> {
        let fill = |page: *mut u8| {
            // SAFETY: the access's own page, with no request of the device on it yet; the length
            // was checked to be a page at most.
            unsafe { page.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        };
        let len = data.len() as u64;
        self.access(token, window_addr, len, constants::WR_RDMA_WRITE, fill, (0, 0))
    }

    /// Starts an addition to the u64 at an address that is a multiple of 8 at the donor; the
    /// completion brings the old value, little-endian. Atomic with respect to accesses through the
    /// same device.
    ///
    /// # Errors
    /// Same as [`VerbsDriver::read`].
    pub fn fetch_add(&mut self, token: u64, addr: u64, add: u64) -> Result<(), FabricError> {
        self.atomic(token, addr, constants::WR_ATOMIC_FETCH_AND_ADD, (add, 0))
    }

    /// Starts the replacement of the u64 at an address that is a multiple of 8 at the donor by
    /// `new` if it is `expected`; the completion brings the old value, little-endian. Atomic like
    /// [`VerbsDriver::fetch_add`].
    ///
    /// # Errors
    /// Same as [`VerbsDriver::read`].
    pub fn compare_swap(
        &mut self,
        token: u64,
        addr: u64,
        expected: u64,
        new: u64,
    ) -> Result<(), FabricError> {
        self.atomic(token, addr, constants::WR_ATOMIC_CMP_AND_SWP, (expected, new))
    }

    fn atomic(
        &mut self,
        token: u64,
        addr: u64,
        opcode: i32,
        operands: (u64, u64),
    ) -> Result<(), FabricError> {
        let target = self.mappings.find(addr);
        if target.is_some_and(|target| !target.remote_addr.is_multiple_of(8)) {
            return Err(FabricError::Unaligned { window_addr: addr });
        }
        self.access(token, addr, 8, opcode, |_| {}, operands)
    }

    /// Makes a buffer for bulk transfers, zeroed, registered with the device.
    ///
    /// # Errors
    /// Fails if there is no memory for it, or it may not be locked.
    pub fn add_buffer(&mut self, len_bytes: usize) -> Result<BufferId, VerbsError> {
        self.buffers.push(Buffer::new(&self.domain, len_bytes)?);
        Ok(BufferId(self.buffers.len() as u32 - 1))
    }

    /// Returns the memory of a buffer. The device writes into it while a bulk read is outstanding:
    /// use raw copies then, and no references.
    pub fn buffer(&self, id: BufferId) -> *mut [u8] {
        let buffer = &self.buffers[id.0 as usize];
        std::ptr::slice_from_raw_parts_mut(buffer.as_ptr(), buffer.len_bytes())
    }

    /// Moves `len_bytes` between one mapping and a buffer, without a copy, in requests of 1 MiB.
    /// Transfers take turns with each other and with single accesses.
    ///
    /// # Errors
    /// Any [`FabricError`] but `Overlap`; nothing was moved. [`FabricError::BadLength`] also if it
    /// does not fit into the buffer.
    pub fn transfer(
        &mut self,
        token: u64,
        direction: Bulk,
        window_addr: u64,
        buffer: BufferId,
        offset: usize,
        len_bytes: usize,
    ) -> Result<(), FabricError> {
        let memory = &self.buffers[buffer.0 as usize];
        let len = len_bytes as u64;
        if len == 0 || offset.checked_add(len_bytes).is_none_or(|end| end > memory.len_bytes()) {
            return Err(FabricError::BadLength { window_addr, len_bytes: len });
        }
        let local_addr = memory.as_ptr() as u64 + offset as u64;
        let lkey = memory.lkey();
        let target = self.translate(window_addr, len)?;
        let (link, remote_addr) = (target.peer.0, target.remote_addr);
        let opcode = match direction {
            Bulk::Read => constants::WR_RDMA_READ,
            Bulk::Write => constants::WR_RDMA_WRITE,
        };
        let rest = Rest { link, opcode, remote_addr, local_addr, lkey, left_bytes: len };
        let operation = Operation::new(token, 0);
        let index = self.operations.begin(operation).ok_or(FabricError::WouldBlock)?;
        self.operations.defer(index, rest);
        self.post_deferred();
        Ok(())
    }

    /// Returns the next completed access. Never waits. Its data are valid until the next call.
    pub fn poll_completion(&mut self) -> Option<Completion<'_>> {
        if !self.operations.any_done() {
            self.collect();
        }
        let (index, operation) = self.operations.take_done()?;
        let data = match operation.result {
            Ok(()) => {
                // SAFETY: the access has ended: the device has no request on its page any more, and
                // the page goes to no other access before the next call.
                unsafe {
                    let page = self.pages.as_ptr().add(usize::from(index) * MAX_PAYLOAD_BYTES);
                    std::slice::from_raw_parts(page, usize::from(operation.data_len))
                }
            }
            Err(_) => &[],
        };
        Some(Completion { token: operation.token, result: operation.result, data })
    }

    /// Sleeps until a completion can be polled, a donor is gone, or `timeout_ns` have passed; it
    /// may return earlier.
    ///
    /// # Errors
    /// Fails if the kernel cannot wait.
    pub fn wait(&mut self, timeout_ns: u64) -> Result<(), VerbsError> {
        if self.arm() {
            return Ok(());
        }
        let timeout = Timespec {
            tv_sec: (timeout_ns / 1_000_000_000) as i64,
            tv_nsec: (timeout_ns % 1_000_000_000) as i64,
        };
        self.take_events(Some(&timeout))
    }

    /// Makes the device announce the next completion on [`VerbsDriver::fd`], for callers that wait
    /// for more than this driver. Returns true if there is one already. Call
    /// [`VerbsDriver::handle_events`] after the wait.
    pub fn arm(&mut self) -> bool {
        self.completions.arm();
        self.collect();
        self.operations.any_done()
    }

    /// Returns a descriptor that is readable if a completion was announced or a donor is gone; see
    /// [`VerbsDriver::arm`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Returns all descriptors of this driver and of the library beneath it, for callers that must
    /// keep other code from closing them.
    pub fn raw_fds(&self) -> impl Iterator<Item = RawFd> {
        let own = [self.events.as_raw_fd(), self.completions.fd().as_raw_fd()];
        let device = self.domain.device().raw_fds();
        let streams = self.links.iter().filter_map(|link| link.stream.as_ref());
        own.into_iter().chain(device).chain(streams.map(AsRawFd::as_raw_fd))
    }

    /// Handles the events that made [`VerbsDriver::fd`] readable.
    ///
    /// # Errors
    /// Fails if the kernel cannot report them.
    pub fn handle_events(&mut self) -> Result<(), VerbsError> {
        self.take_events(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
    }

    fn take_events(&mut self, timeout: Option<&Timespec>) -> Result<(), VerbsError> {
        let none =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [none; 8];
        let count = match epoll::wait(&self.events, &mut events[..], timeout) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(errno) => {
                let step = "waiting for completions";
                return Err(VerbsError::System { step, source: errno.into() });
            }
        };
        for event in &events[..count] {
            match { event.data }.u64() {
                COMPLETIONS => self.completions.take_events(),
                index => self.handle_link_event(index as usize),
            }
        }
        self.collect();
        Ok(())
    }

    fn translate(&mut self, window_addr: u64, len_bytes: u64) -> Result<Target, FabricError> {
        if len_bytes == 0 {
            return Err(FabricError::BadLength { window_addr, len_bytes });
        }
        let target = self.mappings.find(window_addr);
        let target = target.filter(|target| target.room_bytes >= len_bytes);
        let target = target.ok_or(FabricError::NotMapped { window_addr, len_bytes })?;
        match self.links[target.peer.0 as usize].down() {
            None => Ok(target),
            Some(AccessError::Refused(_)) => Err(FabricError::Revoked { window_addr }),
            Some(AccessError::PeerDown(reason)) => Err(FabricError::PeerDown(reason)),
            Some(_) => Err(FabricError::PeerDown(DownReason::LinkLost)),
        }
    }

    /// Starts a single access: one request, or two if it crosses from one slab to the next.
    fn access(
        &mut self,
        token: u64,
        window_addr: u64,
        len_bytes: u64,
        opcode: i32,
        fill: impl FnOnce(*mut u8),
        operands: (u64, u64),
    ) -> Result<(), FabricError> {
        if len_bytes > MAX_PAYLOAD_BYTES as u64 {
            return Err(FabricError::BadLength { window_addr, len_bytes });
        }
        let target = self.translate(window_addr, len_bytes)?;
        let link_index = target.peer.0;
        if self.links[link_index as usize].room < 2 || self.room < 2 {
            self.collect();
            if self.links[link_index as usize].room < 2 || self.room < 2 {
                return Err(FabricError::WouldBlock);
            }
        }
        let data_len = if opcode == constants::WR_RDMA_WRITE { 0 } else { len_bytes as u16 };
        let operation = Operation::new(token, data_len);
        let index = self.operations.begin(operation).ok_or(FabricError::WouldBlock)?;
        // SAFETY: the buffer has a page for each access.
        let page = unsafe { self.pages.as_ptr().add(usize::from(index) * MAX_PAYLOAD_BYTES) };
        fill(page);
        let mut rest = Rest {
            link: link_index,
            opcode,
            remote_addr: target.remote_addr,
            local_addr: page as u64,
            lkey: self.pages.lkey(),
            left_bytes: len_bytes,
        };
        while rest.left_bytes > 0 {
            assert!(self.post(index, &mut rest, operands), "there is room for both requests");
        }
        Ok(())
    }

    /// Posts the next request of an operation; returns false if nothing more can be posted now. If
    /// the link is down the operation ends with its error.
    fn post(&mut self, index: u16, rest: &mut Rest, operands: (u64, u64)) -> bool {
        let link = &mut self.links[rest.link as usize];
        if let Some(reason) = link.down() {
            rest.left_bytes = 0;
            self.operations.fail(index, reason);
            return true;
        }
        if link.room == 0 || self.room == 0 {
            return false;
        }
        let Place { addr, rkey, room_bytes } =
            link.place(rest.remote_addr).expect("mappings lie within their grants");
        let len = rest.left_bytes.min(room_bytes).min(CHUNK_BYTES);
        let mut piece = Sge { addr: rest.local_addr, length: len as u32, lkey: rest.lkey };
        let mut request = SendWr::zeroed();
        request.send_flags = constants::SEND_SIGNALED;
        request.wr_id = u64::from(rest.link) << 16 | u64::from(index);
        if rest.opcode == constants::WR_RDMA_WRITE {
            if link.reads > 0 {
                request.send_flags |= constants::SEND_FENCE;
            }
        } else {
            request.wr_id |= BRINGS_DATA;
        }
        request.sg_list = &mut piece;
        request.num_sge = 1;
        request.opcode = rest.opcode;
        request.remote_addr = addr;
        match rest.opcode {
            constants::WR_RDMA_READ => request.set_rdma_rkey(rkey),
            constants::WR_RDMA_WRITE => {
                request.set_rdma_rkey(rkey);
                if len <= u64::from(link.pair.inline_bytes()) {
                    request.send_flags |= constants::SEND_INLINE;
                }
            }
            _ => {
                (request.compare_add, request.swap) = operands;
                request.atomic_rkey = rkey;
            }
        }
        // SAFETY: the piece lies in a buffer of this driver, which outlives the queue pair; the
        // operation keeps its page until the completion.
        match unsafe { link.pair.post(&mut request) } {
            Ok(()) => {
                link.room -= 1;
                self.room -= 1;
                link.reads += u32::from(rest.opcode != constants::WR_RDMA_WRITE);
                self.operations.posted(index);
                rest.advance(len);
            }
            // The queue pair has room: the device has failed.
            Err(_) => link.fail(AccessError::PeerDown(DownReason::LinkLost)),
        }
        true
    }

    /// Takes the device's completions, and posts deferred requests.
    fn collect(&mut self) {
        let mut batch = [Wc::default(); BATCH];
        loop {
            let completions = Arc::clone(&self.completions);
            let taken = completions.poll(&mut batch);
            for completion in taken {
                let link = (completion.wr_id & !BRINGS_DATA) >> 16;
                let link = &mut self.links[link as usize];
                link.reads -= u32::from(completion.wr_id & BRINGS_DATA != 0);
                link.room += 1;
                self.room += 1;
                let result = link.check_status(completion.status);
                self.operations.completed(completion.wr_id as u16, result);
            }
            if taken.len() < BATCH {
                break;
            }
        }
        self.post_deferred();
    }

    /// Posts deferred requests of transfers, each in turn.
    fn post_deferred(&mut self) {
        let mut in_vain = 0;
        while in_vain < self.operations.deferred_count() {
            let Some((index, mut rest)) = self.operations.next_deferred() else { return };
            match self.post(index, &mut rest, (0, 0)) {
                true => in_vain = 0,
                false => in_vain += 1,
            }
            if rest.left_bytes > 0 {
                self.operations.defer(index, rest);
            }
        }
    }
}
