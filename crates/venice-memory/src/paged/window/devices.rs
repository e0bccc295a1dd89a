//! Who may write to the program's memory past its page tables: a device that was given the pages
//! themselves. What it writes to a page that has moved would be lost.
//!
//! The kernel does not say which pages are lent to devices. But whoever lends them has a descriptor
//! open for that: of a file for direct access (`O_DIRECT`), of an io_uring, of a device. Pages that
//! are write-protected are lent to nobody who writes. So what is seen after that is all there is: who
//! lent pages before has such a descriptor still, for a read lasts no longer than its file is open.

use super::proc_numbers::{self, ProcPath};

const DESCRIPTORS: &[u8] = b"/proc/self/fd\0";
/// Devices that copy what they have to say, or write nothing.
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

/// Has this process a descriptor through which devices may be writing to its memory now?
pub(super) fn may_write() -> bool {
    let (mut count, mut is_found) = (0, false);
    let listed = proc_numbers::each(DESCRIPTORS, |descriptor| {
        count += 1;
        is_found = is_suspect(descriptor);
        is_found
    });
    // A process whose first thread has ended does not show them.
    is_found || listed.is_err() || count == 0
}

fn is_suspect(descriptor: u32) -> bool {
    let mut link = [0; 128];
    // What has been closed meanwhile is no longer there.
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
    /// Where it was opened for direct access.
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

/// The line `flags:`, in octal.
fn flags(info: &[u8]) -> Option<u32> {
    let line = info.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"flags:"))?;
    u32::from_str_radix(std::str::from_utf8(line).ok()?.trim(), 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_devices_write_through_is_told_from_the_rest() {
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
