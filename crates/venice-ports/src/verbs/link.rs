//! One grant at its recipient: a queue pair joined to the donor's, the keys of the slabs, and the
//! connection that reports its end.

use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};

use rustix::io::Errno;
use venice_fabric::{AccessError, DownReason, Refusal};
use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

use super::VerbsError;
use super::abi::constants;
use super::admission::first_packet;
use super::device::Addresses;
use super::queue::{QueuePair, QueuePairAddress};
use super::set_up::{Hello, REVOKED, WELCOME_LEN, Welcome};
use super::side_channel::SideChannel;

/// Most reads and atomics outstanding at once.
const READS: i32 = 32;

/// Link of one grant; see the module.
#[derive(Debug)]
pub(super) struct Link {
    pub pair: QueuePair,
    /// Connection to the donor; it is open as long as the grant lives.
    pub stream: Option<OwnedFd>,
    /// Keys by slab.
    pub keys: Vec<u32>,
    /// Requests that may still be posted.
    pub room: u32,
    /// Reads and atomics posted and not completed.
    pub reads: u32,
    /// Error that ended the link.
    down: Option<AccessError>,
}

/// Target of a connection, and its limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkTarget {
    pub address: SocketAddr,
    pub grant: GrantId,
    pub key: GrantKey,
    /// Longest time of the donor to answer, registration of its slabs included, in nanoseconds.
    pub limit_ns: u64,
    /// Lowest descriptor number of the connection, if there is room.
    pub lowest_fd: RawFd,
}

/// Place of a part of a grant: an address of the donor's device, and the key for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub addr: u64,
    pub rkey: u32,
    /// Bytes from there on under the same key.
    pub room_bytes: u64,
}

impl Link {
    /// Makes a link without a donor.
    pub(super) fn vacant(pair: QueuePair) -> Self {
        let (room, down) = (pair.depth(), Some(AccessError::PeerDown(DownReason::Closed)));
        Self { pair, stream: None, keys: Vec::new(), room, reads: 0, down }
    }

    /// True if it has no donor, and nothing is outstanding on it.
    pub(super) fn is_vacant(&self) -> bool {
        self.down.is_some() && self.room == self.pair.depth() && self.reads == 0
    }

    /// Joins a vacant link to a donor. Takes no memory from the C library.
    pub(super) fn connect(
        &mut self,
        target: &LinkTarget,
        addresses: &Addresses,
    ) -> Result<(), VerbsError> {
        assert!(self.is_vacant(), "a queue pair has one peer at a time");
        let LinkTarget { address, grant, key, limit_ns, lowest_fd } = *target;
        self.pair.reset()?;
        let channel = SideChannel::connect(address, limit_ns, lowest_fd)?;
        let ours = QueuePairAddress {
            port: addresses.of(channel.local_ip()?)?,
            number: self.pair.number(),
            first_packet: first_packet()?,
            reads: self.pair.limits().max_qp_init_rd_atom.clamp(1, READS) as u8,
        };
        channel.send(&Hello { grant, key, address: ours }.encode())?;
        let (theirs, keys) = receive_welcome(&channel)?;
        self.pair.connect(&ours, &theirs, false)?;
        (self.stream, self.keys, self.down) = (Some(channel.into_fd()), keys, None);
        Ok(())
    }

    /// Returns the length of the grant in bytes.
    pub(super) fn grant_bytes(&self) -> u64 {
        self.keys.len() as u64 * SLAB_BYTES
    }

    /// Returns the place of `addr` of the grant; `None` beyond its end.
    pub(super) fn place(&self, addr: u64) -> Option<Place> {
        let rkey = *self.keys.get(usize::try_from(addr / SLAB_BYTES).ok()?)?;
        Some(Place { addr, rkey, room_bytes: SLAB_BYTES - addr % SLAB_BYTES })
    }

    /// Returns the error that ended the link, if any.
    pub(super) fn down(&self) -> Option<AccessError> {
        self.down
    }

    /// Ends the link. Outstanding requests complete with errors; the first reason counts.
    pub(super) fn fail(&mut self, reason: AccessError) {
        if self.down.is_none() {
            self.down = Some(reason);
            self.pair.cut();
        }
    }

    /// Reads an event of the connection, which always reports the end of the grant.
    pub(super) fn read_event(&mut self) {
        let Some(stream) = &self.stream else { return };
        let mut word = [0];
        match rustix::io::read(stream, &mut word) {
            Ok(1) if word[0] == REVOKED => self.fail(AccessError::Refused(Refusal::UnknownGrant)),
            Ok(0) => self.fail(AccessError::PeerDown(DownReason::LinkLost)),
            Ok(_) => self.fail(AccessError::PeerDown(DownReason::Protocol)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.fail(AccessError::PeerDown(DownReason::LinkLost)),
        }
    }

    /// Translates a completion's status; every error ends the link.
    pub(super) fn check_status(&mut self, status: i32) -> Result<(), AccessError> {
        let reason = match status {
            constants::WC_SUCCESS => return Ok(()),
            // The device has no such memory, or no longer: the range was checked here, which means
            // that the grant has ended.
            constants::WC_REM_ACCESS_ERR => AccessError::Refused(Refusal::UnknownGrant),
            constants::WC_REM_INV_REQ_ERR => AccessError::Refused(Refusal::Malformed),
            constants::WC_RETRY_EXC_ERR => AccessError::PeerDown(DownReason::Silent),
            // Flushed, after an error of another access or an end that the connection reported.
            constants::WC_WR_FLUSH_ERR => AccessError::PeerDown(DownReason::LinkLost),
            _ => AccessError::PeerDown(DownReason::Protocol),
        };
        self.fail(reason);
        match status {
            constants::WC_WR_FLUSH_ERR => Err(self.down.unwrap_or(reason)),
            _ => Err(reason),
        }
    }
}

fn receive_welcome(channel: &SideChannel) -> Result<(QueuePairAddress, Vec<u32>), VerbsError> {
    let address = channel.address();
    let mut front = [0; WELCOME_LEN];
    channel.receive(&mut front)?;
    match Welcome::decode(&front) {
        Ok(Welcome::Granted { slabs, address: theirs }) => {
            let mut bytes = vec![0; slabs as usize * 4];
            channel.receive(&mut bytes)?;
            let (keys, _) = bytes.as_chunks();
            Ok((theirs, keys.iter().map(|key| u32::from_le_bytes(*key)).collect()))
        }
        Ok(Welcome::Refused { text_len }) => {
            let mut text = vec![0; text_len as usize];
            channel.receive(&mut text)?;
            let reason = String::from_utf8_lossy(&text).into_owned();
            Err(VerbsError::Refused { address, reason })
        }
        Err(what) => Err(VerbsError::Protocol { address, what }),
    }
}
