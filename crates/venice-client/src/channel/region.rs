//! Registered memory: lent by one program, accessed by others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use venice_fabric::{AccessError, Atomic, FabricError, Refusal};
use venice_memory::donor::SharedGrants;
use venice_memory::region::{
    REGION_GRANT, REGION_LENDER, join_region_udp, region_grants, serve_region_udp,
};
use venice_ports::PortError;
use venice_ports::channels::{ChannelError, Channels, ShmChannels, VerbsChannels};
use venice_ports::seal::SealKeys;
use venice_ports::shm::ShmServer;
use venice_ports::udp::UdpServer;
use venice_ports::verbs::{Device, VerbsConfig, VerbsDriver, VerbsServer};
use venice_recipient::PortKind;
use venice_wire::{GrantKey, SLAB_BYTES};

use super::owned::Owned;
use super::{Address, Error, Options};
use crate::error::with_causes;

/// Name of this kind of channel.
const MEMORY: &str = "memory";
/// Longest single access in bytes; longer ones are bulk transfers.
const SINGLE_BYTES: usize = 4096;
/// Longest access of the lender under one lock.
const PIECE_BYTES: usize = SLAB_BYTES as usize;

/// Memory of this program that others read, write and change atomically while the lender lives.
///
/// Over shm the others map it, and over verbs the devices access it: this program takes no part.
/// Over udp a thread of this program answers. Accesses of different programs, and of this one, take
/// effect in any order and in pieces; use atomics where that matters.
#[derive(Debug)]
pub struct LentRegion {
    server: Owned<Server>,
    grants: SharedGrants,
    key: GrantKey,
    len_bytes: u64,
    address: Address,
}

#[derive(Debug)]
enum Server {
    Shm { _server: ShmServer },
    Udp { _server: UdpServer },
    Verbs { _server: VerbsServer },
}

impl LentRegion {
    /// Lends `len_bytes` of zeros, rounded up to 16 MiB, at `address`. Only what is touched becomes
    /// resident, except over verbs.
    ///
    /// # Errors
    /// [`Error::Listen`] if the address is taken or unusable, there is no memory, or no RDMA
    /// device; [`Error::Size`] if it is empty; [`Error::Unprotected`], [`Error::UnusedOption`],
    /// [`Error::Address`].
    pub fn bind(address: &Address, len_bytes: u64, options: &Options) -> Result<Self, Error> {
        options.check_protection(address)?;
        options.check_no_buffer(MEMORY)?;
        options.check_no_timeout("a lender")?;
        let listening = |why: String| Error::Listen { address: address.to_string(), why };
        let failed = |error: PortError| Error::listening(address, error.into());
        if len_bytes == 0 {
            return Err(Error::Size { what: MEMORY, len_bytes, bounds: "lend at least 1 byte" });
        }
        let slabs = len_bytes.div_ceil(SLAB_BYTES);
        let key = grant_key(options);
        let grants = region_grants(key, len_bytes);
        let grants = grants.map_err(|error| listening(with_causes(&error)))?;
        let (server, address) = match address.port() {
            PortKind::Shm => {
                let path = address.path().ok_or_else(|| listening("no path".into()))?;
                let server = ShmServer::start(path, grants.clone()).map_err(failed)?;
                (Server::Shm { _server: server }, address.clone())
            }
            PortKind::Udp => {
                let server = serve_udp(address, options, &grants).map_err(failed)?;
                let local = address.at(server.local_addr());
                (Server::Udp { _server: server }, local)
            }
            PortKind::Verbs => {
                let verbs = |error| listening(with_causes(&error));
                let device = Device::open(None).map_err(verbs)?;
                let server = VerbsServer::start(device, address.resolve()?, grants.clone());
                let server = server.map_err(verbs)?;
                let local = address.at(server.local_addr());
                (Server::Verbs { _server: server }, local)
            }
        };
        let len_bytes = slabs * SLAB_BYTES;
        Ok(Self { server: Owned::new(server)?, grants, key, len_bytes, address })
    }

