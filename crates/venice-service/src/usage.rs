//! Usage of a grant's service: the host writes counters into a page, the supervisor reads them.
//!
//! The page is a file of memory that only these two have, sealed against another size. It is read
//! and written by calls, so neither side maps what the other one changes. A host can write what it
//! likes there: the numbers are for people.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};

/// Length of the page in bytes.
const PAGE_BYTES: usize = 56;
/// Attempts to read a page that is being written.
const ATTEMPTS: usize = 4;
/// Bits of the counters that a service has.
const HAS_BUSY: u64 = 1;
const HAS_IN: u64 = 2;
const HAS_OUT: u64 = 4;

/// Counters of a service, since its host started. A counter that is not known is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceUsage {
    /// Time in which the device had something to do, in nanoseconds.
    pub busy_ns: Option<u64>,
    /// Bytes that recipients have sent: by messages, and by stores in the host's memory.
    pub in_bytes: Option<u64>,
    /// Bytes that recipients have received: by messages, and by loads from the host's memory.
    pub out_bytes: Option<u64>,
    /// Commands, tasks or requests that were carried out, failed ones too.
    pub commands: u64,
}

/// Counters at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageSample {
    /// Time at which the host took them (`CLOCK_MONOTONIC`), in nanoseconds.
    pub at_ns: u64,
    /// The counters.
    pub usage: ServiceUsage,
}

impl UsageSample {
    fn emit(&self, sequence: u64) -> [u8; PAGE_BYTES] {
        let ServiceUsage { busy_ns, in_bytes, out_bytes, commands } = self.usage;
        let bit = |value: Option<u64>, bit: u64| if value.is_some() { bit } else { 0 };
        let has = bit(busy_ns, HAS_BUSY) | bit(in_bytes, HAS_IN) | bit(out_bytes, HAS_OUT);
        // A page whose ends differ was read while it was written.
        let words = [
            sequence << 3 | has,
            self.at_ns,
            busy_ns.unwrap_or(0),
            in_bytes.unwrap_or(0),
            out_bytes.unwrap_or(0),
            commands,
            sequence << 3 | has,
        ];
        let mut page = [0; PAGE_BYTES];
        for (bytes, word) in page.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        page
    }

    /// Reads a page; `None`: nothing was written yet, or it is being written.
    fn parse(page: &[u8; PAGE_BYTES]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(page.as_chunks::<8>().0[at]);
        let [first, at_ns, busy_ns, in_bytes, out_bytes, commands, last] =
            std::array::from_fn(word);
        if first != last || first >> 3 == 0 {
            return None;
        }
        let counter = |value: u64, bit: u64| (first & bit != 0).then_some(value);
        let usage = ServiceUsage {
            busy_ns: counter(busy_ns, HAS_BUSY),
            in_bytes: counter(in_bytes, HAS_IN),
            out_bytes: counter(out_bytes, HAS_OUT),
            commands,
        };
        Some(Self { at_ns, usage })
    }
}

/// The page as its host writes it.
#[derive(Debug)]
pub(crate) struct UsagePage {
    file: OwnedFd,
    sequence: u64,
    written: ServiceUsage,
}

impl UsagePage {
    /// Takes the page that came with the order.
    pub(crate) fn new(file: OwnedFd) -> Self {
        Self { file, sequence: 0, written: ServiceUsage::default() }
    }

    /// Writes counters, if they have changed or `at_ns` matters: busy time is a share of time.
    pub(crate) fn write(&mut self, at_ns: u64, usage: ServiceUsage) {
        if self.sequence > 0 && self.written == usage && usage.busy_ns.is_none() {
            return;
        }
        self.sequence += 1;
        self.written = usage;
        let page = UsageSample { at_ns, usage }.emit(self.sequence);
        // Without the page nothing is missing but numbers for people.
        let _ = pwrite(&self.file, &page, 0);
    }
}

/// The page as the supervisor reads it.
#[derive(Clone, Debug)]
pub(crate) struct UsageReader(Arc<OwnedFd>);

impl UsageReader {
    /// Makes a page that nothing was written to.
    ///
    /// # Errors
    /// The kernel's: no memory, or no descriptor.
    pub(crate) fn make() -> io::Result<Self> {
        let file = memfd_create("venice-usage", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, PAGE_BYTES as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self(Arc::new(file)))
    }

    /// Returns the file, to be sent to the host.
    pub(crate) fn file(&self) -> &OwnedFd {
        &self.0
    }

    /// Returns the counters that the host wrote last; `None` before the first ones.
    pub(crate) fn read(&self) -> Option<UsageSample> {
        (0..ATTEMPTS).find_map(|_| {
            let mut page = [0; PAGE_BYTES];
            match pread(&*self.0, &mut page, 0) {
                Ok(PAGE_BYTES) => UsageSample::parse(&page),
                Ok(_) | Err(_) => None,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_page_reads_back() {
        let reader = UsageReader::make().unwrap();
        assert_eq!(reader.read(), None, "nothing was written");
        let mut page = UsagePage::new(reader.file().try_clone().unwrap());
        let some = ServiceUsage {
            busy_ns: Some(5),
            in_bytes: Some(u64::MAX),
            out_bytes: None,
            commands: 7,
        };
        for (at_ns, usage) in
            [(1, some), (2, ServiceUsage { in_bytes: Some(0), ..some }), (3, some)]
        {
            page.write(at_ns, usage);
            assert_eq!(reader.read(), Some(UsageSample { at_ns, usage }));
        }
    }

    #[test]
    fn unchanged_counters_are_not_written() {
        let reader = UsageReader::make().unwrap();
        let mut page = UsagePage::new(reader.file().try_clone().unwrap());
        page.write(1, ServiceUsage::default());
        page.write(2, ServiceUsage::default());
        assert_eq!(reader.read().map(|it| it.at_ns), Some(1));
    }

    #[test]
    fn half_written_page_is_refused() {
        let old = UsageSample { at_ns: 1, usage: ServiceUsage::default() };
        let (mut page, new) = (old.emit(1), old.emit(2));
        page[..8].copy_from_slice(&new[..8]);
        assert_eq!(UsageSample::parse(&page), None);
    }

    #[test]
    fn page_keeps_its_size() {
        let reader = UsageReader::make().unwrap();
        assert!(ftruncate(reader.file(), 0).is_err());
        assert!(ftruncate(reader.file(), 1 << 20).is_err());
    }
}
