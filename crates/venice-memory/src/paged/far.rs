//! Far memory as the pager's threads reach it: by mapping, or by frames over UDP.
//!
//! Each thread of the pager has its own [`Far`], so none waits for another.

use venice_ports::channels::AccessLink;
use venice_ports::{hold_until, monotonic_ns};

use super::PAGE;
use super::run_block::{RunBlockMap, SLAB_SLOTS};
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
}

impl ShmFar {
    /// When an access that starts now is over; 0 if no link is emulated.
    fn due_ns(&mut self, over: impl FnOnce(&mut AccessLink, u64) -> u64) -> u64 {
        self.link.as_mut().map_or(0, |link| over(link, monotonic_ns()))
    }
}

impl Far {
    /// Asks for the page in `slot`; `token` comes back with it.
    pub fn fetch(&mut self, block: &RunBlockMap, slot: u32, token: u32) -> Fetch {
        if !block.slot_is_alive(slot) {
            return Fetch::Lost;
        }
        match self {
            Far::Shm(shm) => Fetch::Ready(shm.window.address(slot)),
            Far::Udp(udp) => udp.fetch(block, slot, token),
            Far::Verbs(verbs) => verbs.fetch(block, slot, token),
        }
    }

    /// Writes all of `pages` out and returns when every one is at its donor or lost.
    pub fn write_all(&mut self, block: &RunBlockMap, pages: &mut [WriteOut]) {
        match self {
            Far::Shm(shm) => {
                let len_bytes = pages.len() * PAGE;
                let due_ns = shm.due_ns(|link, now_ns| link.bulk_write_ns(now_ns, len_bytes));
                for page in pages {
                    page.lost = !block.slot_is_alive(page.slot);
                    if !page.lost {
                        copy_page(shm.window.address(page.slot), page.source);
                    }
                }
                hold_until(due_ns);
            }
            Far::Udp(udp) => udp.write_all(block, pages),
            Far::Verbs(verbs) => verbs.write_all(block, pages),
        }
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
        if let Far::Shm(shm) = self {
            hold_until(shm.due_ns(|link, now_ns| link.bulk_read_ns(now_ns, pages * PAGE)));
        }
    }

    /// How many slots from `slot` on lie in a row at the address of `slot`.
    pub fn contiguous_from(slot: u32) -> u32 {
        SLAB_SLOTS - slot % SLAB_SLOTS
    }
}

fn copy_page(dst: usize, src: usize) {
    // SAFETY: both are whole pages: a slot of the mapped window that only this process holds,
    // and a staging frame that only the evictor touches now.
    unsafe { std::ptr::copy_nonoverlapping(src as *const u8, dst as *mut u8, PAGE) };
}