    /// Returns its address, with the port number that the system chose if 0 was given.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns its size in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Fills `into` from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Forked`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.check(offset, into.len())?;
        for (at, piece) in (offset..).step_by(PIECE_BYTES).zip(into.chunks_mut(PIECE_BYTES)) {
            self.grants.lock().read(REGION_GRANT, self.key, at, piece).map_err(refused)?;
        }
        Ok(())
    }

    /// Stores `from` from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Forked`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.check(offset, from.len())?;
        for (at, piece) in (offset..).step_by(PIECE_BYTES).zip(from.chunks(PIECE_BYTES)) {
            self.grants.lock().write(REGION_GRANT, self.key, at, piece).map_err(refused)?;
        }
        Ok(())
    }

    /// Adds `add` to the little-endian number in the eight bytes at `offset`, atomically, wrapping
    /// around; returns the old value.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Unaligned`], [`Error::Forked`].
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Error> {
        self.atomic(offset, Atomic::FetchAdd(add))
    }

    /// Replaces the eight bytes at `offset` by `new` if they equal `expected`, atomically; returns
    /// the old value.
    ///
    /// # Errors
    /// Those of [`LentRegion::fetch_add`].
    pub fn compare_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, Error> {
        self.atomic(offset, Atomic::CompareSwap { expected, new })
    }

    fn atomic(&self, offset: u64, atomic: Atomic) -> Result<u64, Error> {
        self.check(offset, 8)?;
        check_aligned(offset)?;
        self.grants.lock().atomic(REGION_GRANT, self.key, offset, atomic).map_err(refused)
    }

    fn check(&self, offset: u64, len: usize) -> Result<(), Error> {
        self.server.get()?;
        check_range(offset, len, self.len_bytes)
    }
}

fn serve_udp(
    address: &Address,
    options: &Options,
    grants: &SharedGrants,
) -> Result<UdpServer, PortError> {
    let at = address.resolve().map_err(|_| PortError::Closed)?;
    let keys = options.seal().map(|key| Arc::new(key.secret()) as Arc<dyn SealKeys + Send + Sync>);
    serve_region_udp(at, keys, grants)
}

/// Memory of another program. Calls block: until the access is carried out, or for two seconds
/// without a sign of life of the lender.
///
/// One thread uses it at a time; connect again for another one.
#[derive(Debug)]
pub struct RemoteRegion {
    channels: Owned<Channels>,
    len_bytes: u64,
}

impl RemoteRegion {
    /// Connects to the region of `len_bytes` at `address`, and checks with one access that its
    /// lender answers. `len_bytes` is at most the lender's, and a multiple of 16 MiB.
    ///
    /// # Errors
    /// [`Error::Connect`] if no lender is there, it does not answer within
    /// [`Options::connect_timeout`], or it lends less; [`Error::Size`] for another size;
    /// [`Error::Unprotected`], [`Error::UnusedOption`], [`Error::Address`].
    pub fn connect(address: &Address, len_bytes: u64, options: &Options) -> Result<Self, Error> {
        options.check_protection(address)?;
        options.check_no_buffer(MEMORY)?;
        let start = Instant::now();
        let failed = |why: String| Error::Connect { address: address.to_string(), why };
        if len_bytes == 0 || !len_bytes.is_multiple_of(SLAB_BYTES) {
            return Err(Error::Size {
                what: MEMORY,
                len_bytes,
                bounds: "use a multiple of 16 MiB",
            });
        }
        let channels = match address.port() {
            PortKind::Shm => map_shm(address, len_bytes, options)?,
            PortKind::Udp => join_udp(address, len_bytes, options)?,
            PortKind::Verbs => join_verbs(address, len_bytes, options)?,
        };
        let mut region = Self { channels: Owned::new(channels)?, len_bytes };
        let tried = region.probe(options.connect_timeout.saturating_sub(start.elapsed()));
        let refused = tried.map_err(|error| match error {
            Error::Lost(_) | Error::TimedOut => {
                failed("no answer; start the lender first, and give both ends the same key".into())
            }
            error => failed(error.to_string()),
        })?;
        match refused {
            None => Ok(region),
            Some(Refusal::UnknownGrant) => {
                Err(failed("it carries messages, not lent memory".into()))
            }
            Some(Refusal::OutOfRange) => {
                Err(failed(format!("it lends less than {len_bytes} bytes")))
            }
            Some(refusal) => Err(failed(AccessError::Refused(refusal).to_string())),
        }
    }

