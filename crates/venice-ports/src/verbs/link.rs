//! One grant as its recipient reaches it: a queue pair joined to the donor's, the keys of the
//! slabs, and the connection that tells when it is over.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use venice_fabric::{AccessError, DownReason, Refusal};
use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

use super::VerbsError;
use super::abi::constants;
use super::admission::first_packet;
use super::memory::Domain;
use super::queue::{CompletionQueue, QueuePair, QueuePairAddress};
use super::set_up::{Hello, REVOKED, WELCOME_LEN, Welcome};
use super::silence::watch_over;

/// How long a donor that lives may take to answer, registration of its slabs included.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Reads and atomics under way at once.
const READS: i32 = 32;

/// See the module.
#[derive(Debug)]
pub(super) struct Link {
    pub pair: QueuePair,
    pub stream: TcpStream,
    /// By slab.
    pub keys: Vec<u32>,
    /// Requests that may still be posted.
    pub room: u32,
    /// Reads and atomics posted and not completed.
    pub reads: u32,
    /// Why it is over.
    down: Option<AccessError>,
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
    pub(super) fn connect(
        domain: &Arc<Domain>,
        completions: &Arc<CompletionQueue>,
        depth: u32,
        address: SocketAddr,
        grant: GrantId,
        key: GrantKey,
    ) -> Result<Self, VerbsError> {
        let failed = |step| move |source| VerbsError::SideChannel { address, step, source };
        let mut stream = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT)
            .map_err(failed("connecting to the donor"))?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(failed("setting a time-out"))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(failed("setting a time-out"))?;
        watch_over(&stream);
        let ip = stream.local_addr().map_err(failed("asking for its address"))?.ip();
        let pair = QueuePair::new(domain, completions, depth)?;
        let device = domain.device();
        let ours = QueuePairAddress {
            port: device.address(ip)?,
            number: pair.number(),
            first_packet: first_packet()?,
            reads: device.limits().max_qp_init_rd_atom.clamp(1, READS) as u8,
        };
        let hello = Hello { grant, key, address: ours };
        stream.write_all(&hello.encode()).map_err(failed("asking for a grant"))?;
        let (theirs, keys) = receive_welcome(&mut stream, address)?;
        pair.connect(&ours, &theirs, false)?;
        stream.set_nonblocking(true).map_err(failed("setting it up"))?;
        let room = pair.depth();
        Ok(Self { pair, stream, keys, room, reads: 0, down: None })
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
        let mut word = [0];
        // Not by the standard library: a pager's thread calls this.
        match rustix::io::read(&self.stream, &mut word) {
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

fn receive_welcome(
    stream: &mut TcpStream,
    address: SocketAddr,
) -> Result<(QueuePairAddress, Vec<u32>), VerbsError> {
    let failed = |source| VerbsError::SideChannel {
        address,
        step: "waiting for the donor's answer",
        source,
    };
    let mut front = [0; WELCOME_LEN];
    stream.read_exact(&mut front).map_err(failed)?;
    match Welcome::decode(&front) {
        Ok(Welcome::Granted { slabs, address: theirs }) => {
            let mut bytes = vec![0; slabs as usize * 4];
            stream.read_exact(&mut bytes).map_err(failed)?;
            let (keys, _) = bytes.as_chunks();
            Ok((theirs, keys.iter().map(|key| u32::from_le_bytes(*key)).collect()))
        }
        Ok(Welcome::Refused { text_len }) => {
            let mut text = vec![0; text_len as usize];
            stream.read_exact(&mut text).map_err(failed)?;
            let reason = String::from_utf8_lossy(&text).into_owned();
            Err(VerbsError::Refused { address, reason })
        }
        Err(what) => Err(VerbsError::Protocol { address, what }),
    }
}
