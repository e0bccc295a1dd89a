//! The recipient's side of a region.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use venice_fabric::AccessError;
use venice_memory::region::{REGION_GRANT, join_region_udp};
use venice_ports::PortError;
use venice_ports::channels::{ChannelError, Channels, WatchedGrant};
use venice_rack::types::{Endpoint, ServiceAccess};
use venice_service::boot_id;
use venice_wire::{GrantKey, NodeSecret, PortId, SLAB_BYTES};

use super::ticket::{Secrets, Ticket};
use super::{RegionError, RegionSlot, SharedBytes};

/// Attempts to map a region whose host closes the connection.
const ATTEMPTS: usize = 16;
/// Longest single access in bytes; longer ones are bulk transfers.
const SINGLE_BYTES: usize = 4096;
/// Bytes of a bulk transfer that are moved under one lock: others get their turn in between.
const TURN_BYTES: usize = 8 << 20;

/// Memory of a service host, reached one-sidedly by any number of threads.
///
/// Over shm it is mapped: accesses are copies, and [`Region::mapped`] gives it away in place. Over
/// udp they are CRMA up to 4 KiB and RDMA beyond, one at a time. A host that is gone is an error: over
/// shm at once, over udp within two seconds. Accesses of different threads, and of the host, take
/// effect in any order and in pieces; a word ([`Region::store_word`]) announces what was written
/// before it.
#[derive(Debug)]
pub struct Region {
    way: Way,
    len_bytes: u64,
    /// Socket or address, for messages.
    address: String,
}

#[derive(Debug)]
enum Way {
    Shm(WatchedGrant),
    Udp { channels: Box<Mutex<Channels>>, at: SocketAddr, secrets: Secrets },
}

impl Region {
    /// Opens the region of `bytes`, rounded up to 16 MiB as its host did, at the first endpoint of
    /// the service that is reachable from here. The host answers within `timeout`; `udp_port` is its
    /// port for this region ([`super::RegionHost::udp_port`]).
    ///
    /// # Errors
    /// [`RegionError::NoEndpoint`]; [`RegionError::Empty`]; [`RegionError::Open`] for the last
    /// endpoint tried: the host is absent, its region has another size, or the secret is wrong;
    /// [`RegionError::Silent`].
    pub fn open(
        access: &ServiceAccess,
        udp_port: Option<u16>,
        bytes: u64,
        timeout: Duration,
    ) -> Result<Self, RegionError> {
        Self::open_as(access, RegionSlot::First, udp_port, bytes, timeout)
    }

    /// Opens the second region of a host ([`super::RegionHost::serve_beside`]), as [`Region::open`].
    ///
    /// # Errors
    /// The errors of [`Region::open`].
    pub fn open_beside(
        access: &ServiceAccess,
        udp_port: Option<u16>,
        bytes: u64,
        timeout: Duration,
    ) -> Result<Self, RegionError> {
        Self::open_as(access, RegionSlot::Second, udp_port, bytes, timeout)
    }

