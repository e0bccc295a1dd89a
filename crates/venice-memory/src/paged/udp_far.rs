//! Far memory over UDP: CRMA reads and writes of pages and their parts.

pub(super) mod wire;

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::Duration;

use venice_fabric::{
    AccessError, Atomic, DownReason, FabricError, InitiatorConfig, PeerIndex, PeerState, Refusal,
};
use venice_ports::random_u64;
use venice_ports::udp::{UdpDriver, unspecified_like};
use venice_wire::{GrantId, GrantKey, NodeId, SLAB_BYTES};

use super::descriptors::Descriptors;
use super::framed::{Donors, Rejected, RequestError};
use super::run_block::{Donor, Fate, MAX_REPLICAS, Replica, RunBlockMap};
use super::sys::{Errno, SysResult};
use super::transfer::{Words, copy_bytes};
use wire::Wire;

/// One thread's links to the donors.
pub struct UdpDonors {
    wire: Wire,
    /// The peer of each donor; `None`: not needed yet.
    peers: Vec<Option<PeerIndex>>,
    /// The peer that each replica is mapped to.
    mapped: Vec<Option<PeerIndex>>,
}

impl UdpDonors {
    /// Opens a socket and starts the links to all donors of the run.
    ///
    /// # Errors
    /// The kernel's error; `EINVAL` if a donor's address is invalid.
    pub fn open(block: &RunBlockMap, descriptors: &Descriptors) -> SysResult<UdpDonors> {
        let first = block.donors().first().ok_or(Errno::EINVAL)?;
        let first: SocketAddr = first.udp_address().parse().map_err(|_| Errno::EINVAL)?;
        let node = NodeId(block.node.load(std::sync::atomic::Ordering::Relaxed));
        let seed = random_u64().map_err(|errno| Errno(errno.raw_os_error()))?;
        let mut config = InitiatorConfig::new(node, seed);
        config.max_windows = config.max_windows.max(MAX_REPLICAS as u32);
        // Each buffer is a page of the program's budget, and single pages need no more.
        config.link.window = 64;
        // The Monitor Node ensures that all nodes of a rack protect their datagrams, or none.
        let is_sealed = block.donors()[0].seal().is_some();
        let local = unspecified_like(first);
        let made = if is_sealed {
            UdpDriver::sealed(local, config)
        } else {
            UdpDriver::new(local, config)
        };
        let mut driver = made.map_err(|_| Errno::EINVAL)?;
        // If there is no room above, the descriptors stay where they are.
        let _ = driver.keep_fd_above(descriptors.lowest());
        driver.fds().iter().for_each(|fd| descriptors.add(fd.as_raw_fd()));
        let mut far = UdpDonors::over(Wire::Udp(Box::new(driver)));
        for (replica, entry) in block.replicas().iter().enumerate() {
            let is_at_donor = block.is_readable(entry) && !block.is_disk_replica(replica);
            if is_at_donor && !far.reach(block, replica) {
                return Err(Errno::EINVAL);
            }
        }
        Ok(far)
    }

    /// Creates it over a wire, without links.
    pub(super) fn over(wire: Wire) -> UdpDonors {
        UdpDonors { wire, peers: Vec::new(), mapped: Vec::new() }
    }

    /// The descriptor to poll for arrivals.
    pub fn fd(&self) -> i32 {
        self.wire.fd()
    }

    /// Sets the timer for the links' next time-out, and returns the descriptor to poll for it. A
    /// short time-out of `poll` itself would cost far more than the round trip.
    pub fn arm_timer(&mut self) -> i32 {
        self.wire.arm_timer()
    }

    fn peer(&mut self, block: &RunBlockMap, index: usize) -> Option<PeerIndex> {
        if self.peers.len() <= index {
            self.peers.resize(index + 1, None);
        }
        if self.peers[index].is_none_or(|peer| self.lacks_answers(peer)) {
            block.donors()[index].note_refusal(self.is_refused(index));
            let known = self.peer_of_the_same(block, index);
            self.peers[index] = known.or_else(|| self.wire.add_peer(&block.donors()[index]));
        }
        self.peers[index]
    }

    /// True if the donor had no link free.
    fn is_refused(&mut self, index: usize) -> bool {
        let Some(peer) = self.peers[index] else { return false };
        self.wire.initiator().peer_state(peer) == PeerState::Down { reason: DownReason::NoLinkFree }
    }

    /// True if the link is down because answers are missing. A new link may get them.
    fn lacks_answers(&mut self, peer: PeerIndex) -> bool {
        match self.wire.initiator().peer_state(peer) {
            PeerState::Down { reason } => fault_of(reason) == RequestError::NoAnswer,
            PeerState::Connecting | PeerState::Up => false,
        }
    }

    /// Returns the live peer of another grant at the same donor. Without protection a datagram is
    /// attributed by its address alone, so several grants of a donor share one peer.
    fn peer_of_the_same(&mut self, block: &RunBlockMap, index: usize) -> Option<PeerIndex> {
        let place = |donor: &Donor| {
            (donor.udp_address(), donor.node.load(std::sync::atomic::Ordering::Relaxed))
        };
        let donors = block.donors();
        if donors[index].seal().is_some() {
            return None;
        }
        let wanted = place(&donors[index]);
        let known = donors.iter().zip(&self.peers).filter(|(donor, _)| !donor.is_gone());
        let mut known = known.filter_map(|(donor, peer)| peer.filter(|_| place(donor) == wanted));
        let initiator = self.wire.initiator();
        known.find(|&peer| !matches!(initiator.peer_state(peer), PeerState::Down { .. }))
    }
}

