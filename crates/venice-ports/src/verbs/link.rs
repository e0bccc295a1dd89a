//! One grant as its recipient reaches it: a queue pair joined to the donor's, the keys of the
//! slabs, and the connection that tells when it is over.

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

/// Reads and atomics under way at once.
const READS: i32 = 32;

/// See the module.
#[derive(Debug)]
pub(super) struct Link {
    pub pair: QueuePair,
    /// The connection; it is open as long as the grant is.
    pub stream: Option<OwnedFd>,
    /// By slab.
    pub keys: Vec<u32>,
    /// Requests that may still be posted.
    pub room: u32,
    /// Reads and atomics posted and not completed.
    pub reads: u32,
    /// Why it is over.
    down: Option<AccessError>,
}

/// Where a grant is, and what for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub address: SocketAddr,
    pub grant: GrantId,
    pub key: GrantKey,
    /// How long its donor may take to answer, registration of its slabs included.
    pub limit_ns: u64,
    /// Where the connection's descriptor is to be, if there is room.
    pub lowest_fd: RawFd,
}

/// Where a part of a grant is: an address the donor's device knows, and the key for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub addr: u64,
    pub rkey: u32,
    /// How many bytes from there on have the same key.
    pub room_bytes: u64,
}

impl Link {
    /// One that leads nowhere yet.
    pub(super) fn vacant(pair: QueuePair) -> Self {
        let (room, down) = (pair.depth(), Some(AccessError::PeerDown(DownReason::Closed)));
        Self { pair, stream: None, keys: Vec::new(), room, reads: 0, down }
    }

    /// Whether it leads nowhere, and nothing is under way on it.
    pub(super) fn is_vacant(&self) -> bool {
        self.down.is_some() && self.room == self.pair.depth() && self.reads == 0
    }

    /// Joins a vacant one to a donor. It makes no memory of the C library's.
    pub(super) fn connect(
        &mut self,
        wanted: &Wanted,
        addresses: &Addresses,
    ) -> Result<(), VerbsError> {
        assert!(self.is_vacant(), "a queue pair has one peer at a time");
        let Wanted { address, grant, key, limit_ns, lowest_fd } = *wanted;
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

    /// Length of the grant in bytes.
    pub(super) fn grant_bytes(&self) -> u64 {
        self.keys.len() as u64 * SLAB_BYTES
    }

    /// Where `addr` of the grant is; `None` beyond its end.
    pub(super) fn place(&self, addr: u64) -> Option<Place> {
        let rkey = *self.keys.get(usize::try_from(addr / SLAB_BYTES).ok()?)?;
        Some(Place { addr, rkey, room_bytes: SLAB_BYTES - addr % SLAB_BYTES })
    }

    /// Why it is over, if it is.
    pub(super) fn down(&self) -> Option<AccessError> {
        self.down
    }

    /// It is over. What is under way completes with errors; the first reason counts.
    pub(super) fn fail(&mut self, reason: AccessError) {
        if self.down.is_none() {
            self.down = Some(reason);
            self.pair.cut();
        }
    }

    /// The connection has something to tell: only ever that it is over.
    pub(super) fn listen(&mut self) {
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

    /// What a completion's status means; the link is over with every error.
    pub(super) fn judge(&mut self, status: i32) -> Result<(), AccessError> {
        let reason = match status {
            constants::WC_SUCCESS => return Ok(()),
            // The device knows no such memory (any more): the range was checked here, so it is
            // the grant that has ended.
            constants::WC_REM_ACCESS_ERR => AccessError::Refused(Refusal::UnknownGrant),
            constants::WC_REM_INV_REQ_ERR => AccessError::Refused(Refusal::Malformed),
            constants::WC_RETRY_EXC_ERR => AccessError::PeerDown(DownReason::Silent),
            // Flushed, after an error of another access or an end told by the connection.
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
