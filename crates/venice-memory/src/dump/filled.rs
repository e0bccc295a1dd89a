//! The contents of a block of pages, gathered from wherever they are.

use std::io;

use super::process_memory::is_zero;
use super::{AbsentPages, DumpError};
use crate::paged::PAGE;
use crate::paged::image::{Contents, ForeignMemory};

/// Far pages asked for at a time.
const FAR_PAGES: usize = 64;

/// Numbers of pages that were gathered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    /// Pages brought from donors.
    pub far: u64,
    /// Pages taken from the staging area.
    pub staged: u64,
    /// Pages whose contents are lost: they are zeros in the file.
    pub lost: u64,
}

impl Gathered {
    /// Adds the numbers of another block.
    pub fn add(&mut self, other: Gathered) {
        self.far += other.far;
        self.staged += other.staged;
        self.lost += other.lost;
    }
}

/// Fills `into` with the staged and far pages of a block whose pages lie as `contents` says. Other
/// pages stay as they are.
pub fn gather(
    memory: &impl ForeignMemory,
    contents: &[Contents],
    into: &mut [u8],
    far: &mut dyn AbsentPages,
) -> Result<Gathered, DumpError> {
    let mut gathered = Gathered::default();
    let mut wanted: Vec<(usize, u32)> = Vec::new();
    for (at, contents) in contents.iter().enumerate() {
        match *contents {
            Contents::InPlace | Contents::Zeros => {}
            Contents::Lost => gathered.lost += 1,
            Contents::Far(slot) => wanted.push((at, slot)),
            Contents::Staged(address) => {
                let page = &mut into[at * PAGE..][..PAGE];
                match memory.read(address, page) {
                    Ok(()) => gathered.staged += 1,
                    Err(_) => gathered.lost += 1,
                }
            }
        }
    }
    let mut pages = vec![0u8; FAR_PAGES.min(wanted.len()) * PAGE];
    for wanted in wanted.chunks(FAR_PAGES) {
        let slots: Vec<u32> = wanted.iter().map(|(_, slot)| *slot).collect();
        let bytes = &mut pages[..slots.len() * PAGE];
        let found = far.far(&slots, bytes).map_err(DumpError::Far)?;
        for (((at, _), page), found) in wanted.iter().zip(bytes.chunks_exact(PAGE)).zip(found) {
            if found {
                into[at * PAGE..][..PAGE].copy_from_slice(page);
                gathered.far += 1;
            } else {
                gathered.lost += 1;
            }
        }
    }
    Ok(gathered)
}

/// Fills `into` with the shared pages from `first` on. `there` says for each if the process had it
/// mapped. Where that is not so and it has contents it counts as far.
pub fn gather_shared(
    first: usize,
    there: &[bool],
    into: &mut [u8],
    far: &mut dyn AbsentPages,
) -> Result<Gathered, DumpError> {
    let mut gathered = Gathered::default();
    let found = far.shared(first, into).map_err(DumpError::Far)?;
    for ((page, found), there) in into.chunks_exact(PAGE).zip(found).zip(there) {
        match (found, there) {
            (false, _) => gathered.lost += 1,
            (true, false) if !is_zero(page) => gathered.far += 1,
            (true, _) => {}
        }
    }
    Ok(gathered)
}

/// Calls `write` for each stretch of pages that are not all zeros, with its offset in bytes.
pub fn write_filled(
    pages: &[u8],
    mut write: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> Result<u64, DumpError> {
    let is_filled = |at: usize| !is_zero(&pages[at * PAGE..][..PAGE]);
    let (count, mut written, mut at) = (pages.len() / PAGE, 0, 0);
    while at < count {
        let start = at;
        while at < count && is_filled(at) {
            at += 1;
        }
        if start < at {
            let bytes = &pages[start * PAGE..at * PAGE];
            write((start * PAGE) as u64, bytes).map_err(DumpError::File)?;
            written += bytes.len() as u64;
        }
        at += 1;
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl ForeignMemory for Nothing {
        fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
            into.fill(address as u8);
            Ok(())
        }

        fn look(&self, _first: usize, _there: &mut [bool]) -> io::Result<()> {
            Ok(())
        }
    }

    /// Slot 7 and the shared pages below 3 are there.
    struct Donors;

    impl AbsentPages for Donors {
        fn far(&mut self, slots: &[u32], into: &mut [u8]) -> io::Result<Vec<bool>> {
            into.chunks_exact_mut(PAGE).zip(slots).for_each(|(page, slot)| page.fill(*slot as u8));
            Ok(slots.iter().map(|slot| *slot == 7).collect())
        }

        fn shared(&mut self, first: usize, into: &mut [u8]) -> io::Result<Vec<bool>> {
            let pages = into.chunks_exact_mut(PAGE).zip(first..);
            Ok(pages.map(|(page, at)| (page.fill(at as u8), at < 3).1).collect())
        }
    }

    #[test]
    fn shared_pages_are_counted() {
        let mut pages = vec![0u8; 4 * PAGE];
        let there = [false, true, false, false];
        let gathered = gather_shared(0, &there, &mut pages, &mut Donors).unwrap();
        assert_eq!(gathered, Gathered { far: 1, staged: 0, lost: 1 });
    }

    #[test]
    fn pages_come_from_their_places() {
        let mut contents = vec![Contents::Far(7); 40];
        contents[..4].copy_from_slice(&[
            Contents::InPlace,
            Contents::Staged(3),
            Contents::Lost,
            Contents::Zeros,
        ]);
        contents[39] = Contents::Far(9);
        let mut pages = vec![1u8; contents.len() * PAGE];
        let gathered = gather(&Nothing, &contents, &mut pages, &mut Donors).unwrap();
        assert_eq!(gathered, Gathered { far: 35, staged: 1, lost: 2 });
        let firsts: Vec<u8> = pages.chunks_exact(PAGE).map(|page| page[0]).collect();
        assert_eq!(firsts[..5], [1, 3, 1, 1, 7]);
        assert_eq!((firsts[38], firsts[39]), (7, 1));
    }

    #[test]
    fn zero_pages_are_not_written() {
        let mut pages = vec![0u8; 6 * PAGE];
        (pages[PAGE], pages[3 * PAGE - 1], pages[5 * PAGE]) = (1, 1, 1);
        let mut parts = Vec::new();
        let written = write_filled(&pages, |offset, bytes| {
            parts.push((offset as usize / PAGE, bytes.len() / PAGE));
            Ok(())
        });
        assert_eq!(written.unwrap(), 3 * PAGE as u64);
        assert_eq!(parts, [(1, 2), (5, 1)]);
    }
}