impl Donors for UdpDonors {
    fn reach(&mut self, block: &RunBlockMap, replica: usize) -> bool {
        if let Some(&Some(peer)) = self.mapped.get(replica) {
            if !self.lacks_answers(peer) {
                return true;
            }
            self.mapped[replica] = None;
            let _ = self.wire.initiator().unmap_window(replica as u64 * SLAB_BYTES);
        }
        let at = block.replicas()[replica].at();
        let Some(peer) = self.peer(block, at.donor) else { return false };
        let mapped = self.wire.initiator().map_window(
            replica as u64 * SLAB_BYTES,
            SLAB_BYTES,
            peer,
            at.remote_addr,
            GrantId(at.grant),
            GrantKey(at.key),
        );
        if self.mapped.len() <= replica {
            self.mapped.resize(replica + 1, None);
        }
        self.mapped[replica] = mapped.is_ok().then_some(peer);
        mapped.is_ok()
    }

    fn is_up(&mut self, replica: usize) -> bool {
        let peer = self.mapped.get(replica).copied().flatten();
        peer.is_some_and(|peer| self.wire.initiator().peer_state(peer) == PeerState::Up)
    }

    fn read(&mut self, token: u64, address: u64, len_bytes: u32) -> Result<(), Rejected> {
        let now_ns = self.now_ns();
        self.wire.initiator().read(now_ns, token, address, len_bytes).map_err(rejected)
    }

    fn write(&mut self, token: u64, address: u64, bytes: &[u8]) -> Result<(), Rejected> {
        let now_ns = self.now_ns();
        self.wire.initiator().write(now_ns, token, address, bytes).map_err(rejected)
    }

    fn atomic(&mut self, token: u64, address: u64, atomic: Atomic) -> Result<(), Rejected> {
        let (now_ns, initiator) = (self.now_ns(), self.wire.initiator());
        let taken = match atomic {
            Atomic::FetchAdd(add) => initiator.fetch_add(now_ns, token, address, add),
            Atomic::CompareSwap { expected, new } => {
                initiator.compare_swap(now_ns, token, address, expected, new)
            }
        };
        taken.map_err(rejected)
    }

    fn next(&mut self, buffer: &mut Words) -> Option<(u64, Result<(), RequestError>)> {
        let completion = self.wire.initiator().poll_completion()?;
        if completion.result.is_ok() {
            copy_bytes(buffer, completion.data);
        }
        Some((completion.token, completion.result.map_err(fault_of_access)))
    }

    fn flush(&mut self) {
        self.wire.pump();
    }

    /// Processes revocations: a donor that revoked its grant is lost, as if it had died.
    fn attend(&mut self, block: &RunBlockMap) {
        self.flush();
        while let Some(revoked) = self.wire.initiator().poll_revoked() {
            let is_of_it = |replica: &&Replica| replica.at().grant == revoked.grant.0;
            if let Some(replica) = block.replicas().iter().find(is_of_it) {
                block.donors()[replica.donor()].lose(Fate::Revoked);
            }
        }
    }

    fn turn(&mut self) {
        self.wire.turn();
    }

    fn now_ns(&self) -> u64 {
        self.wire.now_ns()
    }

    fn rest(&mut self, time: Duration) {
        self.wire.rest(time);
    }
}

fn rejected(error: FabricError) -> Rejected {
    match error {
        FabricError::WouldBlock => Rejected::Full,
        // The mapping is gone once no request to the revoked grant is outstanding.
        FabricError::Revoked { .. } | FabricError::NotMapped { .. } => {
            Rejected::Failed(RequestError::Gone(Fate::Revoked))
        }
        FabricError::PeerDown(reason) => Rejected::Failed(fault_of(reason)),
        _ => Rejected::Failed(RequestError::Gone(Fate::Died)),
    }
}

/// The fault that a failed access shows.
fn fault_of_access(error: AccessError) -> RequestError {
    match error {
        AccessError::Refused(Refusal::UnknownGrant) => RequestError::Gone(Fate::Revoked),
        AccessError::Revoked | AccessError::NotMapped => RequestError::Gone(Fate::Revoked),
        AccessError::Refused(_) => RequestError::Gone(Fate::Died),
        AccessError::PeerDown(reason) => fault_of(reason),
    }
}

/// The fault that the end of a link shows.
fn fault_of(reason: DownReason) -> RequestError {
    match reason {
        DownReason::NoAnswer | DownReason::Silent | DownReason::LinkLost => RequestError::NoAnswer,
        DownReason::PortClosed | DownReason::Closed | DownReason::NoLinkFree => {
            RequestError::NoAnswer
        }
        DownReason::Restarted | DownReason::Protocol | DownReason::Incompatible => {
            RequestError::Gone(Fate::Died)
        }
    }
}
