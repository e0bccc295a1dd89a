//! The look: reads map counts and reference counts of pages that lie in a pipe.
//!
//! Only the kernel's counts tell that a page is pinned for a device, or for a system call of
//! another process. A page of the page cache that lies in the pipe has one reference of the cache,
//! one of the pipe, and one for each mapping; any more are pins. A BPF program of type `SYSCALL`
//! reads both counts by way of the current task's open files; the offsets come from the kernel's
//! [type information](super::btf).

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, splice};

use super::super::PAGE;
use super::super::sys;
use super::btf::Btf;

/// Most pages that are looked at together: the slots of the pipe.
pub const MOST_PAGES: usize = 64;

const TYPES: &str = "/sys/kernel/btf/vmlinux";
/// `bpf(2)` on x86-64, and its commands.
const BPF: usize = 321;
const PROG_LOAD: usize = 5;
const PROG_TEST_RUN: usize = 10;
const TYPE_SYSCALL: u32 = 31;
const SLEEPABLE: u32 = 1 << 4;
/// Words of a report before those of the pages: head and tail of the pipe.
const FIRST_PAGE: usize = 2;

/// The counts of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Mappings.
    pub maps: u32,
    /// References.
    pub refs: u32,
}

impl Counts {
    /// True if nothing but the page cache, the mappings and the pipe refers to the page. False for
    /// a page of a huge page too.
    pub fn is_free(self) -> bool {
        const CACHE_AND_PIPE: u32 = 2;
        self.refs == self.maps.wrapping_add(CACHE_AND_PIPE)
    }
}

