//! The last looks at memory that no pager manages: the supervisor sees it before the process unmaps
//! it or ends. Looks at intervals miss what a short process had.

use std::sync::atomic::{AtomicU64, Ordering};

use super::PAGE;
use super::attach;
use super::pager::Pager;
use super::sys;

/// Least unmanaged memory for which the process waits.
const LEAST_BYTES: u64 = 4 << 20;
/// Least time between two looks before memory is unmapped.
const LOOK_EVERY_NS: u64 = 200_000_000;
/// Length of `/proc/self/status`, twice over.
const STATUS_BYTES: usize = 4096;

/// The time of the last look before memory was unmapped; 0: none.
#[derive(Debug, Default)]
pub struct LastLook(AtomicU64);

impl Pager {
    /// Waits until the supervisor has looked at this process, which is about to unmap `len_bytes`
    /// that no pager manages: at the first such memory, and now and then.
    pub fn look_before_unmapping(&self, len_bytes: usize) {
        let (now, last) = (sys::monotonic_ns(), self.last_look.0.load(Ordering::Relaxed));
        if len_bytes as u64 >= LEAST_BYTES && (last == 0 || now - last > LOOK_EVERY_NS) {
            self.last_look.0.store(now, Ordering::Relaxed);
            self.wait_for_last_look();
        }
    }

    /// Waits until the supervisor has looked at this process, if it has memory beside the pager's.
    /// For the thread that ends the process, last of all.
    pub fn wait_for_last_look(&self) {
        let Ok(fd) = sys::open_readonly(b"/proc/self/status\0") else { return };
        let mut text = [0u8; STATUS_BYTES];
        let len = sys::pread(fd, 0, &mut text).unwrap_or(0);
        sys::close(fd);
        let managed_pages = self.own_process().resident_pages.load(Ordering::Relaxed);
        if unmanaged_bytes(&text[..len], managed_pages * PAGE as u64) >= LEAST_BYTES {
            attach::wait_for_last_look(self.supervisor_fd);
        }
    }
}

/// Returns the resident memory that a pager does not manage, of files apart (proc_pid_status(5)).
fn unmanaged_bytes(status: &[u8], managed_bytes: u64) -> u64 {
    let bytes = |name: &[u8]| {
        let mut lines = status.split(|&byte| byte == b'\n');
        let figure = lines.find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        let digits = figure.iter().filter(|byte| byte.is_ascii_digit());
        digits.fold(0u64, |kib, digit| kib * 10 + u64::from(digit - b'0')) << 10
    };
    let anonymous = bytes(b"RssAnon:").saturating_sub(managed_bytes);
    anonymous + bytes(b"RssShmem:") + bytes(b"HugetlbPages:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managed_memory_is_left_out() {
        let text =
            b"Name:\tRssAnon: 7\nRssAnon:\t    3000 kB\nRssFile:\t 900 kB\nRssShmem:\t 8 kB\n";
        assert_eq!(unmanaged_bytes(text, 1000 << 10), 2008 << 10);
        assert_eq!(unmanaged_bytes(text, 4000 << 10), 8 << 10);
        assert_eq!(unmanaged_bytes(b"", 0), 0);
    }
}
