//! Far memory by an RDMA device: one-sided reads and writes of pages and parts of them.
//!
//! rdma-core is a C library: it is set up before the program runs, and takes its tables from the
//! program's `malloc` then, which is memory that stays here. Posting and polling allocate nothing.
//! For the same reason no donor can be added later, and lost copies are not rebuilt by this port.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use rustix::event::{EventfdFlags, eventfd};
use venice_fabric::{Atomic, FabricError, PeerIndex};
use venice_ports::verbs::{Device, VerbsConfig, VerbsDriver, VerbsError};
use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

use super::descriptors::Descriptors;
use super::framed::{Donors, Fault, NotTaken};
use super::run_block::{Fate, MAX_COPIES, RunBlockMap};
use super::transfer::{MAX_IN_FLIGHT, Words, copy_bytes};

/// How long one wait for a completion takes at most.
const WAIT_NS: u64 = 5_000_000;

/// One thread's queue pairs to the donors.
pub struct VerbsDonors {
    driver: VerbsDriver,
    /// Replicas that are mapped.
    mapped: usize,
    /// Readable for ever, for a sleep that must not be one.
    always: std::os::fd::OwnedFd,
    is_armed: bool,
}

impl VerbsDonors {
    /// Opens a device and connects to all donors of the run.
    ///
    /// # Errors
    /// When there is no device, or a donor cannot be reached by it.
    pub fn open(block: &RunBlockMap, descriptors: &Descriptors) -> Result<VerbsDonors, VerbsError> {
        let device = Device::open(None)?;
        let accesses = (MAX_IN_FLIGHT * MAX_COPIES) as u16 + 8;
        let config = VerbsConfig { accesses, requests_per_grant: 128 };
        let mut driver = VerbsDriver::new(&device, config)?;
        let mut peers: Vec<(u64, PeerIndex)> = Vec::new();
        for (index, replica) in block.replicas().iter().enumerate() {
            if block.is_disks(index) {
                continue;
            }
            let at = replica.at();
            let peer = match peers.iter().find(|(id, _)| *id == at.grant) {
                Some((_, peer)) => *peer,
                None => {
                    let address = address(&block.donors()[at.donor].udp_address())?;
                    let peer = driver.add_grant(address, GrantId(at.grant), GrantKey(at.key))?;
                    peers.push((at.grant, peer));
                    peer
                }
            };
            driver
                .map_window(index as u64 * SLAB_BYTES, SLAB_BYTES, peer, at.remote_addr)
                .map_err(|error| system("mapping a slab", std::io::Error::other(error)))?;
        }
        let always = eventfd(1, EventfdFlags::CLOEXEC)
            .map_err(|errno| system("making an eventfd", errno.into()))?;
        driver.raw_fds().for_each(|fd| descriptors.add(fd));
        descriptors.add(always.as_raw_fd());
        let mapped = block.replicas().len();
        Ok(VerbsDonors { driver, mapped, always, is_armed: false })
    }

    /// What to poll for arrivals.
    pub fn wait_fds(&mut self) -> [i32; 2] {
        self.is_armed = true;
        let is_there = self.driver.arm();
        [self.driver.fd().as_raw_fd(), if is_there { self.always.as_raw_fd() } else { -1 }]
    }
}

impl Donors for VerbsDonors {
    fn reach(&mut self, _block: &RunBlockMap, replica: usize) -> bool {
        replica < self.mapped
    }

    fn is_up(&mut self, _replica: usize) -> bool {
        true
    }

    fn read(&mut self, token: u64, address: u64, len_bytes: u32) -> Result<(), NotTaken> {
        self.driver.read(token, address, len_bytes).map_err(not_taken)
    }

    fn write(&mut self, token: u64, address: u64, bytes: &[u8]) -> Result<(), NotTaken> {
        self.driver.write(token, address, bytes).map_err(not_taken)
    }

    fn atomic(&mut self, token: u64, address: u64, atomic: Atomic) -> Result<(), NotTaken> {
        let taken = match atomic {
            Atomic::FetchAdd(add) => self.driver.fetch_add(token, address, add),
            Atomic::CompareSwap { expected, new } => {
                self.driver.compare_swap(token, address, expected, new)
            }
        };
        taken.map_err(not_taken)
    }

    fn next(&mut self, buffer: &mut Words) -> Option<(u64, Result<(), Fault>)> {
        let completion = self.driver.poll_completion()?;
        if completion.result.is_ok() {
            copy_bytes(buffer, completion.data);
        }
        Some((completion.token, completion.result.map_err(|_| Fault::Gone(Fate::Died))))
    }

    /// A post is on its way at once.
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

fn not_taken(error: FabricError) -> NotTaken {
    match error {
        FabricError::WouldBlock => NotTaken::Full,
        _ => NotTaken::Failed(Fault::Gone(Fate::Died)),
    }
}

fn address(text: &str) -> Result<SocketAddr, VerbsError> {
    text.parse().map_err(|error| system("reading a donor's address", std::io::Error::other(error)))
}

fn system(step: &'static str, source: std::io::Error) -> VerbsError {
    VerbsError::System { step, source }
}
