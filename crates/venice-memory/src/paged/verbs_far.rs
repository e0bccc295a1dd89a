//! Far memory by an RDMA device: one-sided reads and writes of pages and their parts.
//!
//! rdma-core is a C library. It is set up before the program runs, and allocates its tables then
//! with the program's `malloc`; that memory stays local. Posting and polling allocate nothing.
//! Queue pairs for later donors are made in advance ([`venice_wire::PortCapabilities::most_grants`]).

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use venice_fabric::{Atomic, FabricError, PeerIndex};
use venice_ports::verbs::{Device, VerbsConfig, VerbsDriver, VerbsError};
use venice_wire::{GrantId, GrantKey, PortId, SLAB_BYTES};

use super::descriptors::Descriptors;
use super::framed::{Donors, Rejected, RequestError};
use super::run_block::{Fate, MAX_COPIES, RunBlockMap};
use super::sys;
use super::transfer::{MAX_IN_FLIGHT, Words, copy_bytes};

/// Longest wait for a completion, nanoseconds.
const WAIT_NS: u64 = 5_000_000;
/// Time until a donor that did not answer is contacted again, nanoseconds.
const RETRY_AFTER_NS: u64 = 100_000_000;

/// One thread's queue pairs to the donors.
pub struct VerbsDonors {
    driver: VerbsDriver,
    descriptors: Arc<Descriptors>,
    /// The peer of each grant.
    peers: Vec<(u64, PeerIndex)>,
    /// The connection of each replica; `None`: not needed yet, or no longer.
    connections: Vec<Option<Connection>>,
    /// A descriptor that is always readable, for a sleep that must return at once.
    always: std::os::fd::OwnedFd,
    is_armed: bool,
}

/// The connection to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connection {
    /// The replica is mapped to this peer.
    To(PeerIndex),
    /// The donor did not answer, and is contacted again after this time.
    Silent { retry_ns: u64 },
}

impl VerbsDonors {
    /// Opens a device and connects to all donors of the run.
    ///
    /// # Errors
    /// [`VerbsError`] if there is no device, or a donor is unreachable by it.
    pub fn open(
        block: &RunBlockMap,
        descriptors: &Arc<Descriptors>,
    ) -> Result<VerbsDonors, VerbsError> {
        let device = Device::open(None)?;
        let accesses = (MAX_IN_FLIGHT * MAX_COPIES) as u16 + 8;
        let config = VerbsConfig { accesses, requests_per_grant: 128 };
        let driver = VerbsDriver::new(&device, config)?;
        let always = eventfd(1, EventfdFlags::CLOEXEC)
            .map_err(|errno| system("making an eventfd", errno.into()))?;
        let (peers, connections, descriptors) = (Vec::new(), Vec::new(), Arc::clone(descriptors));
        let mut far =
            VerbsDonors { driver, descriptors, peers, connections, always, is_armed: false };
        for (replica, entry) in block.replicas().iter().enumerate() {
            if block.is_readable(entry) && !block.is_disk_replica(replica) {
                far.connect(block, replica, VerbsDriver::add_grant)?;
            }
        }
        let spares = PortId::Verbs.capabilities().most_grants(block.donors().len());
        far.driver.make_ready(spares, far.descriptors.lowest())?;
        far.driver.raw_fds().for_each(|fd| far.descriptors.add(fd));
        far.descriptors.add(far.always.as_raw_fd());
        Ok(far)
    }

    /// Maps a replica over the queue pair of its grant, or else over a new one that `join` makes.
    fn connect(
        &mut self,
        block: &RunBlockMap,
        replica: usize,
        join: impl FnOnce(
            &mut VerbsDriver,
            SocketAddr,
            GrantId,
            GrantKey,
        ) -> Result<PeerIndex, VerbsError>,
    ) -> Result<(), VerbsError> {
        let at = block.replicas()[replica].at();
        let known = self.peers.iter().find(|(grant, _)| *grant == at.grant);
        let peer = match known {
            Some((_, peer)) => *peer,
            None => {
                let address = address(&block.donors()[at.donor].udp_address())?;
                let (grant, key) = (GrantId(at.grant), GrantKey(at.key));
                let peer = join(&mut self.driver, address, grant, key)?;
                self.forget(peer);
                self.peers.push((at.grant, peer));
                peer
            }
        };
        let start = replica as u64 * SLAB_BYTES;
        let mapped = self.driver.map_window(start, SLAB_BYTES, peer, at.remote_addr);
        mapped.map_err(|error| system("mapping a slab", std::io::Error::other(error)))?;
        self.note(replica, Connection::To(peer));
        Ok(())
    }

    /// Removes all entries of the donor that had this queue pair before.
    fn forget(&mut self, peer: PeerIndex) {
        self.peers.retain(|(_, of)| *of != peer);
        for connection in &mut self.connections {
            connection.take_if(|connection| *connection == Connection::To(peer));
        }
    }

