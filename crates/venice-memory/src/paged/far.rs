//! Far memory as the pager's threads reach it: by mapping, or by frames over UDP.
//!
//! Each thread of the pager has its own [`Far`], so none waits for another.

use super::PAGE;
use super::run_block::{RunBlockMap, SLAB_SLOTS};
use super::transfer::{Fetch, WriteOut};
use super::udp_far::UdpFar;

/// One thread's way to the donors' slabs.
#[derive(Debug)]
pub enum Far {
    /// The slabs are mapped in a row from this address.
    Shm(ShmWindow),
    /// They are asked for by frames.
    Udp(Box<UdpFar>),
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

impl Far {
    /// Asks for the page in `slot`; `token` comes back with it.
    pub fn fetch(&mut self, block: &RunBlockMap, slot: u32, token: u32) -> Fetch {
        if !block.slot_is_alive(slot) {
            return Fetch::Lost;
        }
        match self {
            Far::Shm(window) => Fetch::Ready(window.address(slot)),
            Far::Udp(udp) => udp.fetch(block, slot, token),
        }
    }

    /// Writes all of `pages` out and returns when every one is at its donor or lost.
    pub fn write_all(&mut self, block: &RunBlockMap, pages: &mut [WriteOut]) {
        match self {
            Far::Shm(window) => {
                for page in pages {
                    page.lost = !block.slot_is_alive(page.slot);
                    if !page.lost {
                        copy_page(window.address(page.slot), page.source);
                    }
                }
            }
            Far::Udp(udp) => udp.write_all(block, pages),
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
