//! A core file that the kernel wrote, and its completion by the far pages.
//!
//! The kernel leaves a hole in the file for a page that is not in memory. The header, the page
//! table and the staging area of the pager are in the file; they tell where each page is, and are
//! taken out at the end.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{FallocateFlags, SeekFrom};

use super::elf::{self, Segment};
use super::filled::{self, Gathered};
use super::process_memory::{blocks, is_zero};
use super::{AbsentPages, DumpError, notes};
use crate::paged::PAGE;
use crate::paged::image::{BLOCK_PAGES, Contents, ForeignMemory, Image, ImageError};

/// Most bytes of notes that are read: those of the process come with the first thread's.
/// The kernel lists mapped files in up to 4 MiB.
const MOST_NOTES_BYTES: u64 = 8 << 20;

/// A completed core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// Pages added.
    pub added_pages: u64,
    /// Pages that the file lacks: lost with their donors, or beyond its end.
    pub missing_pages: u64,
    /// True if the file ends early: its size was limited, or the disk was full.
    pub is_cut_off: bool,
}

/// Returns the process whose core `file` is; `None`: it is no core file.
pub fn process_of(file: &File) -> Option<u32> {
    notes::process_id(&CoreFile::open(file).ok()?.notes().ok()?)
}

/// Adds the far and staged pages to a core file of the kernel's, and takes the pager's tables out of
/// it. `header` is the address of the header of the pager's tables. The process's far slots must
/// be held until the end.
///
/// # Errors
/// [`DumpError`]; some pages may have been added then.
pub fn complete_core(
    file: &File,
    header: u64,
    far: &mut dyn AbsentPages,
) -> Result<Completed, DumpError> {
    let core = CoreFile::open(file)?;
    let lacks_tables = |error: ImageError| match core.is_cut_off() {
        true => DumpError::CutOff,
        false => DumpError::Image(error),
    };
    let image = Image::open(&core, header).map_err(lacks_tables)?;
    let own = image.own_memory().map_err(|error| lacks_tables(error.into()))?;
    let mut completed = Completed { is_cut_off: core.is_cut_off(), ..Completed::default() };
    let shared = notes::shared_pages(&core.notes().map_err(DumpError::File)?);
    for segment in core.loads() {
        let is_own = own.iter().any(|own| own.contains(&segment.address));
        let end = if is_own { segment.address } else { segment.address + segment.file_bytes };
        let shared = shared.get(&segment.address).copied();
        for (first, count) in blocks(segment.address, end, BLOCK_PAGES) {
            let block = (first, count);
            let gathered = match shared.map(|at| at + first - segment.address as usize / PAGE) {
                Some(at) => core.complete_shared(segment, block, at, far)?,
                None => core.complete_block(&image, segment, block, far)?,
            };
            completed.added_pages += gathered.far + gathered.staged;
            completed.missing_pages += gathered.lost;
        }
    }
    core.take_out(&own).map_err(DumpError::File)?;
    Ok(completed)
}

/// A core file.
struct CoreFile<'a> {
    file: &'a File,
    len_bytes: u64,
    /// True if a hole of the file is never larger than the absent pages.
    has_exact_holes: bool,
    segments_at: u64,
    segments: Vec<Segment>,
}