    fn note(&mut self, replica: usize, connection: Connection) {
        if self.connections.len() <= replica {
            self.connections.resize(replica + 1, None);
        }
        self.connections[replica] = Some(connection);
    }

    /// Connects to a donor that came later; `false`: it is lost, or no queue pair is free. A donor
    /// that does not answer counts as suspected, like one whose link failed.
    fn join(&mut self, block: &RunBlockMap, replica: usize) -> bool {
        // A grant that has ended frees its queue pair once the event is processed.
        let _ = self.driver.handle_events();
        for ended in self.driver.take_ended() {
            self.descriptors.close(ended.into_raw_fd());
        }
        let descriptors = Arc::clone(&self.descriptors);
        let joined = self.connect(block, replica, |driver, address, grant, key| {
            let peer = driver.join_grant(address, grant, key)?;
            driver.connection(peer).into_iter().for_each(|fd| descriptors.add(fd));
            Ok(peer)
        });
        let donor = &block.donors()[block.replicas()[replica].donor()];
        match joined {
            Ok(()) => return true,
            Err(VerbsError::SideChannel { source, .. })
                if source.kind() != std::io::ErrorKind::ConnectionRefused =>
            {
                let retry_ns = sys::monotonic_ns() + RETRY_AFTER_NS;
                self.note(replica, Connection::Silent { retry_ns });
                return true;
            }
            Err(VerbsError::SideChannel { .. }) => donor.lose(Fate::Died),
            Err(VerbsError::Refused { .. }) => donor.lose(Fate::Revoked),
            Err(_) => {}
        }
        false
    }

    /// Checks that the replica at an address is connected: its donor may not have answered.
    fn check_answers(&self, address: u64) -> Result<(), Rejected> {
        match self.connections.get((address / SLAB_BYTES) as usize) {
            Some(Some(Connection::Silent { .. })) => Err(Rejected::Failed(RequestError::NoAnswer)),
            _ => Ok(()),
        }
    }

    /// The descriptors to poll for arrivals.
    pub fn wait_fds(&mut self) -> [i32; 2] {
        self.is_armed = true;
        let is_there = self.driver.arm();
        [self.driver.fd().as_raw_fd(), if is_there { self.always.as_raw_fd() } else { -1 }]
    }
}

impl Donors for VerbsDonors {
    fn reach(&mut self, block: &RunBlockMap, replica: usize) -> bool {
        match self.connections.get(replica).copied().flatten() {
            Some(Connection::To(_)) => true,
            Some(Connection::Silent { retry_ns }) if sys::monotonic_ns() < retry_ns => true,
            _ => {
                let donor = block.replicas()[replica].donor();
                !block.donors()[donor].is_gone() && self.join(block, replica)
            }
        }
    }

    fn is_up(&mut self, replica: usize) -> bool {
        matches!(self.connections.get(replica), Some(Some(Connection::To(_))))
    }

    fn read(&mut self, token: u64, address: u64, len_bytes: u32) -> Result<(), Rejected> {
        self.check_answers(address)?;
        self.driver.read(token, address, len_bytes).map_err(rejected)
    }

    fn write(&mut self, token: u64, address: u64, bytes: &[u8]) -> Result<(), Rejected> {
        self.check_answers(address)?;
        self.driver.write(token, address, bytes).map_err(rejected)
    }

    fn atomic(&mut self, token: u64, address: u64, atomic: Atomic) -> Result<(), Rejected> {
        self.check_answers(address)?;
        let taken = match atomic {
            Atomic::FetchAdd(add) => self.driver.fetch_add(token, address, add),
            Atomic::CompareSwap { expected, new } => {
                self.driver.compare_swap(token, address, expected, new)
            }
        };
        taken.map_err(rejected)
    }

    fn next(&mut self, buffer: &mut Words) -> Option<(u64, Result<(), RequestError>)> {
        let completion = self.driver.poll_completion()?;
        if completion.result.is_ok() {
            copy_bytes(buffer, completion.data);
        }
        Some((completion.token, completion.result.map_err(|_| RequestError::Gone(Fate::Died))))
    }

    /// Does nothing: a posted request is sent at once.
    fn flush(&mut self) {}

    fn attend(&mut self, _block: &RunBlockMap) {
        if std::mem::take(&mut self.is_armed) {
            let _ = self.driver.handle_events();
        }
    }

    fn turn(&mut self) {
        let _ = self.driver.wait(WAIT_NS);
    }
}

fn rejected(error: FabricError) -> Rejected {
    match error {
        FabricError::WouldBlock => Rejected::Full,
        _ => Rejected::Failed(RequestError::Gone(Fate::Died)),
    }
}

fn address(text: &str) -> Result<SocketAddr, VerbsError> {
    text.parse().map_err(|error| system("reading a donor's address", std::io::Error::other(error)))
}

fn system(step: &'static str, source: std::io::Error) -> VerbsError {
    VerbsError::System { step, source }
}
