//! The device's bytes, independent of the transport: which pages are far, which are zeros.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use venice_wire::PAGE_BYTES;

use crate::backing::{Backing, BackingError};
use crate::counters::{Counters, count};
use crate::page_map::PageMap;

const PAGE: usize = PAGE_BYTES as usize;

/// The common state of all queues of a device.
#[derive(Clone, Debug)]
pub struct Store {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    len_bytes: u64,
    pages: PageMap,
    counters: Counters,
}

/// A range that is not whole pages of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadRange;

impl Store {
    /// Creates a device of `len_bytes`, all zeros.
    ///
    /// # Panics
    /// Panics if that is not a whole number of pages.
    #[must_use]
    pub fn new(len_bytes: u64) -> Self {
        assert!(len_bytes.is_multiple_of(PAGE_BYTES), "a device is a whole number of pages");
        let (pages, counters) = (PageMap::new(len_bytes), Counters::new());
        Self { shared: Arc::new(Shared { len_bytes, pages, counters }) }
    }

    /// Returns the length of the device in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.shared.len_bytes
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Returns the bytes of the device that donors hold.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.shared.pages.held_pages() * PAGE_BYTES
    }

    /// Checks that a request is for whole pages of the device.
    pub(crate) fn check(&self, offset: u64, len_bytes: u64) -> Result<(), BadRange> {
        let end = offset.checked_add(len_bytes).ok_or(BadRange)?;
        let whole = offset.is_multiple_of(PAGE_BYTES) && len_bytes.is_multiple_of(PAGE_BYTES);
        if whole && end <= self.shared.len_bytes { Ok(()) } else { Err(BadRange) }
    }

    /// Fills `into`; the caller has checked the range.
    pub(crate) fn read(
        &self,
        backing: &mut dyn Backing,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), BackingError> {
        let Shared { pages, counters, .. } = &*self.shared;
        count(&counters.reads, 1);
        count(&counters.read_bytes, into.len() as u64);
        let first = offset / PAGE_BYTES;
        let held = |index: usize| pages.is_held(first + index as u64);
        let read = each_run(into.len() / PAGE, held, |run, is_held| {
            let bytes = &mut into[run.start * PAGE..run.end * PAGE];
            if is_held {
                return backing.read(offset + (run.start * PAGE) as u64, bytes);
            }
            count(&counters.zero_pages, run.len() as u64);
            bytes.fill(0);
            Ok(())
        });
        read.inspect_err(|_| count(&counters.failed, 1))
    }

    /// Stores `from`; the caller has checked the range.
    pub(crate) fn write(
        &self,
        backing: &mut dyn Backing,
        offset: u64,
        from: &[u8],
    ) -> Result<(), BackingError> {
        let Shared { pages, counters, .. } = &*self.shared;
        count(&counters.writes, 1);
        count(&counters.written_bytes, from.len() as u64);
        let first = offset / PAGE_BYTES;
        let is_zero = |index: usize| is_zero(&from[index * PAGE..(index + 1) * PAGE]);
        let written = each_run(from.len() / PAGE, is_zero, |run, zeros| {
            let range = first + run.start as u64..first + run.end as u64;
            if zeros {
                count(&counters.zero_pages, run.len() as u64);
                pages.clear(range);
                return Ok(());
            }
            let bytes = &from[run.start * PAGE..run.end * PAGE];
            backing.write(offset + (run.start * PAGE) as u64, bytes)?;
            pages.hold(range);
            Ok(())
        });
        written.inspect_err(|_| count(&counters.failed, 1))
    }

    /// Discards bytes; the caller has checked the range.
    pub(crate) fn discard(&self, offset: u64, len_bytes: u64) {
        let first = offset / PAGE_BYTES;
        count(&self.shared.counters.discarded_pages, len_bytes / PAGE_BYTES);
        self.shared.pages.clear(first..first + len_bytes / PAGE_BYTES);
    }

    pub(crate) fn answered(&self, started_ns: u64, now_ns: u64) {
        self.shared.counters.request_ns.record(now_ns.saturating_sub(started_ns));
    }

    /// Returns the failed requests so far.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.shared.counters.failed.load(Ordering::Relaxed)
    }
}

