//! The front door: a rack, and what is to be had from it.

use std::time::Duration;

use venice_control::client::Access;
use venice_control::{DEFAULT_PRIORITY, Policy};
use venice_recipient::{MOST_COPIES, PortKind, ReclaimTo, RemoteMemory, Request, Waiting, Wish};

use crate::Error;
use crate::memory::Memory;
use crate::object_cache::{CacheOptions, MIN_CACHE_BYTES, ObjectCache};
use crate::paged::PagedMemory;

/// Asynchronous accesses of one [`Memory`] under way at a time, unless it is said otherwise.
const MOST_UNDER_WAY: usize = 256;

/// A rack: its Monitor Node's address, and how its donors are reached.
#[derive(Clone, Debug)]
pub struct Rack {
    access: Access,
    port: PortKind,
}

/// How memory is borrowed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MemoryOptions {
    /// The nodes to borrow from; empty: any.
    pub donors: Vec<String>,
    /// Which nodes are borrowed from first; `None`: as the rack does.
    pub placement: Option<Policy>,
    /// Traffic the links to the donors have to carry, evenly over the memory, in bits a second; 0: it
    /// does not say. A node gives no more than its link has left for, and what is granted stays
    /// promised.
    pub bandwidth_bps: u64,
    /// Copies of each slab, on different nodes, 1 to 3; `None`: two, or one where the rack has no
    /// room for two. [`Memory::copies`] says what it came to. With one, a node that dies takes with
    /// it what it holds.
    pub copies: Option<u32>,
    /// Where to put what a donor wants back while the memory is in use, in the order of choice: other
    /// donors, then this machine's own memory as far as it is available, unless it is said otherwise
    /// ([`ReclaimTo::list`] reads `"donors,disk:/srv/tmp"`). What none of them has room for stays
    /// where it is until its donor takes it.
    pub reclaim_to: Vec<ReclaimTo>,
    /// How the donors are reached; `None`: as the rack of this machine says, else by udp.
    pub port: Option<PortKind>,
    /// The node this program belongs to, where nodes relay for each other; `None`: the first.
    pub node: Option<String>,
    /// Where there is no room, in the rack or in the user's quota, wait for it in line so long at
    /// most; zero: not at all. Whoever waits is listed by `venice queue`.
    pub wait: Duration,
    /// 0 to 255, for those who wait: higher ones are served first. More than [`DEFAULT_PRIORITY`] is
    /// for administrators.
    pub priority: u8,
    /// While it waits, have grants of lower priority called back for it: the user's own, for
    /// administrators anybody's. Their programs have a minute to move what they have there.
    pub preempt: bool,
    /// What for, in `venice grants`.
    pub purpose: String,
    /// Asynchronous accesses under way at a time.
    pub most_under_way: usize,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            donors: Vec::new(),
            placement: None,
            bandwidth_bps: 0,
            copies: None,
            reclaim_to: ReclaimTo::by_default(),
            port: None,
            node: None,
            wait: Duration::ZERO,
            priority: DEFAULT_PRIORITY,
            preempt: false,
            purpose: String::new(),
            most_under_way: MOST_UNDER_WAY,
        }
    }
}

impl Rack {
    /// The rack that `VENICE_MONITOR` names, else the one that `venice up` started on this machine.
    ///
    /// # Errors
    /// [`Error::Unreachable`]: there is none, or its Monitor Node does not answer.
    pub fn connect() -> Result<Rack, Error> {
        let found = venice_recipient::local_rack::find()?;
        Rack::answering(found.access, found.port)
    }

    /// The rack that is reached so, for processes that hold a certificate of their own.
    ///
    /// # Errors
    /// As [`connect`](Rack::connect).
    pub fn connect_by(access: Access) -> Result<Rack, Error> {
        Rack::answering(access, venice_recipient::local_rack::port()?)
    }

    /// The rack whose Monitor Node is at `monitor`, `host:port`.
    ///
    /// # Errors
    /// [`Error::Unreachable`].
    pub fn connect_to(monitor: &str) -> Result<Rack, Error> {
        let port = venice_recipient::local_rack::port()?;
        Rack::answering(venice_recipient::local_rack::access(monitor), port)
    }

