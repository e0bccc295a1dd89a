//! The unmanaged memory of one process, read from `/proc/PID/smaps` (proc_pid_smaps(5)).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};

use venice_recipient::runs::Cause;

/// Longest stack of a thread. Longer mappings without huge pages are a sanitizer's shadow memory.
const MAX_STACK_BYTES: u64 = 256 << 20;
/// Names of mappings of memory that processes share, at their beginning.
const SHARED_NAMES: [&str; 4] = [SHARED_ANONYMOUS, "/SYSV", "/memfd:", "/dev/shm/"];
/// Name of mappings of shared anonymous memory that the kernel serves.
const SHARED_ANONYMOUS: &str = "/dev/zero";
/// Name of the pager's own shared mappings, at its beginning: run block and slabs.
const PAGERS_NAME: &str = "/memfd:venice-";
const RUN_BLOCK_NAME: &str = "/memfd:venice-run";
const SHIM_NAME: &str = "/libvenice_preload.so";

/// The memory of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressSpace {
    /// Unmanaged bytes by cause, where a pager serves the process.
    pub unmanaged: BTreeMap<Cause, u64>,
    /// All memory that is not the pager's own, in bytes; what processes share is divided among
    /// them.
    pub total_bytes: u64,
    /// True if the process has the run block mapped.
    pub has_run_block: bool,
    /// True if the shim is loaded.
    pub has_shim: bool,
}

/// True if a process has the shim loaded. It costs little whatever is resident.
pub fn has_shim(pid: u32) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"));
    maps.is_ok_and(|text| text.lines().any(|line| line.ends_with(SHIM_NAME)))
}

/// One mapping.
#[derive(Debug, Default)]
struct Mapping {
    start: u64,
    end: u64,
    is_writable: bool,
    name: String,
    rss_bytes: u64,
    pss_bytes: u64,
    anonymous_bytes: u64,
    hugetlb_bytes: u64,
    flags: String,
}

impl AddressSpace {
    /// Reads the memory of a process. It takes time in proportion to the resident memory.
    ///
    /// # Errors
    /// The kernel's: the process has ended, or is another user's.
    pub fn of(pid: u32) -> io::Result<AddressSpace> {
        AddressSpace::parse(BufReader::new(File::open(format!("/proc/{pid}/smaps"))?))
    }

    fn parse(text: impl BufRead) -> io::Result<AddressSpace> {
        let mut space = AddressSpace::default();
        let mut mapping = Mapping::default();
        let mut end_of_data = 0;
        for line in text.lines() {
            let line = line?;
            if let Some(next) = Mapping::begin(&line) {
                mapping = next;
            } else if let Some(flags) = line.strip_prefix("VmFlags:") {
                // The last line of a mapping.
                mapping.flags = flags.to_owned();
                space.add(&mapping, end_of_data);
                if mapping.is_file() && mapping.is_writable {
                    end_of_data = mapping.end;
                }
            } else {
                mapping.note(&line);
            }
        }
        Ok(space)
    }

    /// Adds a mapping; the last written file mapping before it ends at `end_of_data`.
    fn add(&mut self, mapping: &Mapping, end_of_data: u64) {
        self.has_run_block |= mapping.name.starts_with(RUN_BLOCK_NAME);
        self.has_shim |= mapping.name.ends_with(SHIM_NAME);
        if mapping.is_pagers() {
            return;
        }
        let shared_bytes = if mapping.is_shared_memory() {
            mapping.pss_bytes.saturating_sub(mapping.anonymous_bytes)
        } else {
            0
        };
        let private_bytes = mapping.anonymous_bytes.min(mapping.pss_bytes);
        // The run's shared pager serves it, whatever process maps it.
        let is_paged = mapping.is_shared_memory() && mapping.has("um");
        let shared_bytes = if is_paged { 0 } else { shared_bytes };
        self.total_bytes += shared_bytes + private_bytes + mapping.hugetlb_bytes;
        let mut count = |cause, bytes: u64| {
            if bytes > 0 {
                *self.unmanaged.entry(cause).or_default() += bytes;
            }
        };
        if mapping.has("um") {
            let locked_bytes = if mapping.has("lo") { mapping.rss_bytes } else { 0 };
            return count(Cause::Locked, locked_bytes);
        }
        count(Cause::Hugetlb, mapping.hugetlb_bytes);
        let is_anonymous = mapping.name.starts_with(SHARED_ANONYMOUS);
        let shared = if is_anonymous { Cause::SharedAnonymous } else { Cause::SharedMemory };
        count(shared, shared_bytes);
        count(mapping.cause(end_of_data), private_bytes);
    }
}

