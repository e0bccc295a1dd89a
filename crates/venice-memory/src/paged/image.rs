//! The pager's tables as another process, or a core dump, sees them: the place of each page's
//! contents.
//!
//! Each pager of a program keeps one page of memory with the addresses of its tables, the header. The run block has the address of that page for each process. The header, the
//! page table and the staging area are the only memory of the pager that is in the kernel's core
//! dumps: with them the supervisor adds the far pages to a core dump of a dead process. All other
//! memory of the pager is `MADV_DONTDUMP`.
//!
//! The process may have been stopped or killed at any instruction. So the page table alone does not
//! decide: contents that are in the program's memory count, then those in a frame, then those in a
//! slot ([`Image::locate`]). This is the order in which a page leaves, and each step is over before
//! the next begins.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::PAGE;
use super::page_table::{self, LEAF_PAGES, PageNumber, ROOT_LEAVES, SavedEntry, State};
use super::staging::Staging;
use super::sys::{self, SysResult};

const MAGIC: u64 = u64::from_le_bytes(*b"VENIMG01");
/// Most threads of a pager: handler, evictor, waker.
const MOST_THREADS: usize = 4;
/// Pages of which an image is read at a time.
pub const BLOCK_PAGES: usize = page_table::BLOCK_PAGES;

/// The addresses of a pager's tables, in a page of their own.
#[derive(Debug)]
#[repr(C)]
pub(super) struct ImageHeader {
    magic: AtomicU64,
    table_root: AtomicU64,
    staging_base: AtomicU64,
    frames: AtomicU64,
    frame_owners: AtomicU64,
    /// The first page of the sweep chunk that moves to the staging area now.
    moving_page: AtomicU64,
    /// Its first frame, and the number of frames in the upper half; 0: no chunk moves.
    moving_frames: AtomicU64,
    threads: [AtomicU32; MOST_THREADS],
}

/// The only handle of a header; unmaps it.
#[derive(Debug)]
pub(super) struct ImagePage(&'static ImageHeader);

impl ImagePage {
    /// Maps a header that lists `staging` and the page table at `table_root`.
    ///
    /// # Errors
    /// The kernel's, when there is no memory for a page.
    pub fn new(staging: &Staging, table_root: usize) -> SysResult<ImagePage> {
        let memory = sys::map_dumped(PAGE)?;
        // SAFETY: fresh zeroed memory, longer than the header; zeros are a valid header.
        let header = unsafe { &*memory.cast::<ImageHeader>() };
        let (base, len_bytes) = staging.memory();
        header.table_root.store(table_root as u64, Ordering::Relaxed);
        header.staging_base.store(base as u64, Ordering::Relaxed);
        header.frames.store((len_bytes / PAGE) as u64, Ordering::Relaxed);
        header.frame_owners.store(staging.owners_address() as u64, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(ImagePage(header))
    }

    /// The address of the header.
    pub fn address(&self) -> u64 {
        std::ptr::from_ref(self.0) as u64
    }

    /// Records that the pages from `page` on are about to move to the `count` frames from `frame`
    /// on. Until [`ImagePage::end_move`] they may be in these frames, unknown to the page table.
    pub fn begin_move(&self, page: PageNumber, frame: u32, count: usize) {
        self.0.moving_page.store(page as u64, Ordering::Relaxed);
        self.0.moving_frames.store(u64::from(frame) | (count as u64) << 32, Ordering::Release);
    }

    /// Records that the page table lists all that has moved.
    pub fn end_move(&self) {
        self.0.moving_frames.store(0, Ordering::Release);
    }

    /// Adds the calling thread to the pager's threads.
    pub fn add_thread(&self) {
        let thread = sys::gettid();
        let is_free = |word: &&AtomicU32| {
            word.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        // A thread beyond them is stopped with the program's, which does no harm but takes a
        // debugger of a program in a fault longer.
        let _ = self.0.threads.iter().find(is_free);
    }

    /// Removes the threads of the parent, in a forked child.
    pub fn forget_threads(&self) {
        self.0.threads.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.end_move();
    }
}

impl Drop for ImagePage {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; the handle is the only way to it.
        unsafe { sys::unmap(std::ptr::from_ref(self.0).cast_mut().cast(), PAGE) };
    }
}

/// The memory of a stopped process, or of a core dump.
pub trait ForeignMemory {
    /// Reads the bytes from `address` on.
    ///
    /// # Errors
    /// If they are not there.
    fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()>;

    /// Sets for each page from `first` on if it has contents in memory.
    ///
    /// # Errors
    /// If that cannot be found out.
    fn look(&self, first: PageNumber, there: &mut [bool]) -> io::Result<()>;
}

/// The place of a page's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// In the program's memory, at the page's own address.
    InPlace,
    /// Nowhere: it reads as zeros.
    Zeros,
    /// In the staging area, at this address.
    Staged(u64),
    /// In this far slot.
    Far(u32),
    /// Lost with the donor.
    Lost,
}

/// An error of reading the tables of a pager.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The memory could not be read.
    #[error("reading the pager's tables failed")]
    Unread(#[from] io::Error),
    /// There is no header at the address.
    #[error("the pager's tables are not in it, or are of another version of Venice")]
    Missing,
}

/// The tables of a pager in another process, or in a core dump.
pub struct Image<'a, M> {
    memory: &'a M,
    header: u64,
    table_root: u64,
    staging_base: u64,
    frames: u64,
    frame_owners: u64,
    moving_page: u64,
    moving: std::ops::Range<u64>,
    threads: Vec<u32>,
}

