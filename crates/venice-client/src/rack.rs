//! The entry point: a rack, and its resources.

use std::time::Duration;

use venice_control::client::Access;
use venice_control::{DEFAULT_PRIORITY, Policy, Want};
use venice_recipient::{
    AllocationSpec, MOST_COPIES, MemorySpec, PortKind, ReclaimTo, RemoteMemory, Request, Waiting,
};

use crate::Error;
use crate::device::check_devices;
use crate::memory::Memory;
use crate::object_cache::{CacheOptions, MIN_CACHE_BYTES, ObjectCache};
use crate::paged::PagedMemory;

/// Default maximum of outstanding asynchronous accesses of one [`Memory`].
const MOST_UNDER_WAY: usize = 256;

/// A rack: its Monitor Node's address, and the port to its donors.
#[derive(Clone, Debug)]
pub struct Rack {
    access: Access,
    port: PortKind,
}

/// The options of borrowed memory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MemoryOptions {
    /// Nodes to borrow from; empty: any.
    pub donors: Vec<String>,
    /// Order of the nodes; `None`: the rack's default.
    pub placement: Option<Policy>,
    /// Traffic the links to the donors must carry, evenly over the memory, in bits per second; 0:
    /// unspecified. A node grants no more than its link has left, and the granted bandwidth stays
    /// reserved.
    pub bandwidth_bps: u64,
    /// Copies of each slab, on different nodes, 1 to 3; `None`: two, or one if the rack has no room
    /// for two. [`Memory::copies`] returns the result. With one, a node that dies loses what it
    /// holds.
    pub copies: Option<u32>,
    /// Destinations of memory that a donor reclaims while it is in use, in order: by default other
    /// donors, then this machine's own memory as far as it is available ([`ReclaimTo::list`] parses
    /// `"donors,disk:/srv/tmp"`). Memory for which none has room stays until its donor takes it.
    pub reclaim_to: Vec<ReclaimTo>,
    /// Port to the donors; `None`: the one of this machine's rack, otherwise udp.
    pub port: Option<PortKind>,
    /// The node of this program, where nodes relay for each other; `None`: the first.
    pub node: Option<String>,
    /// Maximum time to wait if there is no room, in the rack or in the user's quota; zero: do not
    /// wait. `venice queue` lists waiting requests.
    pub wait: Duration,
    /// Priority of a waiting request, 0 to 255: higher ones are served first. Values above
    /// [`DEFAULT_PRIORITY`] are for administrators.
    pub priority: u8,
    /// Preempts grants of lower priority while the request waits: the user's own, for
    /// administrators any user's. Their programs have a minute to move their data.
    pub preempt: bool,
    /// Devices to get with the memory ([`wants`](crate::wants)): both or nothing, and the memory near
    /// them. [`Memory::take_devices`] returns them. For [`Rack::get_memory`] alone.
    pub devices: Vec<Want>,
    /// Purpose shown by `venice grants`.
    pub purpose: String,
    /// Maximum of outstanding asynchronous accesses.
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
            devices: Vec::new(),
            purpose: String::new(),
            most_under_way: MOST_UNDER_WAY,
        }
    }
}

impl Rack {
    /// Connects to the rack named by `VENICE_MONITOR`, otherwise to the one started by `venice up`
    /// on this machine.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if there is none, or its Monitor Node does not answer.
    pub fn connect() -> Result<Rack, Error> {
        let found = venice_recipient::local_rack::find()?;
        Rack::answering(found.access, found.port)
    }

    /// Connects to a rack by the given access, for processes with a certificate of their own.
    ///
    /// # Errors
    /// Like [`connect`](Rack::connect).
    pub fn connect_by(access: Access) -> Result<Rack, Error> {
        Rack::answering(access, venice_recipient::local_rack::port()?)
    }

    /// Connects to the rack whose Monitor Node is at `monitor`, `host:port`.
    ///
    /// # Errors
    /// [`Error::Unreachable`].
    pub fn connect_to(monitor: &str) -> Result<Rack, Error> {
        let port = venice_recipient::local_rack::port()?;
        Rack::answering(venice_recipient::local_rack::access(monitor), port)
    }

