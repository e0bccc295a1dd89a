//! The mappings of a process, and the part of each that belongs into a core dump (`core(5)`).

use std::io;

use crate::paged::{PAGE, shared_memory_at};

/// A mapping of a process: one entry of `/proc/PID/smaps`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Readable 4, writable 2, executable 1.
    pub flags: u32,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Number of the file; 0: no file.
    pub inode: u64,
    /// Path, or a name in brackets, or nothing.
    pub path: Vec<u8>,
    /// True if it has memory that is no file's.
    pub has_anonymous: bool,
    /// The flags of the kernel, two letters each (`VmFlags`).
    pub(super) kernel_flags: Vec<[u8; 2]>,
}

/// Bits of `/proc/PID/coredump_filter`.
const ANONYMOUS_PRIVATE: u32 = 1 << 0;
const ANONYMOUS_SHARED: u32 = 1 << 1;
const FILE_PRIVATE: u32 = 1 << 2;
const FILE_SHARED: u32 = 1 << 3;
const ELF_HEADERS: u32 = 1 << 4;
const HUGE_PRIVATE: u32 = 1 << 5;
const HUGE_SHARED: u32 = 1 << 6;

/// The part of a mapping that belongs into a core dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Nothing.
    Nothing,
    /// The first page, if it is an ELF header.
    ElfHeader,
    /// Everything.
    Whole,
}

impl Mapping {
    /// True if it maps a file.
    pub fn is_file(&self) -> bool {
        self.inode != 0
    }

    /// True if what it writes is its own (`MAP_PRIVATE`).
    pub fn is_private(&self) -> bool {
        !self.has_flag(b"sh")
    }

    /// True if it is private memory that a pager may serve.
    pub fn is_private_anonymous(&self) -> bool {
        !self.is_file() && self.is_private() && self.path != b"[vdso]"
    }

    /// True if it is private memory without a name of which no page is in use, so that its first
    /// touch is yet to come.
    pub fn is_reserved(&self) -> bool {
        let is_special =
            [b"gd", b"lo", b"ht", b"um", b"dd"].into_iter().any(|it| self.has_flag(it));
        self.path.is_empty() && self.is_private_anonymous() && !self.has_anonymous && !is_special
    }

    /// Returns the number of its first page in the run's shared memory; `None`: it is none of it.
    pub fn shared_page(&self) -> Option<usize> {
        shared_memory_at(&self.path).map(|first| first + self.offset as usize / PAGE)
    }

    /// False if all of it reads as zeros. Pages that a userfaultfd serves may be elsewhere.
    fn may_have_contents(&self) -> bool {
        self.has_anonymous || self.has_flag(b"um")
    }

    /// True if the mapping is to be left out of core dumps (`MADV_DONTDUMP`).
    pub fn is_left_out(&self) -> bool {
        self.has_flag(b"dd")
    }

    fn has_flag(&self, flag: &[u8; 2]) -> bool {
        self.kernel_flags.contains(flag)
    }

    /// True if the file has been removed: then it is memory that processes share.
    fn is_removed(&self) -> bool {
        self.path.ends_with(b" (deleted)")
    }

    /// The part of it that belongs into a core dump by the filter of the process.
    pub fn part(&self, filter: u32) -> Part {
        let whole_if = |bit: u32| if filter & bit != 0 { Part::Whole } else { Part::Nothing };
        if self.path == b"[vdso]" {
            return Part::Whole;
        }
        // Reading memory of a device has effects; DAX files may be larger than any disk.
        if self.is_left_out() || self.has_flag(b"io") || self.path == b"[vsyscall]" {
            return Part::Nothing;
        }
        match (self.has_flag(b"ht"), self.has_flag(b"sh")) {
            (true, true) => whole_if(HUGE_SHARED),
            (true, false) => whole_if(HUGE_PRIVATE),
            (false, true) if self.is_removed() => whole_if(ANONYMOUS_SHARED),
            (false, true) => whole_if(FILE_SHARED),
            (false, false) if !self.is_file() && !self.may_have_contents() => Part::Nothing,
            (false, false) if !self.is_file() => whole_if(ANONYMOUS_PRIVATE),
            (false, false) if self.has_anonymous && filter & ANONYMOUS_PRIVATE != 0 => Part::Whole,
            (false, false) if filter & FILE_PRIVATE != 0 => Part::Whole,
            (false, false)
                if filter & ELF_HEADERS != 0 && self.offset == 0 && self.flags & 4 != 0 =>
            {
                Part::ElfHeader
            }
            (false, false) => Part::Nothing,
        }
    }
}