impl<'a, M: ForeignMemory> Image<'a, M> {
    /// Opens the tables whose header is at `header`.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn open(memory: &'a M, header: u64) -> Result<Image<'a, M>, ImageError> {
        let mut words = [0u64; size_of::<ImageHeader>() / 8];
        read_words(memory, header, &mut words)?;
        let [magic, table_root, staging_base, frames, frame_owners, moving_page, moving, ..] =
            words;
        if magic != MAGIC {
            return Err(ImageError::Missing);
        }
        let first = moving & u64::from(u32::MAX);
        let threads = words[7..].iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]);
        Ok(Image {
            memory,
            header,
            table_root,
            staging_base,
            frames,
            frame_owners,
            moving_page,
            moving: first..first + (moving >> 32),
            threads: threads.filter(|thread| *thread != 0).collect(),
        })
    }

    /// The pager's threads.
    pub fn threads(&self) -> &[u32] {
        &self.threads
    }

    /// The addresses of the tables and of the staging area.
    ///
    /// # Errors
    /// If the tables cannot be read.
    pub fn own_memory(&self) -> io::Result<Vec<std::ops::Range<u64>>> {
        let span =
            |start: u64, len_bytes: u64| start..start + len_bytes.next_multiple_of(PAGE as u64);
        let mut own = vec![
            span(self.header, PAGE as u64),
            span(self.table_root, (ROOT_LEAVES * 8) as u64),
            span(self.staging_base, self.frames * PAGE as u64),
            span(self.frame_owners, self.frames * 8),
        ];
        let leaf_bytes = page_table::leaf_bytes() as u64;
        own.extend(self.leaves()?.into_iter().map(|leaf| span(leaf, leaf_bytes)));
        Ok(own)
    }

    fn leaves(&self) -> io::Result<Vec<u64>> {
        let mut leaves = Vec::new();
        let mut part = [0u64; PAGE / 8];
        for at in (0..ROOT_LEAVES).step_by(part.len()) {
            let first = self.table_root as usize / PAGE + at * 8 / PAGE;
            let mut there = [false];
            self.memory.look(first, &mut there)?;
            if there[0] {
                read_words(self.memory, self.table_root + (at * 8) as u64, &mut part)?;
                leaves.extend(part.iter().filter(|leaf| **leaf != 0));
            }
        }
        Ok(leaves)
    }

    /// Finds the contents of the pages from `first` on, which lie in one aligned block of
    /// [`BLOCK_PAGES`]. `there` says for each if it has contents at its own address.
    ///
    /// # Errors
    /// If the tables cannot be read.
    pub fn locate(&self, first: PageNumber, there: &[bool]) -> io::Result<Vec<Contents>> {
        assert!(first % BLOCK_PAGES + there.len() <= BLOCK_PAGES, "the pages lie in one block");
        let saved =
            if there.iter().all(|it| *it) { None } else { self.entries(first, there.len())? };
        let of = |(at, there): (usize, &bool)| match (there, &saved) {
            (true, _) => Ok(Contents::InPlace),
            (false, None) => Ok(Contents::Zeros),
            (false, Some(saved)) => self.locate_absent(first + at, &saved[at]),
        };
        there.iter().enumerate().map(of).collect()
    }

    /// Finds the contents of a page that has none at its own address.
    fn locate_absent(&self, page: PageNumber, entry: &SavedEntry) -> io::Result<Contents> {
        match entry.state {
            // The program dropped it by a bare system call.
            State::Zero | State::Resident => Ok(Contents::Zeros),
            State::Poisoned => Ok(Contents::Lost),
            State::Staged => Ok(Contents::Staged(self.frame_address(u64::from(entry.frame)))),
            State::Far => Ok(entry.slot.map_or(Contents::Zeros, Contents::Far)),
            State::Busy => self.locate_busy(page, entry),
        }
    }

    /// Finds the contents of a page on which a thread of the pager was at work.
    fn locate_busy(&self, page: PageNumber, entry: &SavedEntry) -> io::Result<Contents> {
        if let Some(at) = (page as u64).checked_sub(self.moving_page) {
            let frame = self.moving.start + at;
            if self.moving.contains(&frame) && self.is_filled(frame)? {
                return Ok(Contents::Staged(self.frame_address(frame)));
            }
        }
        let frame = u64::from(entry.frame);
        let mut owner = [0u64];
        if frame < self.frames {
            read_words(self.memory, self.frame_owners + frame * 8, &mut owner)?;
        }
        if owner[0] == page as u64 && self.is_filled(frame)? {
            return Ok(Contents::Staged(self.frame_address(frame)));
        }
        Ok(entry.slot.map_or(Contents::Zeros, Contents::Far))
    }

    fn frame_address(&self, frame: u64) -> u64 {
        self.staging_base + frame * PAGE as u64
    }

    fn is_filled(&self, frame: u64) -> io::Result<bool> {
        let mut there = [false];
        self.memory.look((self.frame_address(frame) / PAGE as u64) as PageNumber, &mut there)?;
        Ok(there[0])
    }

    /// Reads the entries of pages; `None`: they are all zero.
    fn entries(&self, first: PageNumber, count: usize) -> io::Result<Option<Vec<SavedEntry>>> {
        if first / LEAF_PAGES >= ROOT_LEAVES {
            return Ok(None);
        }
        let mut leaf = [0u64];
        read_words(self.memory, self.table_root + (first / LEAF_PAGES * 8) as u64, &mut leaf)?;
        if leaf[0] == 0 {
            return Ok(None);
        }
        let index = first % LEAF_PAGES;
        let mut live = [0u8; 4];
        self.memory.read(leaf[0] + page_table::live_offset(index) as u64, &mut live)?;
        if u32::from_le_bytes(live) == 0 {
            return Ok(None);
        }
        let mut bytes = vec![0u8; count * page_table::ENTRY_BYTES];
        self.memory.read(leaf[0] + (index * page_table::ENTRY_BYTES) as u64, &mut bytes)?;
        Ok(Some(bytes.chunks_exact(page_table::ENTRY_BYTES).map(SavedEntry::decode).collect()))
    }
}

