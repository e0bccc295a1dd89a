//! Far memory over UDP: CRMA reads and writes of whole pages.

use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::AsRawFd;

use venice_fabric::{AccessError, Atomic, FabricError, Initiator, InitiatorConfig, Refusal};
use venice_ports::random_u64;
use venice_ports::seal::SealedAs;
use venice_ports::udp::{UdpDriver, unspecified_like};
use venice_wire::{GrantId, GrantKey, KeyName, NodeId, SLAB_BYTES};

use super::PAGE;
use super::descriptors::Descriptors;
use super::run_block::{Fate, RunBlockMap};
use super::sys::{self, Errno, SysResult};
use super::transfer::{Early, Fetch, MAX_IN_FLIGHT, WriteOut, copy_bytes};

/// Token of [`UdpFar::at_once`]; the others are small.
const AT_ONCE: u64 = u64::MAX;
/// How long one wait for frames takes at most.
const WAIT_NS: u64 = 5_000_000;

/// One thread's links to the donors.
pub struct UdpFar {
    driver: UdpDriver,
    early: Vec<Early>,
    /// Far slot by token, to know whose donor failed.
    slots: [u32; MAX_IN_FLIGHT],
}

impl std::fmt::Debug for UdpFar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpFar").field("local", &self.driver.local_addr()).finish_non_exhaustive()
    }
}

impl UdpFar {
    /// Opens a socket and starts the links to all donors of the run.
    ///
    /// # Errors
    /// The kernel's; `EINVAL` for a donor's address that is none.
    pub fn open(block: &RunBlockMap, descriptors: &Descriptors) -> SysResult<UdpFar> {
        let addresses: Vec<SocketAddr> = block
            .donors()
            .iter()
            .map(|donor| donor.udp_address().parse().map_err(|_| Errno::EINVAL))
            .collect::<SysResult<_>>()?;
        let first = addresses.first().copied().ok_or(Errno::EINVAL)?;
        let node = NodeId(block.node.load(std::sync::atomic::Ordering::Relaxed));
        let seed = random_u64().map_err(|errno| Errno(errno.raw_os_error()))?;
        let config = InitiatorConfig::new(node, seed);
        // The Monitor Node sees to it that all of a rack protect their datagrams, or nobody.
        let is_sealed = block.donors().iter().all(|donor| donor.seal().is_some());
        let local = unspecified_like(first);
        let made = if is_sealed {
            UdpDriver::sealed(local, config)
        } else {
            UdpDriver::new(local, config)
        };
        let mut driver = made.map_err(|_| Errno::EINVAL)?;
        // Where there is no room up there they stay where they are.
        let _ = driver.keep_fd_above(descriptors.lowest());
        driver.fds().iter().for_each(|fd| descriptors.add(fd.as_raw_fd()));
        let now_ns = sys::monotonic_ns();
        let mut peers = Vec::new();
        for (donor, address) in block.donors().iter().zip(addresses) {
            let node = NodeId(donor.node.load(std::sync::atomic::Ordering::Relaxed));
            let named =
                donor.seal().map(|(grant, key)| SealedAs { name: KeyName::Grant(grant), key });
            let added = match (donor.is_via(), named) {
                (true, named) => driver.add_peer_via(now_ns, node, address, named),
                (false, None) => driver.add_peer(now_ns, node, address),
                (false, Some(named)) => driver.add_sealed_peer(now_ns, node, address, named),
            };
            peers.push(added.map_err(|_| Errno::EINVAL)?);
        }
        for (index, slab) in block.slabs().iter().enumerate() {
            let load = |word: &std::sync::atomic::AtomicU64| {
                word.load(std::sync::atomic::Ordering::Relaxed)
            };
            let mapped = driver.initiator().map_window(
                index as u64 * SLAB_BYTES,
                SLAB_BYTES,
                peers[slab.donor()],
                load(&slab.remote_addr),
                GrantId(load(&slab.grant)),
                GrantKey(load(&slab.key)),
            );
            mapped.map_err(|_| Errno::EINVAL)?;
        }
        Ok(UdpFar { driver, early: Vec::new(), slots: [0; MAX_IN_FLIGHT] })
    }

    /// To poll for arrivals.
    pub fn fd(&self) -> i32 {
        self.driver.fd().as_raw_fd()
    }

    /// Sets the timer for when the links want to run again, and returns what to poll for it. A
    /// time-out of `poll` itself would cost far more than the round trip when it is short.
    pub fn arm_timer(&mut self) -> i32 {
        self.driver.arm(sys::monotonic_ns());
        self.driver.timer_fd().as_raw_fd()
    }

    /// Asks for `part` of a page; it goes out at once.
    pub fn fetch(&mut self, block: &RunBlockMap, slot: u32, part: Range<u32>, token: u32) -> Fetch {
        let now_ns = sys::monotonic_ns();
        let address = slot as u64 * PAGE as u64 + u64::from(part.start);
        match self.driver.initiator().read(now_ns, token as u64, address, part.end - part.start) {
            Ok(()) => {
                self.slots[token as usize] = slot;
                Fetch::Pending
            }
            Err(FabricError::WouldBlock) => Fetch::Full,
            Err(error) => {
                block.lose_donor_of(slot, fate_of(error));
                Fetch::Lost
            }
        }
    }