    /// Reads the last byte within `timeout`: a lender with less refuses. Returns the refusal.
    fn probe(&mut self, timeout: Duration) -> Result<Option<Refusal>, Error> {
        let start = Instant::now();
        self.start_read(0, self.len_bytes - 1, 1)?;
        loop {
            let done = self.channels.get_mut()?.poll().map_err(Error::of_port)?;
            match done.map(|done| done.result) {
                Some(Ok(())) => return Ok(None),
                Some(Err(AccessError::Refused(refusal))) => return Ok(Some(refusal)),
                Some(Err(error)) => return Err(ChannelError::Failed(error).into()),
                None => {}
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(Error::TimedOut);
            }
            self.wait(left)?;
        }
    }

    /// Returns its size in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Fills `into` from `offset` on: by CRMA up to 4 KiB, by RDMA beyond.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Lost`] if the lender is gone, [`Error::Refused`],
    /// [`Error::Forked`]. After an error any part may have been read.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let channels = self.checked(offset, into.len())?;
        match into.len() {
            0 => Ok(()),
            1..=SINGLE_BYTES => Ok(channels.read(offset, into)?),
            _ => Ok(channels.rdma_read(offset, into)?),
        }
    }

    /// Stores `from` from `offset` on; the lender's memory has it when this returns.
    ///
    /// # Errors
    /// Those of [`RemoteRegion::read`].
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), Error> {
        let channels = self.checked(offset, from.len())?;
        match from.len() {
            0 => Ok(()),
            1..=SINGLE_BYTES => Ok(channels.write(offset, from)?),
            _ => Ok(channels.rdma_write(offset, from)?),
        }
    }

    /// Stores `from`, at most 4 KiB, at `offset` some time before the next [`RemoteRegion::fence`]
    /// returns, which reports errors.
    ///
    /// # Errors
    /// Those of [`RemoteRegion::read`].
    pub fn post(&mut self, offset: u64, from: &[u8]) -> Result<(), Error> {
        let channels = self.checked(offset, from.len())?;
        for (at, piece) in (offset..).step_by(SINGLE_BYTES).zip(from.chunks(SINGLE_BYTES)) {
            channels.post(at, piece)?;
        }
        Ok(())
    }

    /// Waits until every posted write has been carried out.
    ///
    /// # Errors
    /// The first error among them.
    pub fn fence(&mut self) -> Result<(), Error> {
        Ok(self.channels.get_mut()?.fence()?)
    }

    /// Adds `add` to the little-endian number in the eight bytes at `offset`, atomically, wrapping
    /// around; returns the old value.
    ///
    /// # Errors
    /// Those of [`RemoteRegion::read`]; [`Error::Unaligned`].
    pub fn fetch_add(&mut self, offset: u64, add: u64) -> Result<u64, Error> {
        check_aligned(offset)?;
        Ok(self.checked(offset, 8)?.fetch_add(offset, add)?)
    }

    /// Replaces the eight bytes at `offset` by `new` if they equal `expected`, atomically; returns
    /// the old value.
    ///
    /// # Errors
    /// Those of [`RemoteRegion::fetch_add`].
    pub fn compare_swap(&mut self, offset: u64, expected: u64, new: u64) -> Result<u64, Error> {
        check_aligned(offset)?;
        Ok(self.checked(offset, 8)?.compare_swap(offset, expected, new)?)
    }

    fn checked(&mut self, offset: u64, len: usize) -> Result<&mut Channels, Error> {
        check_range(offset, len, self.len_bytes)?;
        self.channels.get_mut()
    }
}

/// A completed access.
#[derive(Debug)]
pub struct Completed<'a> {
    /// Token of its start.
    pub token: u64,
    /// Bytes read, none of a write; or the error.
    pub bytes: Result<&'a [u8], Error>,
}

/// Polled accesses: many outstanding at once.
impl RemoteRegion {
    /// Starts a read of `len_bytes`, 1 to 4096; [`RemoteRegion::poll`] brings its bytes under
    /// `token`, which is below 2⁶³.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if too many are outstanding: poll first. Those of
    /// [`RemoteRegion::read`].
    pub fn start_read(&mut self, token: u64, offset: u64, len_bytes: u32) -> Result<(), Error> {
        let channels = self.checked(offset, len_bytes as usize)?;
        channels.start_read(token, offset, len_bytes).map_err(not_taken)
    }

