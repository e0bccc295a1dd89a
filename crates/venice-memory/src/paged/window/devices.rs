//! Detection of devices that may write to the program's memory past its page tables, because they
//! were given the pages themselves. Such a write to a page that has moved would be lost.
//!
//! The kernel does not report pages lent to devices. But a process that lends them has a descriptor
//! open for that: a file for direct access (`O_DIRECT`), an io_uring, or a device. Write-protected
//! pages cannot be lent for writing any more. A check after the write protection is therefore
//! complete: pages lent before belong to a descriptor that is still open, because a read lasts no
//! longer than its file is open.

use super::proc_numbers::{self, ProcPath};

const DESCRIPTORS: &[u8] = b"/proc/self/fd\0";
/// Devices that copy their data, or write nothing.
const HARMLESS: [&[u8]; 12] = [
    b"/dev/null",
    b"/dev/zero",
    b"/dev/full",
    b"/dev/random",
    b"/dev/urandom",
    b"/dev/tty",
    b"/dev/console",
    b"/dev/ptmx",
    b"/dev/pts/",
    b"/dev/shm/",
    b"/dev/fuse",
    b"/dev/log",
];

/// True if this process has a descriptor through which a device may write to its memory.
pub(super) fn may_write() -> bool {
    let (mut count, mut is_found) = (0, false);
    let listed = proc_numbers::each(DESCRIPTORS, |descriptor| {
        count += 1;
        is_found = is_suspect(descriptor);
        is_found
    });
    // A process whose first thread has ended does not list its descriptors.
    is_found || listed.is_err() || count == 0
}

fn is_suspect(descriptor: u32) -> bool {
    let mut link = [0; 128];
    // A descriptor closed meanwhile is no longer listed.
    match ProcPath::new("/proc/self/fd/", descriptor, "").read_link(&mut link) {
        Ok(link) => match suspicion(link) {
            Suspicion::None => false,
            Suspicion::Sure => true,
            Suspicion::AsOpened => is_direct(descriptor),
        },
        Err(_) => false,
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Suspicion {
    None,
    Sure,
    /// Only if it was opened for direct access.
    AsOpened,
}

fn suspicion(link: &[u8]) -> Suspicion {
    let is_harmless = || HARMLESS.iter().any(|device| link.starts_with(device));
    match link {
        b"anon_inode:[io_uring]" => Suspicion::Sure,
        [b'/', b'd', b'e', b'v', b'/', ..] if !is_harmless() => Suspicion::Sure,
        [b'/', ..] => Suspicion::AsOpened,
        _ => Suspicion::None,
    }
}

fn is_direct(descriptor: u32) -> bool {
    const O_DIRECT: u32 = 0o40000;
    let mut text = [0; 256];
    let Ok(text) = ProcPath::new("/proc/self/fdinfo/", descriptor, "").read(&mut text) else {
        return false;
    };
    flags(text).is_none_or(|flags| flags & O_DIRECT != 0)
}

/// The flags of the line `flags:`, in octal.
fn flags(info: &[u8]) -> Option<u32> {
    let line = info.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"flags:"))?;
    u32::from_str_radix(std::str::from_utf8(line).ok()?.trim(), 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspects_device_descriptors_only() {
        for (link, meant) in [
            ("anon_inode:[io_uring]", Suspicion::Sure),
            ("anon_inode:[eventpoll]", Suspicion::None),
            ("socket:[77]", Suspicion::None),
            ("pipe:[77]", Suspicion::None),
            ("/dev/infiniband/uverbs0", Suspicion::Sure),
            ("/dev/vfio/12", Suspicion::Sure),
            ("/dev/null", Suspicion::AsOpened),
            ("/dev/pts/3", Suspicion::AsOpened),
            ("/srv/table", Suspicion::AsOpened),
        ] {
            assert_eq!(suspicion(link.as_bytes()), meant, "{link}");
        }
        assert_eq!(flags(b"pos:\t0\nflags:\t0140002\nmnt_id:\t9\n"), Some(0o140002));
        assert_eq!(flags(b"pos:\t0\n"), None);
    }
}