fn read_words(memory: &impl ForeignMemory, address: u64, words: &mut [u64]) -> io::Result<()> {
    let mut bytes = vec![0u8; words.len() * 8];
    memory.read(address, &mut bytes)?;
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::address_of;
    use super::super::page_table::PageTable;
    use super::super::staging::Frame;
    use super::*;

    /// This process's own memory.
    struct Here;

    impl ForeignMemory for Here {
        fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
            // SAFETY: the tests name mapped memory only.
            let from = unsafe { std::slice::from_raw_parts(address as *const u8, into.len()) };
            into.copy_from_slice(from);
            Ok(())
        }

        fn look(&self, first: PageNumber, there: &mut [bool]) -> io::Result<()> {
            let mut pages = vec![0u8; there.len()];
            sys::mincore(address_of(first), &mut pages).map_err(|_| io::ErrorKind::Other)?;
            there.iter_mut().zip(pages).for_each(|(there, page)| *there = page & 1 != 0);
            Ok(())
        }
    }

    struct Tables {
        table: PageTable,
        staging: Staging,
        page: ImagePage,
    }

    impl Tables {
        fn new() -> Tables {
            let (table, staging) = (PageTable::new().unwrap(), Staging::new(2, 1).unwrap());
            let page = ImagePage::new(&staging, table.root_address()).unwrap();
            table.cover(FIRST..FIRST + 8).unwrap();
            Tables { table, staging, page }
        }

        fn put(&self, at: usize, state: State, slot: Option<u32>, frame: u32) {
            let entry = self.table.entry(FIRST + at).unwrap();
            assert!(entry.claim(State::Zero));
            self.table.count_live(FIRST + at);
            entry.set_slot(slot);
            entry.set_frame(frame);
            if state != State::Busy {
                let _ = entry.release(state);
            }
        }

        fn fill(&self, frame: u32) -> Contents {
            let address = self.staging.address(frame);
            // SAFETY: a frame of the area.
            unsafe { *(address as *mut u8) = 1 };
            Contents::Staged(address as u64)
        }

        fn locate(&self, there: &[bool]) -> Vec<Contents> {
            Image::open(&Here, self.page.address()).unwrap().locate(FIRST, there).unwrap()
        }
    }

    const FIRST: PageNumber = 7 * BLOCK_PAGES;

    #[test]
    fn settled_pages_follow_table() {
        let tables = Tables::new();
        tables.put(1, State::Resident, Some(4), 0);
        tables.put(2, State::Far, Some(9), 0);
        tables.put(3, State::Staged, Some(8), 5);
        tables.put(4, State::Poisoned, None, 0);
        let staged = Contents::Staged(tables.staging.address(5) as u64);
        let expected = [Contents::Zeros, Contents::Zeros, Contents::Far(9), staged, Contents::Lost];
        assert_eq!(tables.locate(&[false; 5]), expected);
        assert_eq!(tables.locate(&[true; 5]), [Contents::InPlace; 5]);
    }

    #[test]
    fn busy_page_found_in_frame() {
        let tables = Tables::new();
        for at in 0..4 {
            tables.put(at, State::Busy, Some(10 + at as u32), 3);
        }
        // The second is in the frame that the table lists; the third is on its way to another.
        tables.staging.set(3, Frame::Page(FIRST + 1));
        let listed = tables.fill(3);
        tables.page.begin_move(FIRST, 64, 4);
        let moving = tables.fill(66);
        let expected = [Contents::Far(10), listed, moving, Contents::Far(13)];
        assert_eq!(tables.locate(&[false; 4]), expected);
        tables.page.end_move();
        assert_eq!(tables.locate(&[false; 4])[2], Contents::Far(12));
    }

    #[test]
    fn own_memory_covers_tables() {
        let tables = Tables::new();
        let image = Image::open(&Here, tables.page.address()).unwrap();
        let entry = std::ptr::from_ref(tables.table.entry(FIRST).unwrap()) as u64;
        let own = image.own_memory().unwrap();
        let covers = |address: u64| own.iter().any(|range| range.contains(&address));
        assert!(
            [tables.page.address(), entry, tables.staging.address(0) as u64].map(covers)
                == [true; 3]
        );
        let other = 0u64;
        assert!(!covers(&raw const other as u64));
    }

    #[test]
    fn other_memory_is_no_image() {
        let words = [0u64; 64];
        let opened = Image::open(&Here, words.as_ptr() as u64);
        assert!(matches!(opened.err(), Some(ImageError::Missing)));
    }
}
