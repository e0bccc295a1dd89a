//! The floor: a bare userfaultfd handler that copies a local page, and evicts nothing.
//!
//! The handler is pinned to the core of the thread whose faults it serves, which is the fastest
//! arrangement of a handler thread. No pager that resolves faults in a thread can be faster, so
//! Venice is compared with it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

use super::PAGE_BYTES;
use super::region::Region;
use venice_measure::cpus::pin_to;
use venice_measure::pattern;

/// The page whose content answers every fault of the floor.
pub(crate) const SOURCE_PAGE: u64 = 0;

/// `UFFD_USER_MODE_ONLY`: sufficient here, and allowed to every user.
const USER_MODE_ONLY: u32 = 1;

const UFFD_API: u64 = 0xAA;
const UFFDIO_API: libc::c_ulong = 0xC018_AA3F;
const UFFDIO_REGISTER: libc::c_ulong = 0xC020_AA00;
const UFFDIO_COPY: libc::c_ulong = 0xC028_AA03;
const REGISTER_MODE_MISSING: u64 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;
const MESSAGE_BYTES: usize = 32;

#[repr(C)]
struct ApiRequest {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RegisterRequest {
    start: u64,
    len_bytes: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct CopyRequest {
    destination: u64,
    source: u64,
    len_bytes: u64,
    mode: u64,
    copied_bytes: i64,
}

/// A region whose every first touch is served by a handler thread of its own. Its last page is
/// reserved: touching it ends the handler.
#[derive(Debug)]
pub(crate) struct FloorRegion {
    region: Region,
    handler: Option<JoinHandle<Result<()>>>,
}

impl FloorRegion {
    /// Creates a region of `pages` pages, its handler pinned to processor `cpu`.
    ///
    /// # Errors
    /// When the kernel has no userfaultfd for this user.
    pub(crate) fn new(pages: u64, cpu: usize) -> Result<Self> {
        let region = Region::map(pages + 1)?;
        let fd = open_userfaultfd(0)?;
        register(&fd, &region)?;
        let last_page = region.address() + pages * PAGE_BYTES;
        let handler = std::thread::spawn(move || handle(File::from(fd), last_page, cpu));
        Ok(Self { region, handler: Some(handler) })
    }

    /// Returns the memory; its last page must not be touched.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Ends the handler.
    ///
    /// # Errors
    /// When the handler had failed.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.end_handler()
    }

    fn end_handler(&mut self) -> Result<()> {
        let Some(handler) = self.handler.take() else { return Ok(()) };
        if !handler.is_finished() {
            let last = self.region.pages() - 1;
            self.region.word(last, 0).load(std::sync::atomic::Ordering::Relaxed);
        }
        handler.join().unwrap_or_else(|_| bail!("the handler of the floor panicked"))
    }
}

impl Drop for FloorRegion {
    fn drop(&mut self) {
        // `finish` reports errors; here another one is already being returned.
        let _ = self.end_handler();
    }
}

pub(super) fn open_userfaultfd(features: u64) -> Result<OwnedFd> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
    // SAFETY: the descriptor only gets ranges of this process's own mapping.
    let fd = unsafe { userfaultfd(flags) }.context("this kernel has no userfaultfd")?;
    let mut request = ApiRequest { api: UFFD_API, features, ioctls: 0 };
    // SAFETY: the request is of the layout and size that this ioctl's number states.
    ioctl_result(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, &raw mut request) })
        .context("userfaultfd has another API version")?;
    Ok(fd)
}

pub(super) fn register(fd: &OwnedFd, region: &Region) -> Result<()> {
    let mut request = RegisterRequest {
        start: region.address(),
        len_bytes: region.len_bytes() as u64,
        mode: REGISTER_MODE_MISSING,
        ioctls: 0,
    };
    // SAFETY: the request is of the layout and size that this ioctl's number states, and names a
    // range that is mapped.
    ioctl_result(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER, &raw mut request) })
        .context("cannot register the region with userfaultfd")
}

fn handle(mut fd: File, last_page: u64, cpu: usize) -> Result<()> {
    pin_to(cpu)?;
    let mut source = PageBuffer([0; PAGE_BYTES as usize]);
    pattern::fill(SOURCE_PAGE, &mut source.0);
    let mut message = [0u8; MESSAGE_BYTES];
    loop {
        // On an error the faulting thread would wait forever, so the process ends with the message.
        if let Err(error) = fd.read_exact(&mut message) {
            eprintln!("venice: the floor's handler cannot read its faults: {error}");
            std::process::exit(1);
        }
        assert_eq!(message[0], EVENT_PAGEFAULT, "only page faults were requested");
        let address: [u8; 8] = message[16..24].try_into().expect("eight bytes");
        let page = u64::from_ne_bytes(address) & !(PAGE_BYTES - 1);
        if let Err(error) = copy_page(fd.as_raw_fd(), page, source.0.as_ptr() as u64) {
            eprintln!("venice: the floor's handler cannot fill a page: {error}");
            std::process::exit(1);
        }
        if page == last_page {
            return Ok(());
        }
    }
}

/// Installs a copy of the page at `source` where a registered one is missing.
pub(super) fn copy_page(fd: i32, page: u64, source: u64) -> io::Result<()> {
    let mut request =
        CopyRequest { destination: page, source, len_bytes: PAGE_BYTES, mode: 0, copied_bytes: 0 };
    // SAFETY: the request is of the layout and size that this ioctl's number states; the kernel
    // refuses a source or a destination that is none.
    ioctl_result(unsafe { libc::ioctl(fd, UFFDIO_COPY, &raw mut request) })
}

/// A page to copy.
#[derive(Debug)]
#[repr(C, align(4096))]
pub(super) struct PageBuffer(pub(super) [u8; PAGE_BYTES as usize]);

fn ioctl_result(rc: libc::c_int) -> io::Result<()> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn every_touched_page_holds_the_source() {
        let floor = match FloorRegion::new(8, 0) {
            Ok(floor) => floor,
            Err(error) => {
                eprintln!("SKIPPED: {error:#}");
                return;
            }
        };
        for page in [3, 0, 7, 3] {
            let word = floor.region().word(page, 9).load(Ordering::Relaxed);
            assert_eq!(word, pattern::word(SOURCE_PAGE, 9));
        }
        floor.finish().unwrap();
    }
}