impl Mapping {
    /// Parses the first line of a mapping: `START-END PERMISSIONS OFFSET DEVICE INODE NAME`.
    fn begin(line: &str) -> Option<Mapping> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        let is_writable = words.next()?.contains('w');
        let name = words.skip(3).collect::<Vec<_>>().join(" ");
        Some(Mapping { start, end, is_writable, name, ..Mapping::default() })
    }

    /// Takes the figure of a line `NAME: NUMBER kB`.
    fn note(&mut self, line: &str) {
        let Some((name, rest)) = line.split_once(':') else { return };
        let figure = match name {
            "Rss" => &mut self.rss_bytes,
            "Pss" => &mut self.pss_bytes,
            "Anonymous" => &mut self.anonymous_bytes,
            "Shared_Hugetlb" | "Private_Hugetlb" => &mut self.hugetlb_bytes,
            _ => return,
        };
        let kib = rest.split_ascii_whitespace().next().and_then(|text| text.parse().ok());
        *figure += kib.unwrap_or(0u64) << 10;
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.split_ascii_whitespace().any(|word| word == flag)
    }

    fn is_file(&self) -> bool {
        self.name.starts_with('/')
    }

    /// True for the pager's own memory, which it marks (`sys::mark_own`).
    fn is_pagers(&self) -> bool {
        let is_marked = self.has("rr") && (self.has("dd") || self.has("nh")) && !self.is_file();
        self.name.starts_with(PAGERS_NAME) || is_marked
    }

    fn is_shared_memory(&self) -> bool {
        SHARED_NAMES.iter().any(|name| self.name.starts_with(name))
    }

    /// Returns the cause of the anonymous pages of an unmanaged mapping.
    fn cause(&self, end_of_data: u64) -> Cause {
        let len_bytes = self.end - self.start;
        // What the loader maps zeroed after a file (.bss).
        let follows_file = self.name.is_empty() && self.start == end_of_data;
        if self.has("lo") {
            Cause::Locked
        } else if self.has("dc") || self.has("wf") {
            Cause::Advice
        } else if self.name == "[stack]" || self.has("gd") {
            Cause::Stack
        } else if self.name == "[heap]" || self.is_file() || follows_file {
            Cause::StaticData
        } else if self.has("nh") && len_bytes <= MAX_STACK_BYTES {
            // Linux maps MAP_STACK without huge pages.
            Cause::Stack
        } else {
            Cause::PastLibrary
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mapping of `smaps`: its first line, then resident, proportional and anonymous KiB.
    fn mapping(first: &str, [rss, pss, anonymous]: [u32; 3], flags: &str) -> String {
        format!(
            "{first}\nSize: 99 kB\nRss: {rss} kB\nPss: {pss} kB\nAnonymous: {anonymous} kB\n\
             THPeligible:    0\nVmFlags: {flags}\n"
        )
    }

    fn parse(mappings: &[String]) -> AddressSpace {
        AddressSpace::parse(mappings.concat().as_bytes()).unwrap()
    }

    #[test]
    fn unmanaged_memory_has_causes() {
        let zero = "00000000 00:01 77";
        let none = "00000000 00:00 0";
        let space = parse(&[
            mapping(&format!("1000-2000 rw-p {zero} /lib/x.so"), [9, 5, 3], "rd wr"),
            mapping(&format!("2000-9000 rw-p {none}"), [4, 4, 4], "rd wr"),
            mapping(&format!("a000-b000 rw-p {none} [heap]"), [1, 1, 1], "rd wr"),
            mapping(&format!("c000-d000 rw-p {none}"), [64, 64, 64], "rd wr um"),
            mapping(&format!("e000-f000 rw-p {none}"), [32, 32, 32], "rd wr lo um"),
            mapping(&format!("10000-20000 rw-s {zero} /dev/zero (deleted)"), [9, 6, 0], "sh"),
            mapping(&format!("30000-40000 rw-p {none}"), [7, 7, 7], "rd wr nh"),
            mapping(&format!("50000-50000000 rw-p {none}"), [8, 8, 8], "rd wr nh"),
            mapping(&format!("60000000-60001000 rw-p {none}"), [10, 10, 10], "rd dc"),
            mapping(&format!("70000000-70001000 rw-s {zero} /memfd:paged"), [9, 9, 0], "sh um uw"),
            mapping(&format!("80000000-80001000 rw-s {zero} /memfd:own"), [3, 3, 0], "sh"),
        ]);
        let kib = |cause| space.unmanaged[&cause] >> 10;
        assert_eq!(kib(Cause::StaticData), 3 + 4 + 1);
        assert_eq!((kib(Cause::Locked), kib(Cause::SharedAnonymous)), (32, 6));
        assert_eq!((kib(Cause::Stack), kib(Cause::PastLibrary)), (7, 8));
        assert_eq!(kib(Cause::Advice), 10);
        assert_eq!(kib(Cause::SharedMemory), 3);
        assert_eq!(space.total_bytes >> 10, 3 + 4 + 1 + 64 + 32 + 6 + 7 + 8 + 10 + 3);
        assert!(!space.has_run_block && !space.has_shim);
    }

    #[test]
    fn pagers_memory_is_left_out() {
        let space = parse(&[
            mapping("1-2 rw-s 0 00:01 5 /memfd:venice-run (deleted)", [9, 9, 0], "sh"),
            mapping("3-4 rw-s 0 00:01 6 /memfd:venice-slab (deleted)", [9, 9, 0], "sh"),
            mapping("5-6 r-xp 0 00:01 7 /opt/libvenice_preload.so", [9, 9, 0], "rd"),
            mapping("7-8 rw-p 0 00:00 0", [9, 9, 9], "rd wr lo lf rr dd"),
        ]);
        let only_flags =
            AddressSpace { has_run_block: true, has_shim: true, ..AddressSpace::default() };
        assert_eq!(space, only_flags);
    }
}
