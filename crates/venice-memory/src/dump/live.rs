//! The core of a living process, which is stopped while its memory is copied.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::elf::{self, Segment};
use super::filled::{self, Gathered};
use super::mappings::{self, Mapping, Part};
use super::notes::{self, ProcessFacts};
use super::process_memory::{ProcessMemory, blocks};
use super::stopped::{StoppedProcess, field};
use super::{AbsentPages, DumpError};
use crate::paged::PAGE;
use crate::paged::image::{BLOCK_PAGES, Contents, ForeignMemory, Image};

/// The filter of a process that has not set another (`core(5)`).
const DEFAULT_FILTER: u32 = 0x33;

/// The process whose core is written.
#[derive(Clone, Copy, Debug)]
pub struct CoreSource {
    /// Process id.
    pub pid: u32,
    /// Address of the header of its pager's tables; `None`: no pager serves it.
    pub image: Option<u64>,
}

/// A core that was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Threads of the program.
    pub threads: usize,
    /// Length of the file, bytes.
    pub file_bytes: u64,
    /// Bytes of it that are stored; the rest is zeros, in holes.
    pub stored_bytes: u64,
    /// Pages that were far or staged.
    pub far_pages: u64,
    /// Pages whose contents are lost with their donors: they are zeros in the file.
    pub lost_pages: u64,
}

/// Writes the core of a process to `out`, which is empty. Memory left out by `MADV_DONTDUMP` or by
/// the process's `coredump_filter` is left out here too, as are the pager's threads and tables. `progress`
/// gets the bytes done and the bytes in all;
/// `false` ends the work.
///
/// # Errors
/// [`DumpError`]; the process goes on in any case.
pub fn write_core(
    out: &File,
    source: CoreSource,
    far: &mut dyn AbsentPages,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Written, DumpError> {
    let failed = |doing: &str| {
        let doing = format!("process {}: {doing} failed", source.pid);
        move |source| DumpError::Process { doing, source }
    };
    let memory = ProcessMemory::open(source.pid).map_err(failed("opening its memory"))?;
    let open = || source.image.map(|header| Image::open(&memory, header)).transpose();
    let pagers = open()?.map_or(Vec::new(), |image| image.threads().to_vec());
    let stopped = StoppedProcess::stop(source.pid, &pagers)?;
    let image = open()?;
    let threads = stopped.threads(&pagers)?;
    let process = facts(source.pid).map_err(failed("reading /proc"))?;
    let mappings = mappings::read(source.pid).map_err(failed("reading its mappings"))?;
    let notes = notes::encode(&process, &threads, &mappings);
    let own = image.as_ref().map_or(Ok(Vec::new()), Image::own_memory);
    let own = own.map_err(|error| DumpError::Image(error.into()))?;
    let mut parts = parts(&memory, &mappings, filter_of(source.pid));
    parts.iter_mut().filter(|(it, _)| is_covered(it, &own)).for_each(|(_, bytes)| *bytes = 0);
    let layout = Layout::of(&parts, notes.len());
    layout.write(out, &notes).map_err(DumpError::File)?;
    let mut writer = Writer { memory: &memory, image, out, far, gathered: Gathered::default() };
    let mut stored_bytes = layout.head_bytes();
    let total: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
    let mut done = 0;
    for ((mapping, bytes), segment) in parts.iter().zip(layout.loads()) {
        for (first, count) in blocks(mapping.start, mapping.start + bytes, BLOCK_PAGES) {
            let offset = segment.offset + (first * PAGE) as u64 - mapping.start;
            stored_bytes += writer.write_block(mapping, (first, count), offset)?;
            done += (count * PAGE) as u64;
            if !progress(done, total) {
                return Err(DumpError::Interrupted);
            }
        }
    }
    out.set_len(layout.end()).map_err(DumpError::File)?;
    drop(stopped);
    let gathered = writer.gathered;
    Ok(Written {
        threads: threads.len(),
        file_bytes: layout.end(),
        stored_bytes,
        far_pages: gathered.far + gathered.staged,
        lost_pages: gathered.lost,
    })
}

/// Returns each mapping with the bytes of it that the core has.
fn parts<'a>(
    memory: &ProcessMemory,
    mappings: &'a [Mapping],
    filter: u32,
) -> Vec<(&'a Mapping, u64)> {
    let bytes = |mapping: &Mapping| match mapping.part(filter) {
        Part::Nothing => 0,
        Part::Whole => mapping.end - mapping.start,
        Part::ElfHeader => {
            let mut magic = [0u8; 4];
            let is_elf = memory.read(mapping.start, &mut magic).is_ok() && magic == *b"\x7fELF";
            if is_elf { PAGE as u64 } else { 0 }
        }
    };
    mappings.iter().map(|mapping| (mapping, bytes(mapping))).collect()
}

