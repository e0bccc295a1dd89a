//! Tickets: the right of another host to reach a part of a region, until the recipient takes it
//! back. By one, a buffer goes from donor to donor without passing its recipient.
//!
//! Recipient and host derive the keys of a ticket from the secrets that they share, so that the host
//! learns only its number. It opens the slabs in which the part lies, and nothing else.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use venice_memory::donor::SharedGrants;
use venice_memory::region::{REGION_GRANT, access_key, join_region_udp_by};
use venice_ports::channels::Channels;
use venice_ports::seal::{SealKeys, SealedAs, node_key};
use venice_ports::udp::UdpSocket;
use venice_wire::{GrantId, GrantKey, KeyName, NodeSecret, SLAB_BYTES, SealKey};

use super::RegionError;
use super::recipient::probe;

/// Set in the ids of tickets' grants: no grant of a rack has it.
const MARK: u64 = 1 << 63;

/// A ticket, as its holder has it.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    /// Its number; the recipient chooses it.
    pub number: u64,
    /// Address of the region.
    pub address: SocketAddr,
    /// Length of what it opens, in bytes: whole slabs.
    pub window_bytes: u64,
    /// First byte of the part in there.
    pub start: u64,
    /// Key of accesses.
    pub key: u64,
    /// Key of datagrams; `None`: they are plain.
    pub seal: Option<[u8; 32]>,
}

// Without the keys.
impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { number, address, window_bytes, start, .. } = self;
        write!(f, "Ticket({number} at {address}, {start} of {window_bytes})")
    }
}

/// Secrets of a service from which tickets are made.
#[derive(Clone)]
pub(super) struct Secrets {
    /// Secret of the service.
    pub(super) access: NodeSecret,
    /// Key of the service's datagrams; `None`: they are plain.
    pub(super) seal: Option<NodeSecret>,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets")
    }
}

impl Secrets {
    /// Returns the ticket of this number for bytes of a region at `address`.
    pub(super) fn ticket(&self, number: u64, address: SocketAddr, part: Range<u64>) -> Ticket {
        let slabs = slabs_of(&part);
        let name = KeyName::Grant(grant_of(number));
        Ticket {
            number,
            address,
            window_bytes: slabs.len() as u64 * SLAB_BYTES,
            start: part.start - slabs.start as u64 * SLAB_BYTES,
            key: self.key_of(number).0,
            seal: self.seal.as_ref().map(|secret| node_key(secret, name).0),
        }
    }

    fn key_of(&self, number: u64) -> GrantKey {
        access_key(&self.access, grant_of(number))
    }
}

/// The tickets of a region at its host.
#[derive(Debug)]
pub(super) struct Tickets {
    pub(super) grants: SharedGrants,
    pub(super) secrets: Secrets,
}

impl Tickets {
    /// Makes a ticket valid; false if its number is taken, or the bytes are beyond the end.
    pub(super) fn admit(&self, number: u64, part: &Range<u64>) -> bool {
        let (id, key) = (grant_of(number), self.secrets.key_of(number));
        self.grants.lock().insert_part((id, key), REGION_GRANT, slabs_of(part))
    }

    /// Makes a ticket void.
    pub(super) fn revoke(&self, number: u64) {
        let id = grant_of(number);
        let mut grants = self.grants.lock();
        drop(grants.end(id));
        grants.forget(id);
    }
}

/// Keys of a region's datagrams: those of its recipient, and of tickets while they are valid.
pub(super) struct RegionKeys {
    pub(super) own: SealedAs,
    pub(super) service_key: NodeSecret,
    pub(super) grants: SharedGrants,
}

impl SealKeys for RegionKeys {
    fn key(&self, name: KeyName) -> Option<SealKey> {
        match name {
            KeyName::Grant(id) if id.0 & MARK != 0 => {
                self.grants.lock().contains(id).then(|| node_key(&self.service_key, name))
            }
            name => self.own.key(name),
        }
    }

    fn generation(&self) -> u64 {
        self.grants.generation()
    }
}

/// A part of another host's region, reached by a ticket.
#[derive(Debug)]
pub struct TicketReader {
    channels: Channels,
    ticket: Ticket,
}

impl TicketReader {
    /// Reaches it by a socket of this host, which is used for nothing else meanwhile. The other host
    /// answers within `timeout`.
    ///
    /// # Errors
    /// [`RegionError::Open`]; [`RegionError::Silent`].
    pub fn open(socket: UdpSocket, ticket: Ticket, timeout: Duration) -> Result<Self, RegionError> {
        let address = ticket.address.to_string();
        let failed = |source| RegionError::Open { address: address.clone(), source };
        let grant = grant_of(ticket.number);
        let (bytes, key) = (ticket.window_bytes, GrantKey(ticket.key));
        let seal =
            ticket.seal.map(|key| SealedAs { name: KeyName::Grant(grant), key: SealKey(key) });
        let driver = join_region_udp_by(socket, ticket.address, (grant, bytes, key), |_| seal);
        let mut channels = Channels::from(driver.map_err(failed)?);
        if !probe(&mut channels, bytes, timeout).map_err(failed)? {
            return Err(RegionError::Silent { address });
        }
        Ok(Self { channels, ticket })
    }

    /// Fills `into` from a byte of the part on.
    ///
    /// # Errors
    /// [`RegionError::Lost`], [`RegionError::Access`]: also beyond what the ticket opens, and once it
    /// is void.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), RegionError> {
        let at = self.ticket.start.saturating_add(offset);
        let read = self.channels.rdma_read(at, into);
        read.map_err(|source| RegionError::of_access(&self.ticket.address.to_string(), source))
    }
}

fn grant_of(number: u64) -> GrantId {
    GrantId(number | MARK)
}

/// Returns the slabs in which bytes lie.
fn slabs_of(part: &Range<u64>) -> Range<usize> {
    (part.start / SLAB_BYTES) as usize..part.end.div_ceil(SLAB_BYTES) as usize
}