/// Calls `work` for each run of pages with the same `kind`.
fn each_run(
    pages: usize,
    kind: impl Fn(usize) -> bool,
    mut work: impl FnMut(std::ops::Range<usize>, bool) -> Result<(), BackingError>,
) -> Result<(), BackingError> {
    let mut start = 0;
    while start < pages {
        let this = kind(start);
        let end = (start + 1..pages).find(|&page| kind(page) != this).unwrap_or(pages);
        work(start..end, this)?;
        start = end;
    }
    Ok(())
}

fn is_zero(page: &[u8]) -> bool {
    let (words, rest) = page.as_chunks::<64>();
    rest.iter().all(|byte| *byte == 0) && words.iter().all(|word| *word == [0; 64])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backing::OwnMemory;

    struct Counting {
        own: OwnMemory,
        calls: Vec<(u64, usize)>,
    }

    impl Backing for Counting {
        fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), BackingError> {
            self.calls.push((offset, into.len()));
            self.own.read(offset, into)
        }

        fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), BackingError> {
            self.calls.push((offset, from.len()));
            self.own.write(offset, from)
        }
    }

    #[test]
    fn zero_pages_are_not_transferred() {
        let store = Store::new(64 * PAGE_BYTES);
        let mut backing = Counting { own: OwnMemory::new(64 * PAGE_BYTES), calls: Vec::new() };
        let mut bytes = vec![0u8; 6 * PAGE];
        bytes[PAGE..3 * PAGE].fill(7);
        bytes[5 * PAGE + 4095] = 1;
        store.write(&mut backing, 8 * PAGE_BYTES, &bytes).unwrap();
        let page = PAGE_BYTES;
        assert_eq!(backing.calls, [(9 * page, 2 * PAGE), (13 * page, PAGE)]);
        assert_eq!(store.held_bytes(), 3 * page);

        backing.calls.clear();
        let mut back = vec![9u8; 8 * PAGE];
        store.read(&mut backing, 7 * page, &mut back).unwrap();
        assert!(back[..PAGE].iter().all(|b| *b == 0) && back[PAGE..7 * PAGE] == bytes[..]);
        assert_eq!(backing.calls, [(9 * page, 2 * PAGE), (13 * page, PAGE)]);

        store.discard(9 * page, page);
        store.read(&mut backing, 9 * page, &mut back[..2 * PAGE]).unwrap();
        assert!(back[..PAGE].iter().all(|b| *b == 0) && back[PAGE] == 7);
        // Zeros over a held page: it is released.
        store.write(&mut backing, 10 * page, &[0; PAGE]).unwrap();
        assert_eq!(store.held_bytes(), page);
    }

    #[test]
    fn partial_pages_are_rejected() {
        let store = Store::new(4 * PAGE_BYTES);
        assert_eq!(store.check(0, 4 * PAGE_BYTES), Ok(()));
        for (offset, len) in [(512, 4096), (0, 512), (4096, 4 * 4096), (u64::MAX - 4095, 4096)] {
            assert_eq!(store.check(offset, len), Err(BadRange));
        }
    }

    #[test]
    fn failed_write_leaves_page_unheld() {
        struct Broken;
        impl Backing for Broken {
            fn read(&mut self, _: u64, _: &mut [u8]) -> Result<(), BackingError> {
                Err(BackingError { reason: "lost" })
            }
            fn write(&mut self, _: u64, _: &[u8]) -> Result<(), BackingError> {
                Err(BackingError { reason: "lost" })
            }
        }
        let store = Store::new(4 * PAGE_BYTES);
        store.write(&mut Broken, 0, &[1; PAGE]).unwrap_err();
        assert_eq!((store.held_bytes(), store.failed()), (0, 1));
    }
}