    fn open_as(
        access: &ServiceAccess,
        slot: RegionSlot,
        udp_port: Option<u16>,
        bytes: u64,
        timeout: Duration,
    ) -> Result<Self, RegionError> {
        let len_bytes = bytes.checked_next_multiple_of(SLAB_BYTES).filter(|len| *len > 0);
        let len_bytes = len_bytes.ok_or(RegionError::Empty)?;
        let offered: Vec<_> = access.endpoints.iter().map(Endpoint::to_string).collect();
        let mut last = RegionError::NoEndpoint { offered: offered.join(", ") };
        for endpoint in &access.endpoints {
            let opened = match endpoint.port {
                PortId::Ring if endpoint.extra == boot_id().into_bytes() => {
                    Self::map((access, slot), endpoint, len_bytes, timeout)
                }
                PortId::Udp => match udp_port {
                    Some(port) => Self::join((access, slot), endpoint, port, len_bytes, timeout),
                    None => continue,
                },
                PortId::Ring | PortId::Shm | PortId::Verbs => continue,
            };
            match opened {
                Ok(region) => return Ok(region),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn map(
        (access, slot): (&ServiceAccess, RegionSlot),
        endpoint: &Endpoint,
        len_bytes: u64,
        timeout: Duration,
    ) -> Result<Self, RegionError> {
        let path = Path::new(&endpoint.address).with_file_name(slot.socket());
        let address = path.display().to_string();
        let key = slot.key(&access.secret);
        let mut attempts = 1;
        loop {
            match WatchedGrant::open(&path, REGION_GRANT, key, len_bytes, timeout) {
                Ok(grant) => return Ok(Self { way: Way::Shm(grant), len_bytes, address }),
                // Pushed out by a flood of strangers.
                Err(ChannelError::Port(PortError::Closed)) if attempts < ATTEMPTS => attempts += 1,
                Err(source) => return Err(RegionError::Open { address, source }),
            }
        }
    }

    fn join(
        (access, slot): (&ServiceAccess, RegionSlot),
        endpoint: &Endpoint,
        port: u16,
        len_bytes: u64,
        timeout: Duration,
    ) -> Result<Self, RegionError> {
        let offered = || RegionError::NoEndpoint { offered: endpoint.to_string() };
        let host: SocketAddr = endpoint.address.parse().map_err(|_| offered())?;
        let seal = match &endpoint.extra[..] {
            [] => None,
            key => Some(slot.seal(access.grant, key.try_into().map_err(|_| offered())?)),
        };
        let at = SocketAddr::new(host.ip(), port);
        let failed = |source| RegionError::Open { address: at.to_string(), source };
        let key: GrantKey = slot.key(&access.secret);
        let until = Instant::now() + timeout;
        let channels = loop {
            let driver = join_region_udp(at, len_bytes, key, |_| seal).map_err(failed)?;
            let mut channels = Channels::from(driver);
            let left = until.saturating_duration_since(Instant::now());
            if probe(&mut channels, len_bytes, left).map_err(failed)? {
                break channels;
            }
            // A link ends after two silent seconds: a busy host may be silent for longer.
            if Instant::now() >= until {
                return Err(RegionError::Silent { address: at.to_string() });
            }
        };
        let service_key = endpoint.extra[..].try_into().ok().map(NodeSecret);
        let secrets = Secrets { access: NodeSecret(access.secret), seal: service_key };
        let way = Way::Udp { channels: Box::new(Mutex::new(channels)), at, secrets };
        Ok(Self { way, len_bytes, address: at.to_string() })
    }

    /// Returns its size in bytes, a multiple of 16 MiB.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Returns the socket or the address of its host, for messages.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// True if the memory is mapped: [`Region::mapped`] returns its addresses.
    pub fn is_mapped(&self) -> bool {
        matches!(self.way, Way::Shm(_))
    }

    /// Returns the ticket of a number for bytes of the region, valid once its host has admitted it
    /// ([`super::RegionHost::admit`]); `None` over shm and beyond the end. Other hosts reach the
    /// region where this process does.
    pub fn ticket(&self, number: u64, offset: u64, len: u64) -> Option<Ticket> {
        let end = offset.checked_add(len).filter(|end| *end <= self.len_bytes)?;
        match &self.way {
            Way::Shm(_) => None,
            Way::Udp { at, secrets, .. } => Some(secrets.ticket(number, *at, offset..end)),
        }
    }

    /// Fills `into` from `offset` on.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], [`RegionError::Lost`], [`RegionError::Access`]. After an error
    /// any part may have been read.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), RegionError> {
        self.check(offset, into.len())?;
        match &self.way {
            Way::Shm(grant) => {
                // The range was checked.
                let _ = bytes_of(grant).read(offset, into);
                self.check_host(grant)
            }
            Way::Udp { channels, .. } if into.len() > SINGLE_BYTES => {
                let turns = (offset..).step_by(TURN_BYTES).zip(into.chunks_mut(TURN_BYTES));
                turns
                    .into_iter()
                    .try_for_each(|(at, turn)| self.done(lock(channels).rdma_read(at, turn)))
            }
            Way::Udp { .. } if into.is_empty() => Ok(()),
            Way::Udp { channels, .. } => self.done(lock(channels).read(offset, into)),
        }
    }

    /// Stores `from` at `offset`; the host's memory has it when this returns.
    ///
    /// # Errors
    /// The errors of [`Region::read`]. After an error any part may have been stored.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), RegionError> {
        self.check(offset, from.len())?;
        match &self.way {
            Way::Shm(grant) => {
                let _ = bytes_of(grant).write(offset, from);
                self.check_host(grant)
            }
            Way::Udp { channels, .. } if from.len() > SINGLE_BYTES => {
                let turns = (offset..).step_by(TURN_BYTES).zip(from.chunks(TURN_BYTES));
                turns
                    .into_iter()
                    .try_for_each(|(at, turn)| self.done(lock(channels).rdma_write(at, turn)))
            }
            Way::Udp { .. } if from.is_empty() => Ok(()),
            Way::Udp { channels, .. } => self.done(lock(channels).write(offset, from)),
        }
    }

    /// Stores `from`, of any length, some time before the next [`Region::fence`] returns, which
    /// reports errors too. For short writes in a row.
    ///
    /// # Errors
    /// The errors of [`Region::read`].
    pub fn post(&self, offset: u64, from: &[u8]) -> Result<(), RegionError> {
        self.check(offset, from.len())?;
        match &self.way {
            Way::Shm(_) => self.write(offset, from),
            Way::Udp { channels, .. } => {
                let mut channels = lock(channels);
                let parts = (offset..).step_by(SINGLE_BYTES).zip(from.chunks(SINGLE_BYTES));
                parts.into_iter().try_for_each(|(at, part)| self.done(channels.post(at, part)))
            }
        }
    }

    /// Waits until every posted write of all threads has been carried out.
    ///
    /// # Errors
    /// The first error among them.
    pub fn fence(&self) -> Result<(), RegionError> {
        match &self.way {
            Way::Shm(grant) => {
                std::sync::atomic::fence(Ordering::SeqCst);
                self.check_host(grant)
            }
            Way::Udp { channels, .. } => self.done(lock(channels).fence()),
        }
    }

    /// Returns the word at `offset`: a little-endian number, and with it all that the host wrote
    /// before it.
    ///
    /// # Errors
    /// The errors of [`Region::read`]; [`RegionError::Unaligned`].
    pub fn load_word(&self, offset: u64) -> Result<u64, RegionError> {
        self.check_word(offset)?;
        match &self.way {
            Way::Shm(grant) => {
                let bytes = bytes_of(grant);
                let word = bytes.word(offset).expect("range and alignment were checked");
                let word = u64::from_le(word.load(Ordering::Acquire));
                self.check_host(grant).map(|()| word)
            }
            Way::Udp { channels, .. } => {
                let mut word = [0; 8];
                self.done(lock(channels).read(offset, &mut word))?;
                Ok(u64::from_le_bytes(word))
            }
        }
    }

    /// Stores a word after all that was written before: a little-endian number.
    ///
    /// # Errors
    /// The errors of [`Region::load_word`].
    pub fn store_word(&self, offset: u64, word: u64) -> Result<(), RegionError> {
        self.check_word(offset)?;
        match &self.way {
            Way::Shm(grant) => {
                let bytes = bytes_of(grant);
                let at = bytes.word(offset).expect("range and alignment were checked");
                at.store(word.to_le(), Ordering::Release);
                self.check_host(grant)
            }
            Way::Udp { channels, .. } => {
                self.done(lock(channels).write(offset, &word.to_le_bytes()))
            }
        }
    }

    /// Returns the address of `len` bytes at `offset`, mapped as long as this value lives, even if
    /// the host is gone ([`Region::check_lost`]); `None` over udp and beyond the end. The host writes
    /// to it at any time: use raw copies and atomics, never references.
    pub fn mapped(&self, offset: u64, len: usize) -> Option<*mut u8> {
        match &self.way {
            Way::Shm(grant) => {
                self.check(offset, len).ok()?;
                bytes_of(grant).at(offset, len)
            }
            Way::Udp { .. } => None,
        }
    }

    /// Checks that the host lives, without asking it: over udp this is what the last access found.
    ///
    /// # Errors
    /// [`RegionError::Lost`].
    pub fn check_lost(&self) -> Result<(), RegionError> {
        match &self.way {
            Way::Shm(grant) => self.check_host(grant),
            Way::Udp { .. } => Ok(()),
        }
    }

    fn check_host(&self, grant: &WatchedGrant) -> Result<(), RegionError> {
        match grant.is_gone() {
            true => Err(RegionError::Lost { address: self.address.clone() }),
            false => Ok(()),
        }
    }

    fn done(&self, result: Result<(), ChannelError>) -> Result<(), RegionError> {
        result.map_err(|source| RegionError::of_access(&self.address, source))
    }

    fn check(&self, offset: u64, len: usize) -> Result<(), RegionError> {
        let (len_bytes, size_bytes) = (len as u64, self.len_bytes);
        match offset.checked_add(len_bytes) {
            Some(end) if end <= size_bytes => Ok(()),
            _ => Err(RegionError::OutOfRange { offset, len_bytes, size_bytes }),
        }
    }

    fn check_word(&self, offset: u64) -> Result<(), RegionError> {
        if !offset.is_multiple_of(8) {
            return Err(RegionError::Unaligned(offset));
        }
        self.check(offset, 8)
    }
}

fn lock(channels: &Mutex<Channels>) -> MutexGuard<'_, Channels> {
    // A panic in the middle of an access leaves channels that report it as an error.
    channels.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(unsafe_code, reason = "the memory is shared with the host")]
fn bytes_of(grant: &WatchedGrant) -> SharedBytes {
    // SAFETY: mapped as long as the grant, from a slab's boundary on; its slabs are sealed against
    // shrinking, and no reference to them is formed.
    unsafe { SharedBytes::new(grant.base(), grant.len_bytes()) }
}

/// Reads the last byte: a smaller region refuses. False if there is no answer within `timeout`.
pub(super) fn probe(
    channels: &mut Channels,
    len_bytes: u64,
    timeout: Duration,
) -> Result<bool, ChannelError> {
    let started = Instant::now();
    channels.start_read(0, len_bytes - 1, 1)?;
    loop {
        if let Some(done) = channels.poll()? {
            return match done.result {
                Err(AccessError::PeerDown(_)) => Ok(false),
                result => Ok(result.map(|()| true)?),
            };
        }
        let left = timeout.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Ok(false);
        }
        channels.wait(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX))?;
    }
}