    /// Returns `host:port` of its Monitor Node.
    pub fn monitor(&self) -> &str {
        &self.access.monitor
    }

    /// Returns the free bytes of its nodes.
    ///
    /// # Errors
    /// [`Error::Unreachable`].
    pub fn free_bytes(&self) -> Result<u64, Error> {
        Ok(venice_recipient::free_bytes(&self.access)?)
    }

    /// Borrows `len_bytes`, rounded up to whole slabs of 16 MiB.
    ///
    /// # Errors
    /// [`Error::NoRoom`], [`Error::Refused`], [`Error::Unreachable`]; [`Error::Invalid`] for a size
    /// of 0 or an invalid number of copies.
    pub fn get_memory(&self, len_bytes: u64, options: &MemoryOptions) -> Result<Memory, Error> {
        check_devices(&options.devices)?;
        Ok(Memory::new(self.borrow(len_bytes, options)?, options.most_under_way))
    }

    /// Borrows memory from which regions of `len_bytes` in all, rounded up to whole slabs, can be
    /// mapped, and of which at most `local_bytes` (at least 4 MiB) are resident.
    ///
    /// # Errors
    /// Like [`Rack::get_memory`]; [`Error::Refused`] if the kernel has no userfaultfd for this
    /// program, [`Error::Invalid`] for too small a budget.
    pub fn paged_memory(
        &self,
        len_bytes: u64,
        local_bytes: u64,
        options: &MemoryOptions,
    ) -> Result<PagedMemory, Error> {
        check_alone(options)?;
        PagedMemory::start(self.borrow(len_bytes, options)?, local_bytes)
    }

    /// Creates an object cache in `len_bytes` of borrowed memory.
    ///
    /// # Errors
    /// Like [`Rack::get_memory`]; [`Error::Invalid`] for less than [`MIN_CACHE_BYTES`].
    pub fn object_cache(
        &self,
        len_bytes: u64,
        options: &MemoryOptions,
        cache: &CacheOptions,
    ) -> Result<ObjectCache, Error> {
        if len_bytes < MIN_CACHE_BYTES {
            let said = format!("object cache too small: it takes at least {MIN_CACHE_BYTES} bytes");
            return Err(Error::Invalid(said));
        }
        check_alone(options)?;
        let memory = self.get_memory(len_bytes, options)?;
        ObjectCache::new(Box::new(memory), cache)
    }

    fn borrow(&self, len_bytes: u64, options: &MemoryOptions) -> Result<RemoteMemory, Error> {
        if len_bytes == 0 {
            return Err(Error::Invalid("invalid size 0: ask for at least 1 byte of memory".into()));
        }
        if let Some(copies) = options.copies.filter(|copies| !(1..=MOST_COPIES).contains(copies)) {
            return Err(Error::Invalid(format!(
                "invalid number of copies {copies}: ask for 1 to {MOST_COPIES}"
            )));
        }
        if options.reclaim_to.is_empty() {
            let said = "empty reclaim_to: name donors, local, disk or several of them";
            return Err(Error::Invalid(said.into()));
        }
        Ok(RemoteMemory::borrow(&self.request(len_bytes, options), |_| {})?)
    }

    fn request(&self, len_bytes: u64, options: &MemoryOptions) -> Request {
        let memory = MemorySpec {
            remote_bytes: Some(len_bytes),
            copies: options.copies,
            bandwidth_bps: options.bandwidth_bps,
            reclaim_to: options.reclaim_to.clone(),
            ..MemorySpec::default()
        };
        let spec = AllocationSpec {
            devices: options.devices.clone(),
            donors: options.donors.clone(),
            placement: options.placement,
            waiting: Waiting {
                at_most: options.wait,
                priority: options.priority,
                preempt: options.preempt,
            },
            purpose: options.purpose.clone(),
            ..AllocationSpec::of_memory(memory)
        };
        Request {
            access: self.access.clone(),
            port: options.port.unwrap_or(self.port),
            node: options.node.clone(),
            spec,
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

/// Refuses devices where nothing could return them.
fn check_alone(options: &MemoryOptions) -> Result<(), Error> {
    match options.devices.is_empty() {
        true => Ok(()),
        false => Err(Error::Invalid("devices come with get_memory alone: see get_devices".into())),
    }
}