impl<'a> CoreFile<'a> {
    fn open(file: &'a File) -> Result<CoreFile<'a>, DumpError> {
        let facts = file.metadata().map_err(DumpError::File)?;
        let read = |at: u64, len_bytes: usize| {
            let mut bytes = vec![0u8; len_bytes];
            file.read_exact_at(&mut bytes, at).map(|()| bytes)
        };
        let cut_off = |_| DumpError::NotCore("it ends within its headers");
        let head = read(0, elf::HEADER_BYTES).map_err(cut_off)?;
        let head = elf::decode_head(&head).map_err(DumpError::NotCore)?;
        let count = match head.section_at {
            Some(at) => elf::count_in_section(&read(at, elf::SECTION_BYTES).map_err(cut_off)?),
            None => head.count,
        };
        let table_bytes = count * elf::SEGMENT_BYTES;
        if head.segments_at.saturating_add(table_bytes as u64) > facts.len() {
            return Err(DumpError::NotCore("it ends within its headers"));
        }
        let table = read(head.segments_at, table_bytes).map_err(cut_off)?;
        Ok(CoreFile {
            file,
            len_bytes: facts.len(),
            has_exact_holes: facts.blksize() <= PAGE as u64,
            segments_at: head.segments_at,
            segments: table.chunks_exact(elf::SEGMENT_BYTES).map(Segment::decode).collect(),
        })
    }

    fn notes(&self) -> io::Result<Vec<u8>> {
        let Some(notes) = self.segments.iter().find(|it| it.kind == elf::PT_NOTE) else {
            return Ok(Vec::new());
        };
        let mut bytes = vec![0u8; notes.file_bytes.min(MOST_NOTES_BYTES) as usize];
        self.file.read_exact_at(&mut bytes, notes.offset)?;
        Ok(bytes)
    }

    fn loads(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|it| it.kind == elf::PT_LOAD && it.file_bytes > 0)
    }

    fn is_cut_off(&self) -> bool {
        self.loads().any(|it| it.offset.saturating_add(it.file_bytes) > self.len_bytes)
    }

    /// The offset in the file of an address, and the bytes that follow it there.
    fn place_of(&self, address: u64) -> Option<(u64, u64)> {
        let covers = |it: &&Segment| (it.address..it.address + it.file_bytes).contains(&address);
        let segment = self.loads().find(covers)?;
        let within = address - segment.address;
        let offset = segment.offset + within;
        let end = (segment.offset + segment.file_bytes).min(self.len_bytes);
        (offset < end).then(|| (offset, end - offset))
    }

    /// True for memory of which the kernel has written nothing. Tables that were never written are
    /// such memory.
    fn is_left_out(&self, address: u64) -> bool {
        let covers = |it: &Segment| (it.address..it.address + it.memory_bytes).contains(&address);
        self.segments.iter().any(|it| it.kind == elf::PT_LOAD && it.file_bytes == 0 && covers(it))
    }

    /// Adds the absent pages `(first, count)` of a segment.
    fn complete_block(
        &self,
        image: &Image<'_, CoreFile<'_>>,
        segment: &Segment,
        (first, count): (usize, usize),
        far: &mut dyn AbsentPages,
    ) -> Result<Gathered, DumpError> {
        let unread = |error: io::Error| DumpError::Image(error.into());
        let mut there = vec![false; count];
        self.look(first, &mut there).map_err(unread)?;
        let contents = image.locate(first, &there).map_err(unread)?;
        let is_elsewhere = |it: &Contents| !matches!(it, Contents::InPlace | Contents::Zeros);
        if !contents.iter().any(is_elsewhere) {
            return Ok(Gathered::default());
        }
        let mut pages = vec![0u8; count * PAGE];
        let offset = segment.offset + (first * PAGE) as u64 - segment.address;
        if offset + pages.len() as u64 > self.len_bytes && self.is_cut_off() {
            let missing = contents.iter().filter(|it| is_elsewhere(it)).count();
            return Ok(Gathered { lost: missing as u64, ..Gathered::default() });
        }
        let gathered = filled::gather(self, &contents, &mut pages, far)?;
        filled::write_filled(&pages, |at, bytes| self.file.write_all_at(bytes, offset + at))?;
        Ok(gathered)
    }

    /// Adds the absent pages `(first, count)` of a segment of shared memory, whose number there is
    /// `at`.
    fn complete_shared(
        &self,
        segment: &Segment,
        (first, count): (usize, usize),
        at: usize,
        far: &mut dyn AbsentPages,
    ) -> Result<Gathered, DumpError> {
        let mut there = vec![false; count];
        self.look(first, &mut there).map_err(|error| DumpError::Image(error.into()))?;
        let mut pages = vec![0u8; count * PAGE];
        let offset = segment.offset + (first * PAGE) as u64 - segment.address;
        let fitting = match self.is_cut_off() {
            true => count.min((self.len_bytes.saturating_sub(offset) / PAGE as u64) as usize),
            false => count,
        };
        let (pages, beyond) = pages.split_at_mut(fitting * PAGE);
        let (there, there_beyond) = there.split_at(fitting);
        let mut gathered = filled::gather_shared(at, there, pages, far)?;
        let cut_off = filled::gather_shared(at + fitting, there_beyond, beyond, far)?;
        gathered.lost += cut_off.far + cut_off.lost;
        // Pages that the process had are as it left them.
        let had = pages.chunks_exact_mut(PAGE).zip(there).filter(|(_, there)| **there);
        had.for_each(|(page, _)| page.fill(0));
        filled::write_filled(pages, |at, bytes| self.file.write_all_at(bytes, offset + at))?;
        Ok(gathered)
    }