/// True if the mapping is all of the pager's own tables, which lie in `own`. One that the kernel has
/// joined with memory of the program is not.
fn is_covered(mapping: &Mapping, own: &[Range<u64>]) -> bool {
    let overlap =
        |own: &Range<u64>| own.end.min(mapping.end).saturating_sub(own.start.max(mapping.start));
    own.iter().map(overlap).sum::<u64>() == mapping.end - mapping.start
}

/// The places of everything in the file.
struct Layout {
    segments: Vec<Segment>,
    head: Vec<u8>,
    section: Vec<u8>,
}

impl Layout {
    fn of(parts: &[(&Mapping, u64)], notes_bytes: usize) -> Layout {
        let count = parts.len() + 1;
        let (head, section) = elf::encode_head(count);
        let notes_at = (head.len() + count * elf::SEGMENT_BYTES + section.len()) as u64;
        let notes_bytes = notes_bytes as u64;
        let mut segments = vec![Segment {
            kind: elf::PT_NOTE,
            flags: 0,
            offset: notes_at,
            address: 0,
            file_bytes: notes_bytes,
            memory_bytes: 0,
            align: 4,
        }];
        let mut offset = (notes_at + notes_bytes).next_multiple_of(PAGE as u64);
        for (mapping, file_bytes) in parts {
            segments.push(Segment {
                kind: elf::PT_LOAD,
                flags: mapping.flags,
                offset,
                address: mapping.start,
                file_bytes: *file_bytes,
                memory_bytes: mapping.end - mapping.start,
                align: PAGE as u64,
            });
            offset += file_bytes;
        }
        Layout { segments, head, section }
    }

    fn loads(&self) -> &[Segment] {
        &self.segments[1..]
    }

    fn head_bytes(&self) -> u64 {
        self.segments[0].offset + self.segments[0].file_bytes
    }

    fn end(&self) -> u64 {
        let last = self.segments.last().expect("the notes are one");
        last.offset + last.file_bytes
    }

    fn write(&self, out: &File, notes: &[u8]) -> io::Result<()> {
        let mut all = self.head.clone();
        all.extend(self.segments.iter().flat_map(Segment::encode));
        all.extend(&self.section);
        all.extend(notes);
        out.write_all_at(&all, 0)
    }
}

/// The writer of the memory.
struct Writer<'a> {
    memory: &'a ProcessMemory,
    image: Option<Image<'a, ProcessMemory>>,
    out: &'a File,
    far: &'a mut dyn AbsentPages,
    gathered: Gathered,
}

impl Writer<'_> {
    /// Writes the pages `(first, count)` of a mapping. Returns the bytes stored.
    fn write_block(
        &mut self,
        mapping: &Mapping,
        (first, count): (usize, usize),
        offset: u64,
    ) -> Result<u64, DumpError> {
        let unread = |error: io::Error| DumpError::Image(error.into());
        let mut pages = vec![0u8; count * PAGE];
        if let Some(shared) = mapping.shared_page() {
            let at = shared + (first - mapping.start as usize / PAGE);
            self.read_shared(mapping, first, at, &mut pages)?;
            return filled::write_filled(&pages, |at, it| self.out.write_all_at(it, offset + at));
        }
        let contents = self.locate(mapping, first, count).map_err(unread)?;
        if contents.iter().all(|it| *it == Contents::Zeros) {
            return Ok(0);
        }
        let is_plain = !mapping.is_private_anonymous();
        self.read_in_place(first, &contents, &mut pages, is_plain);
        let gathered = filled::gather(self.memory, &contents, &mut pages, self.far)?;
        self.gathered.add(gathered);
        filled::write_filled(&pages, |at, bytes| self.out.write_all_at(bytes, offset + at))
    }

    /// Reads pages of the run's shared memory, the first of which has the number `at` there.
    fn read_shared(
        &mut self,
        mapping: &Mapping,
        first: usize,
        at: usize,
        pages: &mut [u8],
    ) -> Result<(), DumpError> {
        let unread = |error: io::Error| DumpError::Image(error.into());
        let mut there = vec![false; pages.len() / PAGE];
        self.memory.look(first, &mut there).map_err(unread)?;
        self.gathered.add(filled::gather_shared(at, &there, pages, self.far)?);
        if mapping.is_private() {
            self.memory.look_for_copies(first, &mut there).map_err(unread)?;
            self.read_in_place(first, &in_place(&there), pages, false);
        }
        Ok(())
    }

    fn locate(&self, mapping: &Mapping, first: usize, count: usize) -> io::Result<Vec<Contents>> {
        if !mapping.is_private_anonymous() {
            // The kernel reads what is not in memory from the file.
            return Ok(vec![Contents::InPlace; count]);
        }
        let mut there = vec![false; count];
        self.memory.look(first, &mut there)?;
        if let Some(image) = &self.image {
            return image.locate(first, &there);
        }
        Ok(in_place(&there))
    }

    /// Reads the pages that are in place. Pages beyond the end of a file (`is_plain`) have no
    /// contents; others that cannot be read are lost.
    fn read_in_place(
        &mut self,
        first: usize,
        contents: &[Contents],
        pages: &mut [u8],
        is_plain: bool,
    ) {
        let is_in_place = |at: usize| contents[at] == Contents::InPlace;
        let mut at = 0;
        while at < contents.len() {
            let start = at;
            while at < contents.len() && is_in_place(at) {
                at += 1;
            }
            if start < at {
                let address = ((first + start) * PAGE) as u64;
                let into = &mut pages[start * PAGE..at * PAGE];
                if self.memory.read(address, into).is_err() {
                    let lost = read_singly(self.memory, address, into);
                    self.gathered.lost += if is_plain { 0 } else { lost };
                }
            }
            at += 1;
        }
    }
}