    /// Starts a write of `from`, 1 to 4096 bytes.
    ///
    /// # Errors
    /// Those of [`RemoteRegion::start_read`].
    pub fn start_write(&mut self, token: u64, offset: u64, from: &[u8]) -> Result<(), Error> {
        let channels = self.checked(offset, from.len())?;
        channels.start_write(token, offset, from).map_err(not_taken)
    }

    /// Returns the next completed access, if any. Never waits.
    ///
    /// # Errors
    /// [`Error::Lost`], [`Error::Forked`] if no access will complete any more.
    pub fn poll(&mut self) -> Result<Option<Completed<'_>>, Error> {
        let completion = self.channels.get_mut()?.poll().map_err(Error::of_port)?;
        Ok(completion.map(|done| {
            let failed = |error| Error::from(ChannelError::Failed(error));
            Completed { token: done.token, bytes: done.result.map(|()| done.data).map_err(failed) }
        }))
    }

    /// Sleeps until there may be something to poll, or for `timeout`; may return earlier.
    ///
    /// # Errors
    /// Those of [`RemoteRegion::poll`].
    pub fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        self.channels.get_mut()?.wait(timeout_ns).map_err(Error::of_port)
    }
}

fn not_taken(error: FabricError) -> Error {
    ChannelError::NotTaken(error).into()
}

fn map_shm(address: &Address, len_bytes: u64, options: &Options) -> Result<Channels, Error> {
    let mut channels = ShmChannels::new(None).map_err(Error::of_port)?;
    channels.set_answer_timeout(options.connect_timeout);
    let path = address.path().unwrap_or("".as_ref());
    let mapped =
        channels.map_grant(0, REGION_LENDER, path, REGION_GRANT, grant_key(options), len_bytes);
    mapped.map_err(|error| match error {
        ChannelError::Port(PortError::LendsNothing) => Error::Connect {
            address: address.to_string(),
            why: "it carries messages, not lent memory".into(),
        },
        ChannelError::Port(error) => Error::connecting(address, error.into()),
        error => Error::Connect { address: address.to_string(), why: error.to_string() },
    })?;
    Ok(channels.into())
}

fn join_udp(address: &Address, len_bytes: u64, options: &Options) -> Result<Channels, Error> {
    let named = |number| options.seal().map(|key| key.sealed_as(number));
    let driver = join_region_udp(address.resolve()?, len_bytes, grant_key(options), named);
    let driver = driver.map_err(|error| match error {
        ChannelError::Port(error) => Error::connecting(address, error.into()),
        error => Error::Connect { address: address.to_string(), why: error.to_string() },
    })?;
    Ok(driver.into())
}

fn join_verbs(address: &Address, len_bytes: u64, options: &Options) -> Result<Channels, Error> {
    let failed = |error: venice_ports::verbs::VerbsError| Error::Connect {
        address: address.to_string(),
        why: with_causes(&error),
    };
    let device = Device::open(None).map_err(failed)?;
    let mut driver = VerbsDriver::new(&device, VerbsConfig::default()).map_err(failed)?;
    let at = address.resolve()?;
    driver.set_answer_limit(options.connect_timeout);
    let peer = driver.add_grant(at, REGION_GRANT, grant_key(options)).map_err(failed)?;
    driver.map_window(0, len_bytes, peer, 0).map_err(|error| Error::Connect {
        address: address.to_string(),
        why: format!("it lends less: {error}"),
    })?;
    Ok(VerbsChannels::new(driver).map_err(failed)?.into())
}

/// Returns the key of accesses: derived from the secret of both ends, if there is one.
fn grant_key(options: &Options) -> GrantKey {
    options.key.map_or(GrantKey(0), |key| key.grant_key())
}

fn check_range(offset: u64, len: usize, size_bytes: u64) -> Result<(), Error> {
    let len_bytes = len as u64;
    let is_inside = offset.checked_add(len_bytes).is_some_and(|end| end <= size_bytes);
    if is_inside { Ok(()) } else { Err(Error::OutOfRange { offset, len_bytes, size_bytes }) }
}

fn check_aligned(offset: u64) -> Result<(), Error> {
    if offset.is_multiple_of(8) { Ok(()) } else { Err(Error::Unaligned(offset)) }
}

fn refused(refusal: Refusal) -> Error {
    Error::Refused(AccessError::Refused(refusal).to_string())
}
