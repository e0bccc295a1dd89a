//! UMap's memory: a third-party pager in the program, loaded from the user's own build. UMap is not
//! a Debian package and not part of Venice; docs/benchmarks.md describes its build.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::ptr::NonNull;

use anyhow::{Context, Result, bail};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::PAGE_BYTES;

/// `umap` of `umap.h`: the arguments of mmap(2).
type Map = unsafe extern "C" fn(*mut c_void, u64, c_int, c_int, c_int, libc::off_t) -> *mut c_void;
/// `uunmap` of `umap.h`.
type Unmap = unsafe extern "C" fn(*mut c_void, u64) -> c_int;

/// Pages that UMap brings in from a file in memory, and writes back to it.
#[derive(Debug)]
pub(crate) struct UmapMemory {
    base: NonNull<u8>,
    len_bytes: u64,
    unmap: Unmap,
    _file: File,
    /// Dropped last: its threads and functions are in use until the memory is gone.
    _library: Library,
}

impl UmapMemory {
    /// Configures UMap by its environment, before its first call: pages of 4 KiB, with
    /// `resident_bytes` of them resident at most.
    pub(crate) fn configure(command: &mut Command, resident_bytes: u64) {
        command
            .env("UMAP_PAGESIZE", PAGE_BYTES.to_string())
            .env("UMAP_BUFSIZE", (resident_bytes / PAGE_BYTES).to_string());
    }

    /// Loads the library and maps memory.
    ///
    /// # Errors
    /// When `library` cannot be loaded or is not UMap, and when it does not map.
    pub(crate) fn map(library: &Path, len_bytes: u64) -> Result<Self> {
        // SAFETY: loading it runs its constructors; the user requests that by naming it.
        let loaded = unsafe { Library::open(Some(library), RTLD_NOW | RTLD_LOCAL) };
        let loaded = loaded.with_context(|| format!("cannot load UMap: {}", library.display()))?;
        let lacks = || format!("{} is not UMap's library", library.display());
        // SAFETY: umap.h declares the two functions with these types.
        let (map, unmap) = unsafe {
            (
                *loaded.get::<Map>(b"umap\0").with_context(lacks)?,
                *loaded.get::<Unmap>(b"uunmap\0").with_context(lacks)?,
            )
        };
        let file = File::from(memfd_create("umap", MemfdFlags::CLOEXEC)?);
        ftruncate(&file, len_bytes).context("cannot make UMap's file")?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
        // SAFETY: new memory at an address of its choice, from a file of that length.
        let address =
            unsafe { map(std::ptr::null_mut(), len_bytes, protection, flags, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            bail!("UMap cannot map {len_bytes} bytes");
        }
        let base = NonNull::new(address.cast()).context("UMap mapped at 0")?;
        Ok(Self { base, len_bytes, unmap, _file: file, _library: loaded })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for UmapMemory {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `map`, and no reference into it outlives `self`.
        unsafe { (self.unmap)(self.base.as_ptr().cast(), self.len_bytes) };
    }
}