/// Reads the mappings of a process.
///
/// # Errors
/// If `/proc/PID/smaps` cannot be read.
pub fn read(pid: u32) -> io::Result<Vec<Mapping>> {
    Ok(parse(&std::fs::read(format!("/proc/{pid}/smaps"))?))
}

fn parse(smaps: &[u8]) -> Vec<Mapping> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in smaps.split(|byte| *byte == b'\n') {
        if let Some(mapping) = parse_head(line) {
            mappings.push(mapping);
        } else if let Some(last) = mappings.last_mut() {
            add_detail(last, line);
        }
    }
    mappings
}

/// Parses a line `START-END PERMS OFFSET DEVICE INODE PATH`.
fn parse_head(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let mut word = || {
        let start = rest.iter().position(|byte| *byte != b' ')?;
        let from = &rest[start..];
        let end = from.iter().position(|byte| *byte == b' ').unwrap_or(from.len());
        rest = &from[end..];
        std::str::from_utf8(&from[..end]).ok()
    };
    let (start, end) = word()?.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = (hex(start)?, hex(end)?);
    let permissions = word()?;
    let offset = hex(word()?)?;
    let _device = word()?;
    let inode = word()?.parse().ok()?;
    let bits = [('r', 4), ('w', 2), ('x', 1)];
    let flags = bits.iter().filter(|(letter, _)| permissions.contains(*letter));
    let flags = flags.map(|(_, bit)| bit).sum();
    let path_at = rest.iter().position(|byte| *byte != b' ').unwrap_or(rest.len());
    let path = rest[path_at..].to_vec();
    Some(Mapping { start, end, flags, offset, inode, path, ..Mapping::default() })
}

fn add_detail(mapping: &mut Mapping, line: &[u8]) {
    let Ok(line) = std::str::from_utf8(line) else { return };
    match line.split_once(':') {
        Some(("Anonymous", kib)) => mapping.has_anonymous = kib.trim() != "0 kB",
        Some(("Swap", kib)) => mapping.has_anonymous |= kib.trim() != "0 kB",
        Some(("VmFlags", flags)) => {
            let flags = flags.split_whitespace().filter_map(|flag| flag.as_bytes().try_into().ok());
            mapping.kernel_flags = flags.collect();
        }
        Some(_) | None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &[u8] = b"55d0-55d1 r--p 00000000 fe:00 1234   /usr/bin/with space
Anonymous:             0 kB
VmFlags: rd mr mw me
7f00-7f80 rw-p 00000000 00:00 0 
Anonymous:             4 kB
VmFlags: rd wr mr mw me ac
8000-9000 rw-s 00001000 00:01 77                         /memfd:x (deleted)
Anonymous:             0 kB
VmFlags: rd wr sh mr mw me ms dd
c000-d000 rw-p 00000000 00:00 0 
Anonymous:             0 kB
VmFlags: rd wr mr mw me um
d000-e000 ---p 00000000 00:00 0 
Anonymous:             0 kB
VmFlags: mr mw me
a000-b000 rw-p 00003000 fe:00 1234                       /usr/lib/libx.so
Anonymous:             8 kB
Swap:                  0 kB
VmFlags: rd wr mr mw me ac
";

    #[test]
    fn parts_follow_kernel_rules() {
        let mappings = parse(SMAPS);
        let parts = |filter| mappings.iter().map(|it| it.part(filter)).collect::<Vec<_>>();
        assert_eq!(mappings[0].path, b"/usr/bin/with space");
        assert_eq!((mappings[2].offset, mappings[2].flags), (0x1000, 6));
        let expected =
            [Part::ElfHeader, Part::Whole, Part::Nothing, Part::Whole, Part::Nothing, Part::Whole];
        assert_eq!(parts(0x33), expected);
        assert_eq!(parts(0), [Part::Nothing; 6]);
        assert!(mappings[1].is_private_anonymous() && !mappings[5].is_private_anonymous());
    }
}
