//! The floor of faults served in the thread that touches the page: its `SIGBUS` handler copies a
//! local page, and nothing is evicted.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use anyhow::{Result, bail};

use super::PAGE_BYTES;
use super::floor::{self, PageBuffer, SOURCE_PAGE};
use super::region::Region;
use venice_measure::pattern;

const FEATURE_SIGBUS: u64 = 1 << 7;

/// State of the handler. A process has one handler, so there is one of each.
static UFFD: AtomicI32 = AtomicI32::new(-1);
static SOURCE: OnceLock<Box<PageBuffer>> = OnceLock::new();
static SET_UP: OnceLock<OwnedFd> = OnceLock::new();

/// A region whose every first touch is served by the thread that touches it.
#[derive(Debug)]
pub(crate) struct SigbusRegion {
    region: Region,
}

impl SigbusRegion {
    /// Creates a region of `pages` pages.
    ///
    /// # Errors
    /// When the kernel has no userfaultfd for this user.
    pub(crate) fn new(pages: u64) -> Result<Self> {
        if SET_UP.get().is_none() {
            let fd = floor::open_userfaultfd(FEATURE_SIGBUS)?;
            UFFD.store(fd.as_raw_fd(), Ordering::Relaxed);
            let _ = SET_UP.set(fd);
            let mut source = Box::new(PageBuffer([0; PAGE_BYTES as usize]));
            pattern::fill(SOURCE_PAGE, &mut source.0);
            let _ = SOURCE.set(source);
            catch_sigbus()?;
        }
        let region = Region::map(pages)?;
        floor::register(SET_UP.get().expect("just set"), &region)?;
        Ok(Self { region })
    }

    /// Returns the memory.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }
}

fn catch_sigbus() -> Result<()> {
    // SAFETY: zeroed memory is a valid structure, and the flags match the handler's kind.
    let rc = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut())
    };
    if rc != 0 {
        bail!("SIGBUS cannot be caught: {}", std::io::Error::last_os_error());
    }
    Ok(())
}

extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's pointer, valid for the length of this call.
    let address = unsafe { (*info).si_addr() } as u64;
    let source = SOURCE.get().map_or(0, |source| source.0.as_ptr() as u64);
    let page = address & !(PAGE_BYTES - 1);
    if floor::copy_page(UFFD.load(Ordering::Relaxed), page, source).is_err() {
        // Another address: the access is tried again and ends the program. SAFETY: the default
        // action needs no handler.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_touched_page_holds_the_source() {
        let floor = match SigbusRegion::new(8) {
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
    }
}