/// The reason why pages cannot be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookError {
    /// The kernel has no type information.
    #[error("this kernel has no type information ({TYPES})")]
    NoTypes,
    /// The type information lacks a member.
    #[error("this kernel's {0} is not known")]
    Unknown(&'static str),
    /// The kernel refused a pipe of the size that is needed.
    #[error("the kernel refused a pipe of 64 pages ({0})")]
    Pipe(#[source] Errno),
    /// The kernel refused the program.
    #[error("the kernel refused to load a BPF program ({0})")]
    Refused(#[source] Errno),
    /// The kernel refused to run it.
    #[error("the kernel refused to run a BPF program ({0})")]
    Run(#[source] Errno),
    /// The trial failed: a pin was not seen, or seen where there is none.
    #[error("the counts of pages are not those expected on this kernel")]
    Trial,
}

/// The BPF program, and the pipe whose pages it looks at.
#[derive(Debug)]
pub struct PinLook {
    program: OwnedFd,
    out: OwnedFd,
    into: OwnedFd,
    report: Box<[u64; FIRST_PAGE + MOST_PAGES]>,
    /// A page of its own, which is never used.
    unused: usize,
    /// True if it takes every page for free.
    #[cfg(test)]
    pub is_blind: bool,
}

impl Drop for PinLook {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and used by nothing else.
        unsafe { sys::unmap(self.unused as *mut _, PAGE) };
    }
}

impl PinLook {
    /// Loads the program, and tries it with a page that is pinned on purpose.
    ///
    /// # Errors
    /// [`LookError`].
    pub fn new() -> Result<PinLook, LookError> {
        let mut text = Vec::new();
        let read = File::open(TYPES).and_then(|mut file| file.read_to_end(&mut text));
        read.map_err(|_| LookError::NoTypes)?;
        let btf = Btf::parse(&text).ok_or(LookError::NoTypes)?;
        let (out, into) = new_pipe().map_err(LookError::Pipe)?;
        let program = load(&instructions(&Offsets::read(&btf)?, out.as_raw_fd()))?;
        let report = Box::new([0; FIRST_PAGE + MOST_PAGES]);
        let mut look = PinLook {
            program,
            out,
            into,
            report,
            unused: sys::map_aligned(PAGE, PAGE).map_err(|_| LookError::Pipe(Errno::NOMEM))?,
            #[cfg(test)]
            is_blind: false,
        };
        // This thread may be moved to another processor meanwhile, whose lists hold references.
        const TRIES: usize = 16;
        let tried =
            (0..TRIES).map(|_| look.try_out()).find(|tried| *tried != Err(LookError::Trial));
        tried.unwrap_or(Err(LookError::Trial))?;
        Ok(look)
    }

    /// Puts `pages` pages of a file from byte `offset` on into the pipe: a reference to each, no
    /// copy. Returns how many it has put there; fewer after an error.
    pub fn take(&self, file: BorrowedFd<'_>, offset: u64, pages: usize) -> usize {
        let (mut at, end) = (offset, offset + (pages * PAGE) as u64);
        while at < end {
            let len_bytes = (end - at) as usize;
            let flags = SpliceFlags::NONBLOCK;
            match splice(file, Some(&mut at), &self.into, None, len_bytes, flags) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        ((at - offset) as usize) / PAGE
    }

    /// Makes the kernel give up the references that its lists of fresh and of used pages hold on
    /// this processor; to put a page into a pipe counts as use. The kernel does so before it makes
    /// pages cold (`lru_add_drain` in `mm/madvise.c`).
    fn settle(&self) {
        // SAFETY: its own page, which is empty.
        let _ = unsafe { sys::madvise(self.unused, PAGE, sys::MADV_COLD) };
    }

    /// Returns the counts of the `count` pages in the pipe, in the order in which they came.
    ///
    /// # Errors
    /// [`LookError::Run`]; [`LookError::Trial`] if the pipe holds another number of pages.
    pub fn look(&mut self, count: usize) -> Result<[Counts; MOST_PAGES], LookError> {
        self.settle();
        let report = &mut *self.report;
        let mut arguments = RunArguments {
            program: self.program.as_raw_fd() as u32,
            context_bytes: size_of_val(report) as u32,
            context: report.as_mut_ptr() as u64,
            ..RunArguments::default()
        };
        bpf(PROG_TEST_RUN, &mut arguments).map_err(LookError::Run)?;
        let (head, tail) = (report[0] as u32, report[1] as u32);
        if head.wrapping_sub(tail) as usize != count {
            return Err(LookError::Trial);
        }
        Ok(std::array::from_fn(|at| {
            // The pipe is a ring.
            let word = report[FIRST_PAGE + (tail as usize + at) % MOST_PAGES];
            #[cfg(test)]
            if self.is_blind {
                return Counts { maps: 0, refs: 2 };
            }
            Counts { maps: (word as u32).wrapping_add(1), refs: (word >> 32) as u32 }
        }))
    }

    /// Reads `len_bytes` from the pipe to `address`; false if there are fewer.
    ///
    /// # Safety
    /// The memory there must be the caller's, and of that length.
    pub unsafe fn read(&self, address: usize, len_bytes: usize) -> bool {
        // SAFETY: forwarded to the caller.
        let mut rest = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, len_bytes) };
        while !rest.is_empty() {
            match sys::read(self.out.as_raw_fd(), rest) {
                Ok(0) => return false,
                Ok(len) => rest = &mut rest[len..],
                Err(sys::Errno::EINTR) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Empties the pipe.
    pub fn drain(&self) {
        let mut page = [0; PAGE];
        while sys::read(self.out.as_raw_fd(), &mut page).is_ok_and(|len| len > 0) {}
    }

    /// Tries the look with pages of a file of its own, one of which lies in a second pipe.
    fn try_out(&mut self) -> Result<(), LookError> {
        const TRIED: usize = 4;
        const HELD: usize = 2;
        let memory = memfd_create("venice-trial", MemfdFlags::CLOEXEC);
        let memory = memory.map_err(LookError::Pipe)?;
        write_pages(&memory, TRIED).map_err(LookError::Pipe)?;
        let (_held, into) = new_pipe().map_err(LookError::Pipe)?;
        let mut at = (HELD * PAGE) as u64;
        splice(&memory, Some(&mut at), &into, None, PAGE, SpliceFlags::NONBLOCK)
            .map_err(LookError::Pipe)?;
        let taken = self.take(memory.as_fd(), 0, TRIED);
        let counts = self.look(taken);
        self.drain();
        let counts = counts?;
        let is_right = |at: usize| match at == HELD {
            true => counts[at] == Counts { maps: 0, refs: 3 },
            false => counts[at].is_free() && counts[at].maps == 0,
        };
        if taken == TRIED && (0..TRIED).all(is_right) { Ok(()) } else { Err(LookError::Trial) }
    }
}

/// Writes the first pages of a file.
fn write_pages(file: &OwnedFd, pages: usize) -> Result<(), Errno> {
    let page = [1; PAGE];
    for at in 0..pages {
        rustix::io::pwrite(file, &page, (at * PAGE) as u64)?;
    }
    Ok(())
}

/// Makes a pipe of [`MOST_PAGES`] slots that does not block: reading end, writing end.
fn new_pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (out, into) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let bytes = rustix::pipe::fcntl_setpipe_size(&into, MOST_PAGES * PAGE)?;
    if bytes != MOST_PAGES * PAGE {
        return Err(Errno::NOMEM);
    }
    Ok((out, into))
}

/// The offsets that the program needs, in bytes.
struct Offsets {
    /// Members that lead from the task to the array of its open files.
    to_files: [i32; 3],
    /// From a file to its pipe.
    private_data: i32,
    head: i32,
    tail: i32,
    buffers: i32,
    buffer_bytes: i32,
    page: i32,
    /// The map count, behind which the reference count follows.
    counts: i32,
}

impl Offsets {
    fn read(btf: &Btf<'_>) -> Result<Offsets, LookError> {
        let of = |structure, member, bytes| {
            let found = btf.member(structure, member).filter(|it| it.len() == bytes);
            found.map(|it| it.start as i32).ok_or(LookError::Unknown(member))
        };
        let buffer_bytes = btf.size("pipe_buffer").ok_or(LookError::Unknown("pipe_buffer"))?;
        let counts = of("page", "_mapcount", 4)?;
        if of("page", "_refcount", 4)? != counts + 4 {
            return Err(LookError::Unknown("_refcount"));
        }
        Ok(Offsets {
            to_files: [
                of("task_struct", "files", 8)?,
                of("files_struct", "fdt", 8)?,
                of("fdtable", "fd", 8)?,
            ],
            private_data: of("file", "private_data", 8)?,
            head: of("pipe_inode_info", "head", 4)?,
            tail: of("pipe_inode_info", "tail", 4)?,
            buffers: of("pipe_inode_info", "bufs", 8)?,
            buffer_bytes: buffer_bytes as i32,
            page: of("pipe_buffer", "page", 8)?,
            counts,
        })
    }
}

/// An instruction (`include/uapi/linux/bpf.h`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Instruction {
    code: u8,
    /// Destination in the lower half, source in the upper one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Writes the program.
struct Writer(Vec<Instruction>);

impl Writer {
    const MOVE: u8 = 0xbf;
    const MOVE_NUMBER: u8 = 0xb7;
    const ADD_NUMBER: u8 = 0x07;
    const LOAD: u8 = 0x79;
    const STORE: u8 = 0x7b;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    const GET_CURRENT_TASK: i32 = 35;
    const PROBE_READ_KERNEL: i32 = 113;
    /// The read-only pointer to the stack's end.
    const FRAME: u8 = 10;

    fn add(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        self.0.push(Instruction { code, registers: to | from << 4, offset, immediate });
    }

    /// `to` = the 8 bytes at `from + offset`; zeros where nothing is readable.
    fn read(&mut self, to: u8, from: u8, offset: i32) {
        self.add(Writer::MOVE, 3, from, 0, 0);
        self.add(Writer::ADD_NUMBER, 3, 0, 0, offset);
        self.add(Writer::MOVE, 1, Writer::FRAME, 0, 0);
        self.add(Writer::ADD_NUMBER, 1, 0, 0, -8);
        self.add(Writer::MOVE_NUMBER, 2, 0, 0, 8);
        self.add(Writer::CALL, 0, 0, 0, Writer::PROBE_READ_KERNEL);
        self.add(Writer::LOAD, to, Writer::FRAME, -8, 0);
    }

    /// Stores `from` as word `at` of the report.
    fn report(&mut self, at: usize, from: u8) {
        self.add(Writer::STORE, 6, from, (at * size_of::<u64>()) as i16, 0);
    }
}

/// Returns the program for the pipe with this reading end. Register 6 has the report, 7 what leads
/// to the pipe, 8 the pipe's buffers.
fn instructions(offsets: &Offsets, pipe: i32) -> Vec<Instruction> {
    let mut writer = Writer(Vec::new());
    writer.add(Writer::MOVE, 6, 1, 0, 0);
    writer.add(Writer::CALL, 0, 0, 0, Writer::GET_CURRENT_TASK);
    writer.add(Writer::MOVE, 7, 0, 0, 0);
    offsets.to_files.iter().for_each(|&offset| writer.read(7, 7, offset));
    writer.read(7, 7, pipe * size_of::<u64>() as i32);
    writer.read(7, 7, offsets.private_data);
    writer.read(8, 7, offsets.buffers);
    for at in 0..MOST_PAGES {
        writer.read(9, 8, at as i32 * offsets.buffer_bytes + offsets.page);
        writer.read(9, 9, offsets.counts);
        writer.report(FIRST_PAGE + at, 9);
    }
    for (at, offset) in [offsets.head, offsets.tail].into_iter().enumerate() {
        writer.read(9, 7, offset);
        writer.report(at, 9);
    }
    writer.add(Writer::MOVE_NUMBER, 0, 0, 0, 0);
    writer.add(Writer::EXIT, 0, 0, 0, 0);
    writer.0
}

#[derive(Default)]
#[repr(C)]
struct LoadArguments {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

#[derive(Default)]
#[repr(C)]
struct RunArguments {
    program: u32,
    result: u32,
    data_bytes: [u32; 2],
    data: [u64; 2],
    repeat: u32,
    duration: u32,
    context_bytes: u32,
    context_out_bytes: u32,
    context: u64,
    context_out: u64,
    flags: u32,
    processor: u32,
    batch: u32,
    padding: u32,
}

fn load(instructions: &[Instruction]) -> Result<OwnedFd, LookError> {
    let mut arguments = LoadArguments {
        kind: TYPE_SYSCALL,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        flags: SLEEPABLE,
        ..LoadArguments::default()
    };
    let fd = bpf(PROG_LOAD, &mut arguments).map_err(LookError::Refused)?;
    // SAFETY: the kernel has just made it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn bpf<T>(command: usize, arguments: &mut T) -> Result<usize, Errno> {
    let address = std::ptr::from_mut(arguments) as usize;
    // SAFETY: the structure is the one the command expects, as is what it points to.
    let done = unsafe { sys::syscall(BPF, [command, address, size_of::<T>(), 0, 0, 0]) };
    done.map_err(|errno| Errno::from_raw_os_error(errno.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FallocateFlags, fallocate, ftruncate};
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    use rustix::pipe::{IoSliceRaw, vmsplice};

    /// Makes an object of `pages` written pages, mapped here.
    fn object(pages: usize) -> (OwnedFd, usize) {
        let memory = memfd_create("venice-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, (pages * PAGE) as u64).unwrap();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: a fresh mapping disturbs nothing.
        let at = unsafe {
            mmap(anywhere, pages * PAGE, protection, MapFlags::SHARED, &memory, 0).unwrap()
        } as usize;
        // SAFETY: advice, and writes to the fresh mapping.
        unsafe {
            sys::madvise(at, pages * PAGE, sys::MADV_NOHUGEPAGE).unwrap();
            (0..pages).for_each(|page| {
                std::ptr::write_bytes((at + page * PAGE) as *mut u8, page as u8 + 1, PAGE);
            });
        }
        (memory, at)
    }

    fn look(test: &str) -> Option<PinLook> {
        PinLook::new().inspect_err(|error| eprintln!("SKIPPED {test}: no bpf ({error})")).ok()
    }

    #[test]
    fn pinned_page_is_seen() {
        let Some(mut look) = look("pinned_page_is_seen") else { return };
        let (memory, at) = object(8);
        let (out, into) = new_pipe().unwrap();
        // SAFETY: mapped above, and written by nothing meanwhile.
        let page = unsafe { std::slice::from_raw_parts((at + 3 * PAGE) as *const u8, PAGE) };
        let page = [IoSliceRaw::from_slice(page)];
        // SAFETY: the page stays mapped.
        unsafe { vmsplice(&into, &page, SpliceFlags::empty()).unwrap() };
        assert_eq!(look.take(memory.as_fd(), 0, 8), 8);
        let counts = look.look(8).unwrap();
        look.drain();
        for (at, counts) in counts[..8].iter().enumerate() {
            assert_eq!((counts.is_free(), counts.maps), (at != 3, 1), "page {at}: {counts:?}");
        }
        drop(out);
    }

    #[test]
    fn pipe_ring_wraps() {
        let Some(mut look) = look("pipe_ring_wraps") else { return };
        let (memory, _) = object(50);
        for _ in 0..5 {
            assert_eq!(look.take(memory.as_fd(), 0, 20), 20);
            assert_eq!(look.take(memory.as_fd(), 30 * PAGE as u64, 20), 20);
            assert!(look.look(40).unwrap()[..40].iter().all(|counts| counts.is_free()));
            assert_eq!(look.look(39), Err(LookError::Trial));
            let mut pages = vec![0u8; 40 * PAGE];
            // SAFETY: a buffer of that length.
            assert!(unsafe { look.read(pages.as_mut_ptr() as usize, pages.len()) });
            let first = |at: usize| pages[at * PAGE];
            assert_eq!([first(0), first(19), first(20), first(39)], [1, 20, 31, 50]);
        }
    }

    /// A hole reads as the kernel's page of zeros, which is never alone.
    #[test]
    fn absent_page_is_not_free() {
        let Some(mut look) = look("absent_page_is_not_free") else { return };
        let (memory, _) = object(4);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&memory, flags, PAGE as u64, PAGE as u64).unwrap();
        let taken = look.take(memory.as_fd(), 0, 4);
        let counts = look.look(taken).unwrap();
        look.drain();
        assert!(!counts[1].is_free(), "{:?}", counts[1]);
    }
}