    /// Sends what was asked for.
    pub fn flush(&mut self) {
        let _ = self.driver.pump(sys::monotonic_ns());
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
        if let Some(done) = self.next_completion(block, buffer) {
            return Some((done.0 as u32, done.1));
        }
        self.attend(block);
        self.next_completion(block, buffer).map(|(token, arrived)| (token as u32, arrived))
    }

    /// Moves frames, and heeds what donors say of themselves: one that has taken its memory back
    /// is lost as one that died.
    pub fn attend(&mut self, block: &RunBlockMap) {
        self.flush();
        while let Some(revoked) = self.driver.initiator().poll_revoked() {
            // A peer for each donor, in their order.
            block.donors()[revoked.peer.0 as usize].lose(Fate::TookBack);
        }
    }

    fn next_completion(
        &mut self,
        block: &RunBlockMap,
        buffer: &mut [u64; PAGE / 8],
    ) -> Option<(u64, bool)> {
        let completion = self.driver.initiator().poll_completion()?;
        let token = completion.token;
        match completion.result {
            Ok(()) => copy_bytes(buffer, completion.data),
            Err(_) if token == AT_ONCE => {}
            Err(error) => block.lose_donor_of(self.slots[token as usize], fate_of_access(error)),
        }
        Some((token, completion.result.is_ok()))
    }

    /// Asks for a page and waits for it; `false`: its donor is dead.
    pub fn fetch_at_once(
        &mut self,
        block: &RunBlockMap,
        slot: u32,
        buffer: &mut [u64; PAGE / 8],
    ) -> bool {
        let address = slot as u64 * PAGE as u64;
        self.at_once(block, buffer, |initiator| {
            initiator.read(sys::monotonic_ns(), AT_ONCE, address, PAGE as u32)
        })
    }

    /// Changes the eight bytes at `address`, a multiple of eight, and returns what was there
    /// before; `None`: its donor is dead.
    pub fn atomic(&mut self, block: &RunBlockMap, address: u64, atomic: Atomic) -> Option<u64> {
        let mut buffer = [0; PAGE / 8];
        let done = self.at_once(block, &mut buffer, |initiator| {
            let now_ns = sys::monotonic_ns();
            match atomic {
                Atomic::FetchAdd(add) => initiator.fetch_add(now_ns, AT_ONCE, address, add),
                Atomic::CompareSwap { expected, new } => {
                    initiator.compare_swap(now_ns, AT_ONCE, address, expected, new)
                }
            }
        });
        done.then_some(buffer[0])
    }

    /// Starts an access and waits until it is over; `false`: the donor is dead.
    fn at_once(
        &mut self,
        block: &RunBlockMap,
        buffer: &mut [u64; PAGE / 8],
        mut start: impl FnMut(&mut Initiator) -> Result<(), FabricError>,
    ) -> bool {
        loop {
            match start(self.driver.initiator()) {
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

    /// Writes all of `pages` and waits until each is acknowledged by its donor or lost.
    pub fn write_all(&mut self, block: &RunBlockMap, pages: &mut [WriteOut]) {
        let (mut started, mut done) = (0, 0);
        while done < pages.len() {
            while started < pages.len() {
                match self.start_write(block, &mut pages[started], started as u64) {
                    Fetch::Full => break,
                    Fetch::Lost => done += 1,
                    _ => {}
                }
                started += 1;
            }
            self.flush();
            let mut heard = false;
            while let Some(completion) = self.driver.initiator().poll_completion() {
                let page = &mut pages[completion.token as usize];
                page.lost = completion.result.is_err();
                if let Err(error) = completion.result {
                    block.lose_donor_of(page.slot, fate_of_access(error));
                }
                done += 1;
                heard = true;
            }
            if !heard && done < pages.len() {
                self.turn();
            }
        }
    }

    fn start_write(&mut self, block: &RunBlockMap, page: &mut WriteOut, token: u64) -> Fetch {
        page.lost = false;
        // SAFETY: they do not change until the write is done.
        let bytes = unsafe { page.bytes() };
        match self.driver.initiator().write(sys::monotonic_ns(), token, page.address(), bytes) {
            Ok(()) => Fetch::Pending,
            Err(FabricError::WouldBlock) => Fetch::Full,
            Err(error) => {
                page.lost = true;
                block.lose_donor_of(page.slot, fate_of(error));
                Fetch::Lost
            }
        }
    }

    /// Moves frames, waiting a little for some to come if there are none.
    pub fn turn(&mut self) {
        if self.driver.turn(WAIT_NS).is_err() {
            // The links find out what it means; not in a hurry.
            let _ = self.driver.wait(sys::monotonic_ns(), WAIT_NS);
        }
    }
}

/// What became of a donor that an access cannot be given to.
fn fate_of(error: FabricError) -> Fate {
    match error {
        // The window is gone once nothing is on its way to what was revoked.
        FabricError::Revoked { .. } | FabricError::NotMapped { .. } => Fate::TookBack,
        _ => Fate::Died,
    }
}

/// What became of a donor that did not carry an access out.
fn fate_of_access(error: AccessError) -> Fate {
    match error {
        AccessError::Refused(Refusal::UnknownGrant) => Fate::TookBack,
        AccessError::Revoked | AccessError::NotMapped => Fate::TookBack,
        AccessError::Refused(_) | AccessError::PeerDown(_) => Fate::Died,
    }
}
