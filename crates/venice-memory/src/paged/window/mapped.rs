//! File mappings of this process, the slabs' included, read from `/proc/self/maps`
//! (`proc_pid_maps(5)`).

use std::ops::Range;

use super::super::sys::{self, Errno, SysResult};

const MAPS: &[u8] = b"/proc/self/maps\0";
/// Longer than any line of the file.
const BUFFER_BYTES: usize = 16 << 10;

/// One mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) range: Range<usize>,
    /// The protection in the form of `mprotect(2)`.
    pub(super) protection: usize,
    /// Offset of the mapping in its file, bytes.
    pub(super) offset: usize,
    pub(super) inode: u64,
}

/// All file mappings, by address.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    files: Vec<Mapping>,
    /// True if one of them is a ring through which the kernel takes requests that it serves
    /// asynchronously.
    pub(super) has_rings: bool,
}

impl Mapped {
    /// Reads the mappings anew.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn refresh(&mut self) -> SysResult<()> {
        self.files.clear();
        self.has_rings = false;
        let fd = sys::open_readonly(MAPS)?;
        let read = self.read(fd);
        sys::close(fd);
        read
    }

    fn read(&mut self, fd: i32) -> SysResult<()> {
        let mut buffer = [0; BUFFER_BYTES];
        let mut kept = 0;
        loop {
            let got = match sys::read(fd, &mut buffer[kept..]) {
                Err(Errno::EINTR) => continue,
                got => got?,
            };
            if got == 0 {
                return Ok(());
            }
            let text = &buffer[..kept + got];
            let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
            text[..whole].split(|&byte| byte == b'\n').for_each(|line| self.take(line));
            kept = text.len() - whole;
            buffer.copy_within(whole..whole + kept, 0);
        }
    }

    fn take(&mut self, line: &[u8]) {
        let Ok(line) = std::str::from_utf8(line).or_else(|error| {
            // Only the name of a file may be invalid UTF-8.
            std::str::from_utf8(&line[..error.valid_up_to()])
        }) else {
            return;
        };
        let mapping = parse(line);
        self.has_rings |= [" /[aio]", "[io_uring]", " socket:["].iter().any(|it| line.contains(it));
        self.files.extend(mapping.filter(|mapping| mapping.inode != 0));
    }

    /// The mapping that contains an address.
    pub(super) fn at(&self, addr: usize) -> Option<&Mapping> {
        self.within(addr..addr + 1).next()
    }

    /// The mappings that overlap a range.
    pub(super) fn within(&self, range: Range<usize>) -> impl Iterator<Item = &Mapping> {
        let first = self.files.partition_point(|it| it.range.end <= range.start);
        self.files[first..].iter().take_while(move |it| it.range.start < range.end)
    }
}

fn parse(line: &str) -> Option<Mapping> {
    let hex = |text| usize::from_str_radix(text, 16).ok();
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let letters = words.next()?.get(..3)?;
    let offset = hex(words.next()?)?;
    let inode = words.nth(1)?.parse().ok()?;
    let bit = |letter, bit| if letters.contains(letter) { bit } else { 0 };
    let protection = bit('r', 1) | bit('w', 2) | bit('x', 4);
    Some(Mapping { range: hex(start)?..hex(end)?, protection, offset, inode })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_maps_line() {
        let line = "7f00a000-7f00c000 r--s 00003000 00:01 2077   /memfd:slab (deleted)";
        let meant =
            Mapping { range: 0x7f00_a000..0x7f00_c000, protection: 1, offset: 0x3000, inode: 2077 };
        assert_eq!(parse(line), Some(meant));
        let nothing = parse("7f00a000-7f00c000 ---p 00000000 00:00 0").unwrap();
        assert_eq!((nothing.protection, nothing.inode), (0, 0));
        assert_eq!(parse(""), None);
    }

    #[test]
    fn finds_own_code() {
        let mut mapped = Mapped::default();
        mapped.refresh().unwrap();
        let code = finds_own_code as *const () as usize;
        let mapping = mapped.at(code).expect("code is mapped from a file");
        assert_eq!(mapping.protection, 5);
        let count = mapped.files.len();
        mapped.refresh().unwrap();
        assert!(
            mapped.files.len() + 8 > count && mapped.files.is_sorted_by_key(|it| it.range.start)
        );
        assert!(mapped.at(1).is_none());
    }
}