/// Returns the contents of pages of which those that are not there are zeros.
fn in_place(there: &[bool]) -> Vec<Contents> {
    let of = |there: &bool| if *there { Contents::InPlace } else { Contents::Zeros };
    there.iter().map(of).collect()
}

/// Reads pages one by one; returns the number of those that cannot be read.
fn read_singly(memory: &ProcessMemory, address: u64, into: &mut [u8]) -> u64 {
    let mut lost = 0;
    for (at, page) in into.chunks_exact_mut(PAGE).enumerate() {
        if memory.read(address + (at * PAGE) as u64, page).is_err() {
            page.fill(0);
            lost += 1;
        }
    }
    lost
}

fn filter_of(pid: u32) -> u32 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/coredump_filter")).unwrap_or_default();
    u32::from_str_radix(text.trim(), 16).unwrap_or(DEFAULT_FILTER)
}

fn facts(pid: u32) -> io::Result<ProcessFacts> {
    let path = |name: &str| format!("/proc/{pid}/{name}");
    let status = std::fs::read_to_string(path("status"))?;
    let stat = std::fs::read_to_string(path("stat"))?;
    // The name, in parentheses, may have blanks.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let number =
        |index: usize| fields.get(index).and_then(|word| word.parse::<i64>().ok()).unwrap_or(0);
    let id = |name| {
        let first = field(&status, name).and_then(|line| line.split_whitespace().next());
        first.and_then(|word| word.parse().ok()).unwrap_or(0)
    };
    let mut arguments = std::fs::read(path("cmdline"))?;
    arguments.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
    Ok(ProcessFacts {
        pid,
        relatives: [number(1), number(2), number(3)].map(|id| id as u32),
        ids: [id("Uid"), id("Gid")],
        state: fields.first().and_then(|word| word.bytes().next()).unwrap_or(b'R'),
        nice: number(16) as i8,
        flags: number(6) as u64,
        name: field(&status, "Name").unwrap_or_default().as_bytes().to_vec(),
        arguments: arguments.trim_ascii_end().to_vec(),
        auxv: std::fs::read(path("auxv"))?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::process_of;
    use super::*;

    struct Nowhere;

    impl AbsentPages for Nowhere {
        fn far(&mut self, _: &[u32], _: &mut [u8]) -> io::Result<Vec<bool>> {
            panic!("there are no far pages")
        }

        fn shared(&mut self, _: usize, _: &mut [u8]) -> io::Result<Vec<bool>> {
            panic!("there is no shared memory")
        }
    }

    #[test]
    fn plain_process_is_dumped_whole() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let out = tempfile::tempfile().unwrap();
        let source = CoreSource { pid: child.id(), image: None };
        let mut last = (0, 0);
        let written = write_core(&out, source, &mut Nowhere, &mut |done, total| {
            last = (done, total);
            true
        });
        let written = written.unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((written.threads, written.lost_pages, written.far_pages), (1, 0, 0));
        assert!(written.stored_bytes > PAGE as u64 && written.stored_bytes < written.file_bytes);
        assert_eq!(last.0, last.1);
        assert_eq!(process_of(&out), Some(child.id()));
    }
}
