//! Swap to a RAM disk of this machine: a file in ramfs under a loop device.
//!
//! Tmpfs is unsuitable: the kernel may swap its pages, even to the disk that they are part of. A
//! reader of such a page then waits for the loop device, which waits for that page, and so does the
//! swapoff that would end it, until a reboot. Pages of ramfs stay in memory whatever happens to
//! this process; a lock on them would end with it, while the kernel goes on swapping to them.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use super::SwapDevice;
use super::loop_device::LoopDevice;
use super::swap_area::SwapArea;
use super::swap_file::write_zeros;
use crate::scratch;

/// Memory left free beside the disk: ramfs itself has no limit.
const SPARE_BYTES: u64 = 256 << 20;

/// A RAM disk in use as swap. Dropping it switches it off and gives its memory back.
#[derive(Debug)]
pub struct RamDiskSwap {
    // The fields drop in this order: swap off first, then the device, then its memory.
    _area: SwapArea,
    device: LoopDevice,
    _memory: LockedFile,
}

impl RamDiskSwap {
    /// Swaps to a RAM disk of `len_bytes`, whose memory is taken at once.
    ///
    /// # Errors
    /// Without root, without the memory, or when ramfs cannot be mounted or loop devices are
    /// missing.
    pub fn create(len_bytes: u64) -> Result<Self> {
        venice_swap::require_root()?;
        let memory = LockedFile::create(len_bytes)?;
        let device = LoopDevice::attach(&memory.path(), false)?;
        let area = SwapArea::switch_on(&device.path)?;
        Ok(Self { _area: area, device, _memory: memory })
    }
}

impl SwapDevice for RamDiskSwap {
    fn path(&self) -> &Path {
        &self.device.path
    }
}

/// A file all of whose pages are in memory and cannot leave it.
#[derive(Debug)]
struct LockedFile {
    // The fields drop in this order.
    _mount: Ramfs,
    folder: TempDir,
}

impl LockedFile {
    fn create(len_bytes: u64) -> Result<Self> {
        require_memory(len_bytes)?;
        let folder = scratch::folder(scratch::RAM_DISK)?;
        let mount = Ramfs::mount(folder.path())?;
        let locked = Self { _mount: mount, folder };
        let path = locked.path();
        let mut file =
            File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        write_zeros(&mut file, len_bytes).context("cannot fill the RAM disk")?;
        Ok(locked)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("disk")
    }
}

/// A file system whose pages the kernel counts as unevictable.
#[derive(Debug)]
struct Ramfs {
    point: PathBuf,
}

impl Ramfs {
    fn mount(point: &Path) -> Result<Self> {
        let flags = MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOSUID;
        mount("venice-ram-disk", point, "ramfs", flags, None).with_context(|| {
            format!("cannot mount ramfs on {}: a RAM disk must not be swapped", point.display())
        })?;
        Ok(Self { point: point.to_owned() })
    }
}

impl Drop for Ramfs {
    fn drop(&mut self) {
        if let Err(error) = unmount(&self.point, UnmountFlags::empty()) {
            eprintln!("venice: {} is still mounted: {error}", self.point.display());
        }
    }
}

fn require_memory(len_bytes: u64) -> Result<()> {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: Option<u64> =
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
    let available_bytes = kib.context("this kernel does not report the available memory")? * 1024;
    if available_bytes < len_bytes.saturating_add(SPARE_BYTES) {
        bail!(
            "{} MiB of memory are available, the RAM disk needs {} MiB",
            available_bytes >> 20,
            (len_bytes + SPARE_BYTES) >> 20
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    use super::*;

    /// Bit of `/proc/kpageflags`: on a list of the kernel's.
    const LISTED: u64 = 1 << 5;
    /// Bit of `/proc/kpageflags`: not on a list from which the kernel reclaims.
    const UNEVICTABLE: u64 = 1 << 18;
    const PAGE_BYTES: usize = 4096;
    const PAGES: usize = 64;

    #[test]
    fn ram_disk_pages_are_unevictable() {
        if let Err(lacks) = venice_swap::require_root() {
            return eprintln!("SKIPPED: ram_disk_pages_are_unevictable: {lacks}");
        }
        let locked = LockedFile::create((PAGES * PAGE_BYTES) as u64).unwrap();
        let flags = page_flags(&File::open(locked.path()).unwrap());
        // A processor lists the pages that it fills in batches: its last ones are on no list yet.
        let listed: Vec<u64> = flags.iter().copied().filter(|flags| flags & LISTED != 0).collect();
        assert!(!listed.is_empty(), "{flags:x?}");
        assert!(listed.iter().all(|flags| flags & UNEVICTABLE != 0), "{flags:x?}");
        let folder = locked.folder.path().to_owned();
        drop(locked);
        assert!(!folder.exists());
    }

    #[test]
    fn ram_disk_is_created_and_removed() {
        let swaps = || std::fs::read_to_string("/proc/swaps").unwrap();
        let disk = match RamDiskSwap::create(8 << 20) {
            Ok(disk) => disk,
            Err(error) => {
                return eprintln!("SKIPPED: ram_disk_is_created_and_removed: {error:#}");
            }
        };
        let (device, folder) = (disk.device.path.clone(), disk._memory.folder.path().to_owned());
        let device = device.to_str().unwrap();
        assert!(swaps().contains(device), "{}", swaps());
        drop(disk);
        assert!(!swaps().contains(device), "{}", swaps());
        assert!(!folder.exists());
    }

    /// Returns the kernel's flags of each page of `file`.
    fn page_flags(file: &File) -> Vec<u64> {
        let (len_bytes, populate) = (PAGES * PAGE_BYTES, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let base = unsafe {
            mmap(std::ptr::null_mut(), len_bytes, ProtFlags::READ, populate, file, 0).unwrap()
        };
        let word = |path: &str, index: u64| {
            let mut word = [0; 8];
            File::open(path).unwrap().read_exact_at(&mut word, index * 8).unwrap();
            u64::from_ne_bytes(word)
        };
        let first = base as usize / PAGE_BYTES;
        let frame = |page: usize| word("/proc/self/pagemap", page as u64) & ((1 << 55) - 1);
        let flags =
            (first..first + PAGES).map(|page| word("/proc/kpageflags", frame(page))).collect();
        // SAFETY: mapped above with this length; nothing refers to it.
        unsafe { munmap(base, len_bytes).unwrap() };
        flags
    }

    #[test]
    fn disk_larger_than_memory_is_refused() {
        let refused = require_memory(1 << 60).unwrap_err().to_string();
        assert!(refused.contains("the RAM disk needs"), "{refused}");
    }
}
