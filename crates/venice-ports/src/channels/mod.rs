//! The channels as programs use them: one type over any port that reaches the donor.
//!
//! [`Channels`] maps grants and offers CRMA (single accesses of 1 to 4096 bytes, atomics, posted
//! writes and their fence) and RDMA (any length, scattered and gathered), each blocking and polled.
//! Over shm an access is a load, a store or a copy on the donor's mapped memory, and the donor's
//! CPU takes no part. Over verbs it is a request of the RDMA device. Over rings and udp the
//! fabric's frames carry it ([`crate::ring`], [`crate::udp`]).
//!
//! Unlike the parts that run in the shim, this module may allocate and may start one thread, which
//! watches the donors of the shm port. It is for one thread at a time: `Send`, not shared.
//!
//! ```no_run
//! use venice_ports::channels::{Channels, ShmChannels};
//! use venice_wire::{GrantId, GrantKey, NodeId, SLAB_BYTES};
//!
//! let mut shm = ShmChannels::new(None)?;
//! let socket = "/run/venice/node1/shm.sock".as_ref();
//! shm.map_grant(0, NodeId(1), socket, GrantId(7), GrantKey(42), SLAB_BYTES)?;
//! let mut channels = Channels::from(shm);
//! channels.write(4096, b"far away")?;
//! let mut back = [0; 8];
//! channels.read(4096, &mut back)?;
//! assert_eq!(channels.fetch_add(8192, 1)?, 0);
//! # Ok::<(), venice_ports::channels::ChannelError>(())
//! ```

mod emulated;
mod framed;
mod mapped_grant;
mod queue;
mod shm;
mod verbs;
mod watch;

pub use self::emulated::AccessLink;
use venice_fabric::{AccessError, Completion, FabricError, RdmaCompletion, RdmaRejected};

pub use self::framed::{FrameDriver, FramedChannels};
pub use self::mapped_grant::WatchedGrant;
pub use self::shm::ShmChannels;
pub use self::verbs::VerbsChannels;
use crate::PortError;
use crate::ring::RingDriver;
use crate::udp::UdpDriver;

/// The channels over one port. [`ShmChannels`], [`VerbsChannels`] and [`FramedChannels`] document
/// how grants are mapped.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "shm accesses take nanoseconds: no pointer before them"
)]
pub enum Channels {
    /// One-sided, on mapped memory.
    Shm(ShmChannels),
    /// Frames through rings, answered by the donor's agent.
    Ring(Box<FramedChannels<RingDriver>>),
    /// Frames in datagrams, answered by the donor's agent.
    Udp(Box<FramedChannels<UdpDriver>>),
    /// One-sided, by RDMA devices.
    Verbs(Box<VerbsChannels>),
}

/// Error of an access.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The access was not accepted.
    #[error(transparent)]
    NotTaken(#[from] FabricError),
    /// The access was accepted and failed.
    #[error(transparent)]
    Failed(#[from] AccessError),
    /// The port failed.
    #[error(transparent)]
    Port(#[from] PortError),
}

/// One part of a scattered read: source and destination.
#[derive(Debug)]
pub struct ReadPart<'a> {
    /// First mapped address.
    pub window_addr: u64,
    /// Destination, filled whole.
    pub into: &'a mut [u8],
}

/// One part of a gathered write: destination and source.
#[derive(Clone, Copy, Debug)]
pub struct WritePart<'a> {
    /// First mapped address.
    pub window_addr: u64,
    /// Source, stored whole.
    pub from: &'a [u8],
}

/// Forwards a call to the port in use.
macro_rules! on_port {
    ($channels:expr, $port:ident => $call:expr) => {
        match $channels {
            Channels::Shm($port) => $call,
            Channels::Ring($port) => $call,
            Channels::Udp($port) => $call,
            Channels::Verbs($port) => $call,
        }
    };
}

