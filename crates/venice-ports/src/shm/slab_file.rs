//! Memory of a slab: a file of its own, or a piece of a memory device.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, SealFlags, Stat, fcntl_get_seals, fstat, major, minor};
use rustix::io::Errno;
use venice_wire::SLAB_BYTES;

use crate::PortError;

/// Descriptor of a slab's memory, and the offset of the slab in it.
#[derive(Debug)]
pub struct SlabFile {
    fd: OwnedFd,
    offset_bytes: u64,
}

impl From<OwnedFd> for SlabFile {
    /// Wraps a file that contains the slab alone.
    fn from(fd: OwnedFd) -> Self {
        Self { fd, offset_bytes: 0 }
    }
}

impl SlabFile {
    /// Returns the slab that begins at `offset_bytes`: of a memory device (DAX), or 0.
    pub fn at(fd: OwnedFd, offset_bytes: u64) -> Self {
        Self { fd, offset_bytes }
    }

    /// Returns the offset of the slab in the file, in bytes.
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// Duplicates the descriptor.
    ///
    /// # Errors
    /// Fails if the process has too many descriptors.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, offset_bytes: self.offset_bytes })
    }

    /// Locks the slab's bytes for this descriptor and its duplicates (`F_OFD_SETLK`, fcntl(2)),
    /// until all of them are closed and all their mappings gone, or until [`SlabFile::unlock`].
    /// Returns false if another descriptor has them locked.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn lock(&self) -> Result<bool, Errno> {
        match self.set_lock(libc::F_WRLCK) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Ends the lock. The caller must be sure that no process touches the slab through this
    /// descriptor any more, even if it is still mapped.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn unlock(&self) -> Result<(), Errno> {
        self.set_lock(libc::F_UNLCK)
    }

    fn set_lock(&self, kind: i32) -> Result<(), Errno> {
        let lock = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: self.offset_bytes as libc::off_t,
            l_len: SLAB_BYTES as libc::off_t,
            l_pid: 0,
        };
        // SAFETY: the call reads one `flock`, which outlives it.
        let outcome =
            unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
        match outcome {
            -1 => {
                let error = std::io::Error::last_os_error();
                Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
            }
            _ => Ok(()),
        }
    }

    /// True if it is a piece of a device, whose descriptor reaches more than the slab.
    pub fn is_in_device(&self) -> bool {
        fstat(&self.fd).is_ok_and(|stat| is_device(&stat))
    }

    /// Returns the page size of a slab in a device, in bytes; `None`: the machine's page size.
    pub fn page_bytes(&self) -> Option<u64> {
        let stat = fstat(&self.fd).ok().filter(is_device)?;
        fs::read_to_string(sysfs(&stat).join("align")).ok()?.trim().parse().ok()
    }

    /// Checks length and seals: a file that its donor could shrink, or a device that ends before
    /// the slab, would allow a SIGBUS.
    pub(super) fn check(&self) -> Result<(), PortError> {
        let protocol = |what| Err(PortError::Protocol { what });
        let stat = fstat(&self.fd).map_err(PortError::at("reading a slab's length"))?;
        if is_device(&stat) {
            let end = self.offset_bytes.checked_add(SLAB_BYTES);
            return match dax_bytes(&stat) {
                None => protocol("the device of a slab is no memory device"),
                Some(len_bytes) if end.is_none_or(|end| end > len_bytes) => {
                    protocol("slab reaches beyond the end of its device")
                }
                Some(_) => Ok(()),
            };
        }
        let seals = fcntl_get_seals(&self.fd).map_err(PortError::at("reading a slab's seals"))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return protocol("slab is not sealed against resizing");
        }
        if stat.st_size as u64 != SLAB_BYTES || self.offset_bytes != 0 {
            return protocol("wrong length of a slab");
        }
        Ok(())
    }
}

impl From<SlabFile> for OwnedFd {
    fn from(file: SlabFile) -> OwnedFd {
        file.fd
    }
}

impl AsFd for SlabFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn is_device(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
}

fn sysfs(stat: &Stat) -> PathBuf {
    let number = format!("{}:{}", major(stat.st_rdev), minor(stat.st_rdev));
    Path::new("/sys/dev/char").join(number)
}

/// Returns the length of a DAX device in bytes; `None` for anything else.
fn dax_bytes(stat: &Stat) -> Option<u64> {
    let device = sysfs(stat);
    let subsystem = fs::read_link(device.join("subsystem")).ok()?;
    let size = fs::read_to_string(device.join("size")).ok()?;
    (subsystem.file_name()? == "dax").then(|| size.trim().parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_device_without_memory() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let slab = SlabFile::at(null.into(), 0);
        assert!(slab.is_in_device());
        let said = slab.check().unwrap_err().to_string();
        assert!(said.contains("no memory"), "{said}");
    }

    #[test]
    fn own_file_needs_offset_zero() {
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("slab", flags).unwrap();
        rustix::fs::ftruncate(&fd, SLAB_BYTES).unwrap();
        let whole = SlabFile::from(fd.try_clone().unwrap());
        assert!(!whole.is_in_device() && whole.check().is_err(), "its length is not sealed");
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        whole.check().unwrap();
        assert_eq!(whole.try_clone().unwrap().offset_bytes(), 0);
        assert!(SlabFile::at(fd, 4096).check().is_err());
    }
}
