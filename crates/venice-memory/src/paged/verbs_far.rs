//! Far memory by an RDMA device: one-sided reads and writes of whole pages.
//!
//! rdma-core is a C library: it is set up before the program runs, and takes its tables from the
//! program's `malloc` then, which is memory that stays here. Posting and polling allocate nothing.

use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use rustix::event::{EventfdFlags, eventfd};
use venice_fabric::{Atomic, FabricError};
use venice_ports::verbs::{Device, VerbsConfig, VerbsDriver, VerbsError};
use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

use super::PAGE;
use super::descriptors::Descriptors;
use super::run_block::{Fate, RunBlockMap};
use super::transfer::{Early, Fetch, MAX_IN_FLIGHT, WriteOut, copy_bytes};

/// Token of [`VerbsFar::at_once`]; the others are small.
const AT_ONCE: u64 = u64::MAX;
/// How long one wait for a completion takes at most.
const WAIT_NS: u64 = 5_000_000;

/// One thread's queue pairs to the donors.
pub struct VerbsFar {
    driver: VerbsDriver,
    early: Vec<Early>,
    /// Far slot by token, to know whose donor failed.
    slots: [u32; MAX_IN_FLIGHT],
    /// Readable for ever, for a sleep that must not be one.
    always: std::os::fd::OwnedFd,
    is_armed: bool,
}

impl std::fmt::Debug for VerbsFar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerbsFar").finish_non_exhaustive()
    }
}

impl VerbsFar {
    /// Opens a device and connects to all donors of the run.
    ///
    /// # Errors
    /// When there is no device, or a donor cannot be reached by it.
    pub fn open(block: &RunBlockMap, descriptors: &Descriptors) -> Result<VerbsFar, VerbsError> {
        let device = Device::open(None)?;
        let config = VerbsConfig { accesses: MAX_IN_FLIGHT as u16 + 8, requests_per_grant: 128 };
        let mut driver = VerbsDriver::new(&device, config)?;
        let mut peers: Vec<(u64, venice_fabric::PeerIndex)> = Vec::new();
        for (index, slab) in block.slabs().iter().enumerate() {
            let grant = slab.grant.load(Ordering::Relaxed);
            let peer = match peers.iter().find(|(id, _)| *id == grant) {
                Some((_, peer)) => *peer,
                None => {
                    let address = address(&block.donors()[slab.donor()].udp_address())?;
                    let key = GrantKey(slab.key.load(Ordering::Relaxed));
                    let peer = driver.add_grant(address, GrantId(grant), key)?;
                    peers.push((grant, peer));
                    peer
                }
            };
            let remote_addr = slab.remote_addr.load(Ordering::Relaxed);
            driver
                .map_window(index as u64 * SLAB_BYTES, SLAB_BYTES, peer, remote_addr)
                .map_err(|error| system("mapping a slab", std::io::Error::other(error)))?;
        }
        let always = eventfd(1, EventfdFlags::CLOEXEC)
            .map_err(|errno| system("making an eventfd", errno.into()))?;
        driver.raw_fds().for_each(|fd| descriptors.add(fd));
        descriptors.add(always.as_raw_fd());
        let slots = [0; MAX_IN_FLIGHT];
        Ok(VerbsFar { driver, early: Vec::new(), slots, always, is_armed: false })
    }

    /// What to poll for arrivals.
    pub fn wait_fds(&mut self) -> [i32; 2] {
        self.is_armed = true;
        let is_there = self.driver.arm();
        [self.driver.fd().as_raw_fd(), if is_there { self.always.as_raw_fd() } else { -1 }]
    }

    /// Asks for `part` of a page; it goes out at once.
    pub fn fetch(&mut self, block: &RunBlockMap, slot: u32, part: Range<u32>, token: u32) -> Fetch {
        let address = u64::from(slot) * PAGE as u64 + u64::from(part.start);
        match self.driver.read(token.into(), address, part.end - part.start) {
            Ok(()) => {
                self.slots[token as usize] = slot;
                Fetch::Pending
            }
            Err(FabricError::WouldBlock) => Fetch::Full,
            Err(_) => {
                lose(block, slot);
                Fetch::Lost
            }
        }
    }