/// CRMA, blocking. All calls return [`ChannelError::NotTaken`] for an unmapped address, a range
/// that leaves its mapping, a length outside 1 to 4096 bytes, or a donor that is down.
impl Channels {
    /// Fills `into` from `window_addr` on.
    ///
    /// # Errors
    /// See above; [`ChannelError::Failed`] if the donor refuses or dies.
    #[inline]
    pub fn read(&mut self, window_addr: u64, into: &mut [u8]) -> Result<(), ChannelError> {
        on_port!(self, port => port.read(window_addr, into))
    }

    /// Stores `from` at `window_addr`; the write has reached the donor's memory when this returns.
    ///
    /// # Errors
    /// Same as [`Channels::read`].
    #[inline]
    pub fn write(&mut self, window_addr: u64, from: &[u8]) -> Result<(), ChannelError> {
        on_port!(self, port => port.write(window_addr, from))
    }

    /// Stores `from` at `window_addr` some time before the next [`Channels::fence`] returns, which
    /// also reports errors. Waits only while too many posted writes are outstanding.
    ///
    /// # Errors
    /// Same as [`Channels::read`].
    #[inline]
    pub fn post(&mut self, window_addr: u64, from: &[u8]) -> Result<(), ChannelError> {
        on_port!(self, port => port.post(window_addr, from))
    }

    /// Waits until every write posted before has been carried out.
    ///
    /// # Errors
    /// The first error among the writes posted since the last fence.
    #[inline]
    pub fn fence(&mut self) -> Result<(), ChannelError> {
        on_port!(self, port => port.fence())
    }

    /// Adds `add` to the eight bytes at `window_addr`, a little-endian number that wraps around,
    /// atomically; returns the old value.
    ///
    /// # Errors
    /// Same as [`Channels::read`]; also an address that is not a multiple of eight.
    #[inline]
    pub fn fetch_add(&mut self, window_addr: u64, add: u64) -> Result<u64, ChannelError> {
        on_port!(self, port => port.fetch_add(window_addr, add))
    }

    /// Replaces the eight bytes at `window_addr` by `new` if they equal `expected`, atomically;
    /// returns the old value.
    ///
    /// # Errors
    /// Same as [`Channels::fetch_add`].
    #[inline]
    pub fn compare_swap(
        &mut self,
        window_addr: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64, ChannelError> {
        on_port!(self, port => port.compare_swap(window_addr, expected, new))
    }
}

/// RDMA, blocking. A range may span mappings, of different donors too.
impl Channels {
    /// Fills `into` from `window_addr` on; any length.
    ///
    /// # Errors
    /// Same as [`Channels::read`], except for the length. After an error any part may have been
    /// read.
    #[inline]
    pub fn rdma_read(&mut self, window_addr: u64, into: &mut [u8]) -> Result<(), ChannelError> {
        self.rdma_read_scattered(&mut [ReadPart { window_addr, into }])
    }

    /// Stores `from` at `window_addr`; any length.
    ///
    /// # Errors
    /// Same as [`Channels::read`], except for the length. After an error any part may have been
    /// stored.
    #[inline]
    pub fn rdma_write(&mut self, window_addr: u64, from: &[u8]) -> Result<(), ChannelError> {
        self.rdma_write_gathered(&[WritePart { window_addr, from }])
    }

