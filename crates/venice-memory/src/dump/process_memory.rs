//! The memory of a living process, by `/proc/PID/mem` and `/proc/PID/pagemap`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::paged::PAGE;
use crate::paged::image::ForeignMemory;

/// In memory, or swapped out by the kernel.
const THERE: u64 = 1 << 63 | 1 << 62;
/// The page belongs to a file or to shared memory.
const OF_FILE: u64 = 1 << 61;

/// The memory of a process, which should be stopped.
#[derive(Debug)]
pub struct ProcessMemory {
    memory: File,
    page_map: File,
}

impl ProcessMemory {
    /// Opens the memory of `pid`.
    ///
    /// # Errors
    /// The kernel's: no such process, or no right to look at it.
    pub fn open(pid: u32) -> io::Result<ProcessMemory> {
        Ok(ProcessMemory {
            memory: File::open(format!("/proc/{pid}/mem"))?,
            page_map: File::open(format!("/proc/{pid}/pagemap"))?,
        })
    }

    /// Sets for each page from `first` on if it is a copy of the process's own, which is no file's.
    ///
    /// # Errors
    /// The kernel's.
    pub fn look_for_copies(&self, first: usize, copies: &mut [bool]) -> io::Result<()> {
        self.look_by(first, copies, |word| word & THERE != 0 && word & OF_FILE == 0)
    }

    fn look_by(
        &self,
        first: usize,
        pages: &mut [bool],
        is: impl Fn(u64) -> bool,
    ) -> io::Result<()> {
        let mut words = vec![0u8; pages.len() * 8];
        self.page_map.read_exact_at(&mut words, first as u64 * 8)?;
        for (page, word) in pages.iter_mut().zip(words.chunks_exact(8)) {
            *page = is(u64::from_le_bytes(word.try_into().expect("eight bytes")));
        }
        Ok(())
    }
}

impl ForeignMemory for ProcessMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        self.memory.read_exact_at(into, address)
    }

    fn look(&self, first: usize, there: &mut [bool]) -> io::Result<()> {
        self.look_by(first, there, |word| word & THERE != 0)
    }
}

/// True if a page has only zeros.
pub fn is_zero(page: &[u8]) -> bool {
    page.chunks_exact(64).all(|line| line == [0; 64])
}

/// Splits a range of addresses into parts that each lie in one block of `pages` pages.
pub fn blocks(start: u64, end: u64, pages: usize) -> impl Iterator<Item = (usize, usize)> {
    let (mut at, end) = (start as usize / PAGE, end as usize / PAGE);
    std::iter::from_fn(move || {
        let first = at;
        at = end.min((first / pages + 1) * pages);
        (first < end).then(|| (first, at - first))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_parts() {
        let page = PAGE as u64;
        let parts: Vec<_> = blocks(510 * page, 1026 * page, 512).collect();
        assert_eq!(parts, [(510, 2), (512, 512), (1024, 2)]);
        assert_eq!(blocks(page, page, 512).count(), 0);
    }
}