    /// `host:port` of its Monitor Node.
    pub fn monitor(&self) -> &str {
        &self.access.monitor
    }

    /// What its nodes have free, in bytes.
    ///
    /// # Errors
    /// [`Error::Unreachable`].
    pub fn free_bytes(&self) -> Result<u64, Error> {
        Ok(venice_recipient::free_bytes(&self.access)?)
    }

    /// Borrows `len_bytes`, rounded up to whole slabs of 16 MiB.
    ///
    /// # Errors
    /// [`Error::NoRoom`], [`Error::Refused`], [`Error::Unreachable`]; [`Error::Invalid`] for no bytes
    /// or a number of copies that cannot be.
    pub fn get_memory(&self, len_bytes: u64, options: &MemoryOptions) -> Result<Memory, Error> {
        Ok(Memory::new(self.borrow(len_bytes, options)?, options.most_under_way))
    }

    /// Memory from which regions of `len_bytes` in all, rounded up to whole slabs, can be mapped,
    /// and of which at most `local_bytes` (4 MiB at least) are resident.
    ///
    /// # Errors
    /// As [`Rack::get_memory`]; [`Error::Refused`] where the kernel has no userfaultfd for this
    /// program, [`Error::Invalid`] for too small a budget.
    pub fn paged_memory(
        &self,
        len_bytes: u64,
        local_bytes: u64,
        options: &MemoryOptions,
    ) -> Result<PagedMemory, Error> {
        PagedMemory::start(self.borrow(len_bytes, options)?, local_bytes)
    }

    /// An object cache in `len_bytes` of borrowed memory.
    ///
    /// # Errors
    /// As [`Rack::get_memory`]; [`Error::Invalid`] for less than [`MIN_CACHE_BYTES`].
    pub fn object_cache(
        &self,
        len_bytes: u64,
        options: &MemoryOptions,
        cache: &CacheOptions,
    ) -> Result<ObjectCache, Error> {
        if len_bytes < MIN_CACHE_BYTES {
            let said = format!("an object cache takes {MIN_CACHE_BYTES} bytes at least");
            return Err(Error::Invalid(said));
        }
        let memory = self.get_memory(len_bytes, options)?;
        ObjectCache::new(Box::new(memory), cache)
    }

    fn borrow(&self, len_bytes: u64, options: &MemoryOptions) -> Result<RemoteMemory, Error> {
        if len_bytes == 0 {
            return Err(Error::Invalid("ask for a byte of memory at least".into()));
        }
        if let Some(copies) = options.copies.filter(|copies| !(1..=MOST_COPIES).contains(copies)) {
            return Err(Error::Invalid(format!("{copies} copies: ask for 1 to {MOST_COPIES}")));
        }
        if options.reclaim_to.is_empty() {
            let said = "reclaim_to names no place: donors, local, disk or several of them";
            return Err(Error::Invalid(said.into()));
        }
        Ok(RemoteMemory::borrow(&self.request(len_bytes, options), |_| {})?)
    }

    fn request(&self, len_bytes: u64, options: &MemoryOptions) -> Request {
        let wish = Wish {
            copies: options.copies,
            remote_bytes: Some(len_bytes),
            donors: options.donors.clone(),
            placement: options.placement,
            bandwidth_bps: options.bandwidth_bps,
            waiting: Waiting {
                at_most: options.wait,
                priority: options.priority,
                preempt: options.preempt,
            },
            purpose: options.purpose.clone(),
            reclaim_to: options.reclaim_to.clone(),
            ..Wish::default()
        };
        Request {
            access: self.access.clone(),
            port: options.port.unwrap_or(self.port),
            node: options.node.clone(),
            wish,
        }
    }

    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    fn answering(access: Access, port: PortKind) -> Result<Rack, Error> {
        let rack = Rack { access, port };
        rack.free_bytes().map(|_| rack)
    }
}
