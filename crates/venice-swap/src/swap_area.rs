//! A block device in use as swap.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use venice_wire::PAGE_BYTES;

use crate::{SwapError, sys};

/// Flags of swapon(2).
const PREFER: libc::c_int = 0x8000;
const DISCARD: libc::c_int = 0x10000;
const DISCARD_PAGES: libc::c_int = 0x40000;

/// The kernel's greatest priority.
pub const MAX_PRIORITY: u16 = 32767;

/// A device that the kernel swaps to.
#[derive(Debug)]
pub(crate) struct SwapArea {
    path: PathBuf,
}

impl SwapArea {
    /// Returns the area on a device that was switched on elsewhere.
    pub(crate) fn of(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Writes the header and switches the area on, with discards of freed pages.
    pub(crate) fn switch_on(path: &Path, len_bytes: u64, priority: u16) -> Result<Self, SwapError> {
        let device = OpenOptions::new().write(true).open(path);
        let device = device.map_err(SwapError::file("open", path))?;
        let written = device.write_all_at(&header(len_bytes), 0).and_then(|()| device.sync_all());
        written.map_err(SwapError::file("write", path))?;
        let flags = PREFER | libc::c_int::from(priority.min(MAX_PRIORITY));
        sys::swap_on(&c_path(path), flags | DISCARD | DISCARD_PAGES)
            .map_err(SwapError::at("swapon"))?;
        Ok(Self { path: path.to_owned() })
    }

    /// Swaps everything back in and switches the area off. On an error nothing is changed.
    pub(crate) fn switch_off(&self) -> Result<(), SwapError> {
        sys::swap_off(&c_path(&self.path)).map_err(SwapError::at("swapoff"))
    }
}

/// Returns the bytes in use on the swap device `path`; `None` if it is no swap device.
#[must_use]
pub fn used_bytes(path: &Path) -> Option<u64> {
    column_bytes(&std::fs::read_to_string("/proc/swaps").ok()?, path, 3)
}

/// Returns the size of the swap device `path` in bytes.
pub(crate) fn size_bytes(path: &Path) -> Option<u64> {
    column_bytes(&std::fs::read_to_string("/proc/swaps").ok()?, path, 2)
}

/// Parses a column. Columns: name, type, size, used (both in KiB), priority.
fn column_bytes(swaps: &str, path: &Path, column: usize) -> Option<u64> {
    let row = swaps
        .lines()
        .skip(1)
        .find(|row| row.split_whitespace().next().is_some_and(|name| Path::new(name) == path))?;
    row.split_whitespace().nth(column)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("a device's path holds no zero byte")
}

/// Builds `union swap_header` of the kernel, like mkswap(8).
fn header(len_bytes: u64) -> Vec<u8> {
    let mut page = vec![0u8; PAGE_BYTES as usize];
    let last_page = (len_bytes / PAGE_BYTES - 1).min(u64::from(u32::MAX)) as u32;
    page[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    page[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
    page[1052..1063].copy_from_slice(b"venice-swap");
    let magic = b"SWAPSPACE2";
    let end = page.len();
    page[end - magic.len()..].copy_from_slice(magic);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_bytes_are_parsed() {
        let swaps = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                     /dev/loop1                              partition\t1048572\t\t1024\t\t100\n";
        assert_eq!(column_bytes(swaps, Path::new("/dev/loop1"), 3), Some(1 << 20));
        assert_eq!(column_bytes(swaps, Path::new("/dev/loop"), 3), None);
        assert_eq!(column_bytes("", Path::new("/dev/loop1"), 3), None);
    }

    #[test]
    fn header_counts_pages_from_zero() {
        let page = header(1 << 20);
        assert_eq!(page[1028..1032], 255u32.to_ne_bytes());
        assert!(page.ends_with(b"SWAPSPACE2"));
    }
}