    /// Reads all `parts` at once.
    ///
    /// # Errors
    /// Same as [`Channels::rdma_read`]: the first error of any part, after all parts have ended.
    pub fn rdma_read_scattered(&mut self, parts: &mut [ReadPart<'_>]) -> Result<(), ChannelError> {
        on_port!(self, port => port.rdma_read_scattered(parts))
    }

    /// Writes all `parts` at once.
    ///
    /// # Errors
    /// Same as [`Channels::rdma_write`]: the first error of any part, after all parts have ended.
    pub fn rdma_write_gathered(&mut self, parts: &[WritePart<'_>]) -> Result<(), ChannelError> {
        on_port!(self, port => port.rdma_write_gathered(parts))
    }
}

/// Polled: many accesses outstanding at once. Each accepted access completes once, with its token,
/// by [`Channels::poll`] or [`Channels::poll_rdma`]. A call that cannot be accepted now returns
/// [`FabricError::WouldBlock`]: poll, then retry.
impl Channels {
    /// Starts a read of `len` bytes, 1 to 4096; the completion brings them.
    ///
    /// # Errors
    /// Same as [`Channels::read`]; the access was not accepted.
    pub fn start_read(
        &mut self,
        token: u64,
        window_addr: u64,
        len: u32,
    ) -> Result<(), FabricError> {
        on_port!(self, port => port.start_read(token, window_addr, len))
    }

    /// Starts a write of `from`, 1 to 4096 bytes.
    ///
    /// # Errors
    /// Same as [`Channels::start_read`].
    pub fn start_write(
        &mut self,
        token: u64,
        window_addr: u64,
        from: &[u8],
    ) -> Result<(), FabricError> {
        on_port!(self, port => port.start_write(token, window_addr, from))
    }

    /// Starts a [`Channels::fetch_add`]; the completion brings the old bytes.
    ///
    /// # Errors
    /// Same as [`Channels::start_read`]; also an address that is not a multiple of eight.
    pub fn start_fetch_add(
        &mut self,
        token: u64,
        window_addr: u64,
        add: u64,
    ) -> Result<(), FabricError> {
        on_port!(self, port => port.start_fetch_add(token, window_addr, add))
    }

    /// Starts a [`Channels::compare_swap`]; the completion brings the old bytes.
    ///
    /// # Errors
    /// Same as [`Channels::start_fetch_add`].
    pub fn start_compare_swap(
        &mut self,
        token: u64,
        window_addr: u64,
        expected: u64,
        new: u64,
    ) -> Result<(), FabricError> {
        on_port!(self, port => port.start_compare_swap(token, window_addr, expected, new))
    }

    /// Starts a read that fills the whole of `buffer` from `window_addr` on; the completion returns
    /// it.
    ///
    /// # Errors
    /// Returns the buffer with the error if the transfer was not accepted.
    pub fn start_rdma_read(
        &mut self,
        token: u64,
        window_addr: u64,
        buffer: Vec<u8>,
    ) -> Result<(), RdmaRejected> {
        on_port!(self, port => port.start_rdma_read(token, window_addr, buffer))
    }

    /// Starts a write of the whole of `buffer` from `window_addr` on; the completion returns it.
    ///
    /// # Errors
    /// Returns the buffer with the error if the transfer was not accepted.
    pub fn start_rdma_write(
        &mut self,
        token: u64,
        window_addr: u64,
        buffer: Vec<u8>,
    ) -> Result<(), RdmaRejected> {
        on_port!(self, port => port.start_rdma_write(token, window_addr, buffer))
    }

    /// Returns the next completed single access, if any; moves frames first. Never waits.
    ///
    /// # Errors
    /// Fails if the port has failed for good.
    pub fn poll(&mut self) -> Result<Option<Completion<'_>>, PortError> {
        on_port!(self, port => port.poll())
    }

    /// Returns the next completed bulk transfer, if any; moves frames first. Never waits.
    ///
    /// # Errors
    /// Fails if the port has failed for good.
    pub fn poll_rdma(&mut self) -> Result<Option<RdmaCompletion>, PortError> {
        on_port!(self, port => port.poll_rdma())
    }

    /// Sleeps until there may be something to poll, or for `timeout_ns`; may return earlier.
    ///
    /// # Errors
    /// Fails if the port has failed for good.
    pub fn wait(&mut self, timeout_ns: u64) -> Result<(), PortError> {
        on_port!(self, port => port.wait(timeout_ns))
    }
}

impl From<ShmChannels> for Channels {
    fn from(channels: ShmChannels) -> Self {
        Self::Shm(channels)
    }
}

impl From<VerbsChannels> for Channels {
    fn from(channels: VerbsChannels) -> Self {
        Self::Verbs(Box::new(channels))
    }
}

impl From<RingDriver> for Channels {
    fn from(driver: RingDriver) -> Self {
        Self::Ring(Box::new(FramedChannels::new(driver)))
    }
}

impl From<UdpDriver> for Channels {
    fn from(driver: UdpDriver) -> Self {
        Self::Udp(Box::new(FramedChannels::new(driver)))
    }
}
