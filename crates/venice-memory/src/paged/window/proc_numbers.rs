//! The numbers that a directory of `/proc` lists: descriptors, threads. The code does not use the
//! heap, because it runs while threads of the program are blocked, and one of them may hold the
//! heap's lock.

use super::super::sys::{self, Errno, SysResult, nr};

/// A path in `/proc`, ending in NUL.
pub(super) struct ProcPath {
    text: [u8; 64],
    len: usize,
}

impl ProcPath {
    /// Joins the parts, with the number in decimal digits.
    pub(super) fn new(before: &str, number: u32, after: &str) -> ProcPath {
        let mut path = ProcPath { text: [0; 64], len: 0 };
        path.push(before.as_bytes());
        let mut digits = [0; 10];
        let mut at = digits.len();
        let mut rest = number;
        while at == digits.len() || rest > 0 {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        path.push(&digits[at..]);
        path.push(after.as_bytes());
        path.push(b"\0");
        path
    }

    fn push(&mut self, part: &[u8]) {
        self.text[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
    }

    /// The path with its NUL.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.text[..self.len]
    }

    /// Reads the beginning of the file.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn read<'a>(&self, into: &'a mut [u8]) -> SysResult<&'a [u8]> {
        let fd = sys::open_readonly(self.bytes())?;
        let len = sys::pread(fd, 0, into);
        sys::close(fd);
        Ok(&into[..len?])
    }

    /// Reads the target of the link.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn read_link<'a>(&self, into: &'a mut [u8]) -> SysResult<&'a [u8]> {
        const AT_FDCWD: usize = -100isize as usize;
        let path = self.bytes().as_ptr() as usize;
        let arguments = [AT_FDCWD, path, into.as_mut_ptr() as usize, into.len(), 0, 0];
        // SAFETY: the path ends in NUL, and the buffer is valid for its length.
        let len = unsafe { sys::syscall(nr::READLINKAT, arguments)? };
        Ok(&into[..len])
    }
}

/// Calls `each` with every number in the directory, until it returns `true`.
///
/// # Errors
/// The kernel's error.
pub(super) fn each(directory: &[u8], mut each: impl FnMut(u32) -> bool) -> SysResult<()> {
    let fd = sys::open_readonly(directory)?;
    let mut entries = [0u8; 4096];
    let outcome = loop {
        let arguments = [fd as usize, entries.as_mut_ptr() as usize, entries.len(), 0, 0, 0];
        // SAFETY: the buffer is valid for its length.
        match unsafe { sys::syscall(nr::GETDENTS64, arguments) } {
            Ok(0) => break Ok(()),
            Ok(len) if numbers(&entries[..len]).any(&mut each) => break Ok(()),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => break Err(errno),
        }
    };
    sys::close(fd);
    outcome
}

/// The numbers among the names of directory entries (`getdents64(2)`).
fn numbers(entries: &[u8]) -> impl Iterator<Item = u32> {
    let mut at = 0;
    let names = std::iter::from_fn(move || {
        let length = entries.get(at + 16..at + 18)?;
        let next = at + u16::from_ne_bytes(length.try_into().expect("2 bytes")) as usize;
        let name = entries.get(at + 19..next)?;
        at = next;
        Some(&name[..name.iter().position(|&byte| byte == 0).unwrap_or(name.len())])
    });
    names.filter_map(|name| std::str::from_utf8(name).ok()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_threads_of_process() {
        let mut seen = Vec::new();
        each(b"/proc/self/task\0", |thread| {
            seen.push(thread);
            false
        })
        .unwrap();
        assert!(seen.contains(&sys::gettid()), "{seen:?}");
        let mut first = 0;
        each(b"/proc/self/task\0", |_| {
            first += 1;
            true
        })
        .unwrap();
        assert_eq!(first, 1);
        assert_eq!(ProcPath::new("/a/", 0, "").bytes(), b"/a/0\0");
        assert_eq!(ProcPath::new("/a/", 4_294_967_295, "/b").bytes(), b"/a/4294967295/b\0");
    }
}