    /// Takes the memory `own` out of the file: segments that are all of it no longer count, and the
    /// disk is freed as far as the file system can.
    fn take_out(&self, own: &[Range<u64>]) -> io::Result<()> {
        for (index, segment) in self.segments.iter().enumerate() {
            if segment.kind != elf::PT_LOAD || segment.file_bytes == 0 {
                continue;
            }
            let (start, end) = (segment.address, segment.address + segment.memory_bytes);
            let mut covered = 0;
            for part in own.iter().map(|own| own.start.max(start)..own.end.min(end)) {
                if part.start < part.end {
                    covered += part.end - part.start;
                    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    let offset = segment.offset + part.start - start;
                    let _ = rustix::fs::fallocate(self.file, hole, offset, part.end - part.start);
                }
            }
            if covered == segment.memory_bytes {
                let nothing = Segment { kind: elf::PT_NULL, file_bytes: 0, ..*segment };
                let at = self.segments_at + (index * elf::SEGMENT_BYTES) as u64;
                self.file.write_all_at(&nothing.encode(), at)?;
            }
        }
        Ok(())
    }

    /// Sets for the pages in one stretch of the file if they have data.
    fn look_in_file(&self, offset: u64, there: &mut [bool]) -> io::Result<()> {
        let end = offset + (there.len() * PAGE) as u64;
        let seek = |to| match rustix::fs::seek(self.file, to) {
            Ok(at) => Ok(at),
            // Nothing but a hole to the end.
            Err(rustix::io::Errno::NXIO) => Ok(end),
            Err(errno) => Err(io::Error::from(errno)),
        };
        let mut at = offset;
        while at < end {
            let data = seek(SeekFrom::Data(at))?.min(end);
            let hole = if data < end { seek(SeekFrom::Hole(data))?.min(end) } else { end };
            let page = |at: u64| ((at - offset) / PAGE as u64) as usize;
            there[page(data)..page(hole.next_multiple_of(PAGE as u64))].fill(true);
            at = hole.max(at + 1);
        }
        if !self.has_exact_holes {
            self.drop_zeros(offset, there)?;
        }
        Ok(())
    }

    /// Where holes are larger than pages, a page of zeros counts as absent.
    fn drop_zeros(&self, offset: u64, there: &mut [bool]) -> io::Result<()> {
        let mut page = vec![0u8; PAGE];
        for (at, there) in there.iter_mut().enumerate().filter(|(_, there)| **there) {
            self.file.read_exact_at(&mut page, offset + (at * PAGE) as u64)?;
            *there = !is_zero(&page);
        }
        Ok(())
    }
}

impl ForeignMemory for CoreFile<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        match self.place_of(address) {
            Some((offset, follow)) if follow >= into.len() as u64 => {
                self.file.read_exact_at(into, offset)
            }
            None if self.is_left_out(address) => {
                into.fill(0);
                Ok(())
            }
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn look(&self, first: usize, there: &mut [bool]) -> io::Result<()> {
        there.fill(false);
        let mut at = 0;
        while at < there.len() {
            let place = self.place_of(((first + at) * PAGE) as u64);
            let Some((offset, follow)) = place else {
                at += 1;
                continue;
            };
            let count = (there.len() - at).min((follow / PAGE as u64).max(1) as usize);
            if follow >= PAGE as u64 {
                self.look_in_file(offset, &mut there[at..at + count])?;
            }
            at += count;
        }
        Ok(())
    }
}