    /// The next page that came (`true`) or will not come: its donor is dead (`false`).
    pub fn poll(
        &mut self,
        block: &RunBlockMap,
        buffer: &mut [u64; PAGE / 8],
    ) -> Option<(u32, bool)> {
        if let Some(early) = self.early.pop() {
            *buffer = *early.page;
            return Some((early.token, early.arrived));
        }
        if std::mem::take(&mut self.is_armed) {
            let _ = self.driver.handle_events();
        }
        self.next_completion(block, buffer).map(|(token, arrived)| (token as u32, arrived))
    }

    fn next_completion(
        &mut self,
        block: &RunBlockMap,
        buffer: &mut [u64; PAGE / 8],
    ) -> Option<(u64, bool)> {
        let completion = self.driver.poll_completion()?;
        let (token, arrived) = (completion.token, completion.result.is_ok());
        if arrived {
            copy_bytes(buffer, completion.data);
        } else if token != AT_ONCE {
            lose(block, self.slots[token as usize]);
        }
        Some((token, arrived))
    }

    /// Asks for a page and waits for it; `false`: its donor is dead.
    pub fn fetch_at_once(
        &mut self,
        block: &RunBlockMap,
        slot: u32,
        buffer: &mut [u64; PAGE / 8],
    ) -> bool {
        let address = u64::from(slot) * PAGE as u64;
        self.at_once(block, buffer, |driver| driver.read(AT_ONCE, address, PAGE as u32))
    }

    /// Changes the eight bytes at `address`, a multiple of eight, and returns what was there
    /// before; `None`: its donor is dead, or its device has no atomic operations.
    pub fn atomic(&mut self, block: &RunBlockMap, address: u64, atomic: Atomic) -> Option<u64> {
        let mut buffer = [0; PAGE / 8];
        let done = self.at_once(block, &mut buffer, |driver| match atomic {
            Atomic::FetchAdd(add) => driver.fetch_add(AT_ONCE, address, add),
            Atomic::CompareSwap { expected, new } => {
                driver.compare_swap(AT_ONCE, address, expected, new)
            }
        });
        done.then_some(buffer[0])
    }

    /// Starts an access and waits until it is over; `false`: the donor is dead.
    fn at_once(
        &mut self,
        block: &RunBlockMap,
        buffer: &mut [u64; PAGE / 8],
        mut start: impl FnMut(&mut VerbsDriver) -> Result<(), FabricError>,
    ) -> bool {
        loop {
            match start(&mut self.driver) {
                Ok(()) => break,
                Err(FabricError::WouldBlock) => self.turn(),
                Err(_) => return false,
            }
        }
        loop {
            match self.next_completion(block, buffer) {
                Some((AT_ONCE, arrived)) => return arrived,
                Some((token, arrived)) => {
                    let page = Box::new(*buffer);
                    self.early.push(Early { token: token as u32, arrived, page });
                }
                None => self.turn(),
            }
        }
    }

    /// Writes all of `pages` and waits until each is at its donor or lost.
    pub fn write_all(&mut self, block: &RunBlockMap, pages: &mut [WriteOut]) {
        let (mut started, mut done) = (0, 0);
        while done < pages.len() {
            while started < pages.len() {
                let page = &mut pages[started];
                page.lost = false;
                // SAFETY: they do not change until the write is done.
                let bytes = unsafe { page.bytes() };
                match self.driver.write(started as u64, page.address(), bytes) {
                    Ok(()) => {}
                    Err(FabricError::WouldBlock) => break,
                    Err(_) => {
                        page.lost = true;
                        lose(block, page.slot);
                        done += 1;
                    }
                }
                started += 1;
            }
            let before = done;
            while let Some(completion) = self.driver.poll_completion() {
                let page = &mut pages[completion.token as usize];
                page.lost = completion.result.is_err();
                if page.lost {
                    lose(block, page.slot);
                }
                done += 1;
            }
            if done == before && done < pages.len() {
                self.turn();
            }
        }
    }

    /// Waits a little for something to come.
    pub fn turn(&mut self) {
        let _ = self.driver.wait(WAIT_NS);
    }
}

/// The donor of `slot` is dead.
fn lose(block: &RunBlockMap, slot: u32) {
    block.lose_donor_of(slot, Fate::Died);
}

fn address(text: &str) -> Result<SocketAddr, VerbsError> {
    text.parse().map_err(|error| system("reading a donor's address", std::io::Error::other(error)))
}

fn system(step: &'static str, source: std::io::Error) -> VerbsError {
    VerbsError::System { step, source }
}
