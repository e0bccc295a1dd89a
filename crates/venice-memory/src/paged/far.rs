//! Far memory as one thread reaches it: by mapping, by frames over UDP, or by an RDMA device.
//!
//! Each thread has its own [`Far`], so none waits for another.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use venice_fabric::Atomic;
use venice_ports::channels::AccessLink;
use venice_ports::verbs::VerbsError;
use venice_ports::{hold_until, monotonic_ns};

use super::PAGE;
use super::descriptors::Descriptors;
use super::run_block::{Fate, PortKind, RunBlockMap, SLAB_SLOTS};
use super::sys::Errno;
use super::transfer::{Fetch, WriteOut};
use super::udp_far::UdpFar;
use super::verbs_far::VerbsFar;

/// One thread's way to the donors' slabs.
#[derive(Debug)]
pub enum Far {
    /// The slabs are mapped.
    Shm(ShmFar),
    /// They are asked for by frames.
    Udp(Box<UdpFar>),
    /// They are asked for by an RDMA device.
    Verbs(Box<VerbsFar>),
}

/// Why a thread has no way to the donors.
#[derive(Debug, thiserror::Error)]
pub enum FarError {
    /// The kernel gave no socket, or a donor's address is none.
    #[error("no UDP port to the donors can be opened ({0})")]
    Udp(#[source] Errno),
    /// They cannot be reached by RDMA.
    #[error("{}", with_cause(.0))]
    Verbs(#[source] VerbsError),
}

/// The shim says one line, so what caused an error stands in it.
fn with_cause(error: &VerbsError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Mapped slabs, and the link to them if one is emulated.
#[derive(Debug)]
pub struct ShmFar {
    /// Where they are mapped.
    pub window: ShmWindow,
    /// Every access takes as long as over it.
    pub link: Option<AccessLink>,
}

/// All slabs of the run, mapped one after the other: far slot `n` is page `n` of the window.
#[derive(Clone, Copy, Debug)]
pub struct ShmWindow {
    /// First address.
    pub base: usize,
}

impl ShmWindow {
    /// The address of a far slot.
    pub fn address(self, slot: u32) -> usize {
        self.base + slot as usize * PAGE
    }

    fn put(self, out: &WriteOut) {
        let to = self.base + out.address() as usize;
        // SAFETY: the target is within a slot of the mapped window that only this process writes;
        // the source stays as it is until this is done.
        unsafe {
            std::ptr::copy_nonoverlapping(
                out.source as *const u8,
                to as *mut u8,
                out.len_bytes as usize,
            );
        }
    }
}

impl ShmWindow {
    fn atomic(self, address: u64, atomic: Atomic) -> u64 {
        let at = self.base + address as usize;
        assert!(at.is_multiple_of(8), "checked by the caller");
        // SAFETY: eight aligned bytes of the mapped window, which lives as long as the lane that
        // asks; other processes use them atomically or know what they do.
        let number = unsafe { AtomicU64::from_ptr(at as *mut u64) };
        match atomic {
            Atomic::FetchAdd(add) => number.fetch_add(add, Ordering::SeqCst),
            Atomic::CompareSwap { expected, new } => {
                match number.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(old) | Err(old) => old,
                }
            }
        }
    }
}

impl ShmFar {
    /// When an access that starts now is over; 0 if no link is emulated.
    fn due_ns(&mut self, over: impl FnOnce(&mut AccessLink, u64) -> u64) -> u64 {
        self.link.as_mut().map_or(0, |link| over(link, monotonic_ns()))
    }
}

impl Far {
    /// A way for one thread to the donors of `block`; `window` is where their slabs are mapped.
    ///
    /// # Errors
    /// [`FarError`].
    pub fn open(
        block: &RunBlockMap,
        window: Option<ShmWindow>,
        descriptors: &Descriptors,
    ) -> Result<Far, FarError> {
        match (block.port(), window) {
            (PortKind::Shm, Some(window)) => {
                let link = block.link().map(AccessLink::new);
                Ok(Far::Shm(ShmFar { window, link }))
            }
            (PortKind::Verbs, _) => VerbsFar::open(block, descriptors)
                .map(|verbs| Far::Verbs(Box::new(verbs)))
                .map_err(FarError::Verbs),
            _ => UdpFar::open(block, descriptors)
                .map(|udp| Far::Udp(Box::new(udp)))
                .map_err(FarError::Udp),
        }
    }

    /// Asks for the page in `slot`; `token` comes back with it.
    pub fn fetch(&mut self, block: &RunBlockMap, slot: u32, token: u32) -> Fetch {
        self.fetch_part(block, slot, 0..PAGE as u32, token)
    }

    /// Asks for `part` of what is in `slot`, in bytes; `token` comes back with it.
    pub fn fetch_part(
        &mut self,
        block: &RunBlockMap,
        slot: u32,
        part: Range<u32>,
        token: u32,
    ) -> Fetch {
        if !block.slot_is_alive(slot) {
            return Fetch::Lost;
        }
        match self {
            Far::Shm(shm) => Fetch::Ready(shm.window.address(slot) + part.start as usize),
            Far::Udp(udp) => udp.fetch(block, slot, part, token),
            Far::Verbs(verbs) => verbs.fetch(block, slot, part, token),
        }
    }

    /// Writes all of `pages` out and returns when every one is at its donor or lost.
    pub fn write_all(&mut self, block: &RunBlockMap, pages: &mut [WriteOut]) {
        match self {
            Far::Shm(shm) => {
                let len_bytes = pages.iter().map(|page| page.len_bytes as usize).sum();
                let due_ns = shm.due_ns(|link, now_ns| link.bulk_write_ns(now_ns, len_bytes));
                for page in pages {
                    page.lost = !block.slot_is_alive(page.slot);
                    if !page.lost {
                        shm.window.put(page);
                    }
                }
                hold_until(due_ns);
            }
            Far::Udp(udp) => udp.write_all(block, pages),
            Far::Verbs(verbs) => verbs.write_all(block, pages),
        }
    }

    /// Changes the eight bytes at `address` (bytes from the first slot's first, a multiple of
    /// eight) as one step, and returns what was there before; `None`: they are lost.
    pub fn atomic(&mut self, block: &RunBlockMap, address: u64, atomic: Atomic) -> Option<u64> {
        let slot = (address / PAGE as u64) as u32;
        if !block.slot_is_alive(slot) {
            return None;
        }
        let old = match self {
            Far::Shm(shm) => {
                let request_bytes = match atomic {
                    Atomic::FetchAdd(_) => 8,
                    Atomic::CompareSwap { .. } => 16,
                };
                let due_ns = shm.due_ns(|link, now_ns| link.single_ns(now_ns, request_bytes, 8));
                let old = shm.window.atomic(address, atomic);
                hold_until(due_ns);
                return Some(old);
            }
            Far::Udp(udp) => udp.atomic(block, address, atomic),
            Far::Verbs(verbs) => verbs.atomic(block, address, atomic),
        };
        if old.is_none() {
            block.lose_donor_of(slot, Fate::Died);
        }
        old
    }

    /// What to poll for pages that were asked for, readied for a sleep; -1: nothing.
    pub fn wait_fds(&mut self) -> [i32; 2] {
        match self {
            Far::Shm(_) => [-1, -1],
            Far::Udp(udp) => [udp.fd(), udp.arm_timer()],
            Far::Verbs(verbs) => verbs.wait_fds(),
        }
    }

    /// Sends what was asked for.
    pub fn flush(&mut self) {
        if let Far::Udp(udp) = self {
            udp.flush();
        }
    }

    /// Waits a little for something to come.
    pub fn turn(&mut self) {
        match self {
            Far::Shm(_) => {}
            Far::Udp(udp) => udp.turn(),
            Far::Verbs(verbs) => verbs.turn(),
        }
    }

    /// Hears of donors that took their memory back, and has the pager know; for a thread that asks
    /// for nothing at present.
    pub fn attend(&mut self, block: &RunBlockMap) {
        if let Far::Udp(udp) = self {
            udp.attend(block);
        }
    }

    /// The next page that came (`true`) or will not come: its donor is dead (`false`).
    pub fn poll(
        &mut self,
        block: &RunBlockMap,
        buffer: &mut [u64; PAGE / 8],
    ) -> Option<(u32, bool)> {
        match self {
            Far::Shm(_) => None,
            Far::Udp(udp) => udp.poll(block, buffer),
            Far::Verbs(verbs) => verbs.poll(block, buffer),
        }
    }

    /// With an emulated link: waits as long as `pages` pages that were just fetched would have
    /// taken over it. Nobody else is served meanwhile; the link carries one page at a time anyway.
    pub fn hold_for(&mut self, pages: usize) {
        self.hold_for_bytes(pages * PAGE);
    }

    /// As [`Far::hold_for`], for so many bytes.
    pub fn hold_for_bytes(&mut self, len_bytes: usize) {
        if let Far::Shm(shm) = self {
            hold_until(shm.due_ns(|link, now_ns| link.bulk_read_ns(now_ns, len_bytes)));
        }
    }

    /// How many slots from `slot` on lie in a row at the address of `slot`.
    pub fn contiguous_from(slot: u32) -> u32 {
        SLAB_SLOTS - slot % SLAB_SLOTS
    }
}
