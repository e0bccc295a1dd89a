//! Which pages are there: in memory, or in the host's own swap.
//!
//! `mincore(2)` says of a page that the host has swapped out that it is not there, which is to say
//! that there is nothing to lose. `/proc/self/pagemap` (`proc_pid_pagemap(5)`) tells the two apart.

use super::descriptors::Descriptors;
use super::sys::{self, SysResult};
use super::{PAGE, staging::CHUNK_FRAMES};

const PAGEMAP: &[u8] = b"/proc/self/pagemap\0";
/// In memory, or swapped out.
const THERE: u64 = 1 << 63 | 1 << 62;

/// A way to ask that is kept open, for one process.
#[derive(Debug)]
pub struct Presence {
    /// -1: the kernel does not give it to us (a program that has changed its user).
    fd: i32,
}

/// What is known of pages in a row; `true`: the page is there.
pub type There = [bool; CHUNK_FRAMES];

impl Presence {
    /// Opened for this process.
    pub fn open(descriptors: &Descriptors) -> Presence {
        Presence { fd: sys::open_readonly(PAGEMAP).map_or(-1, |fd| descriptors.keep(fd)) }
    }

    /// Does it know what is swapped out?
    pub fn knows_swap(&self) -> bool {
        self.fd >= 0
    }

    /// Looks at the `pages` pages from `addr` on, all mapped.
    ///
    /// # Errors
    /// The kernel's; `ENOMEM` where a page is not mapped and swap is not known of.
    pub fn look(&self, addr: usize, pages: usize) -> SysResult<There> {
        look(self.fd, addr, pages)
    }
}

/// Looks once at the `pages` pages from `addr` on, all mapped.
///
/// # Errors
/// As for [`Presence::look`].
pub fn look_once(addr: usize, pages: usize) -> SysResult<There> {
    let fd = sys::open_readonly(PAGEMAP).unwrap_or(-1);
    let there = look(fd, addr, pages);
    if fd >= 0 {
        sys::close(fd);
    }
    there
}

fn look(fd: i32, addr: usize, pages: usize) -> SysResult<There> {
    let mut there = [false; CHUNK_FRAMES];
    if fd < 0 {
        let mut bytes = [0u8; CHUNK_FRAMES];
        sys::mincore(addr, &mut bytes[..pages])?;
        there.iter_mut().zip(bytes).for_each(|(there, byte)| *there = byte & 1 != 0);
        return Ok(there);
    }
    let mut text = [[0u8; 8]; CHUNK_FRAMES];
    let wanted = text[..pages].as_flattened_mut();
    let len = sys::pread(fd, (addr / PAGE * 8) as u64, wanted)?;
    assert_eq!(len, pages * 8, "a page map has a word for each page");
    let words = text[..pages].iter().map(|word| u64::from_ne_bytes(*word));
    there.iter_mut().zip(words).for_each(|(there, word)| *there = word & THERE != 0);
    Ok(there)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_tell_what_is_there() {
        let memory = sys::map_private(4 * PAGE).unwrap();
        // SAFETY: within the fresh mapping.
        unsafe { memory.add(2 * PAGE).write(1) };
        let mut expected = [false; CHUNK_FRAMES];
        expected[2] = true;
        assert_eq!(look(-1, memory as usize, 4), Ok(expected));
        assert_eq!(look_once(memory as usize, 4), Ok(expected));
        // SAFETY: mapped above, and nobody else has it.
        unsafe { sys::unmap(memory.cast(), 4 * PAGE) };
        assert!(look(-1, memory as usize, 4).is_err(), "a refusal is not an answer");
    }
}
