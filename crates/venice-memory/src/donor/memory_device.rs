//! A memory device of this machine (DAX: CXL memory, an NVDIMM), lent slab by slab.
//!
//! The kernel gives each descriptor the whole device, and revokes none. Each slab therefore has a
//! descriptor of its own, opened for it, with a lock of that descriptor on the slab's bytes
//! ([`SlabFile::lock`]). The lock lasts until the last duplicate and the last mapping of the
//! descriptor are gone, in any process. As long as a recipient maps a slab, no agent can lend it
//! again, even one without a record of that recipient.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use venice_ports::shm::SlabFile;
use venice_wire::{ByteSize, SLAB_BYTES};

use super::{DonorError, Slab};
use crate::hotplug::{DaxBus, DaxDevice};

/// A device that this process alone lends.
#[derive(Debug)]
pub struct MemoryDevice {
    path: PathBuf,
    slabs: usize,
    /// The lock behind the device's last byte, which excludes other agents.
    _mine: SlabFile,
}

impl MemoryDevice {
    /// Opens the device of this name, such as `dax0.0`.
    ///
    /// # Errors
    /// [`DonorError`] if it is no device, is system memory at present, is smaller than a slab or
    /// has larger pages, cannot be opened, or is lent by another agent.
    pub fn open(name: &str) -> Result<Self, DonorError> {
        let device = DaxBus::default().device(name).map_err(DonorError::NoDevice)?;
        check(&device)?;
        Self::at(&Path::new("/dev").join(name), device.bytes)
    }

    /// Opens the device, or a file in place of one, at `path`.
    pub(super) fn at(path: &Path, len_bytes: u64) -> Result<Self, DonorError> {
        let mine = SlabFile::at(open(path)?, len_bytes);
        if !mine.lock().map_err(|source| device_error(path, "fcntl", source))? {
            return Err(DonorError::DeviceLent { path: path.to_owned() });
        }
        Ok(Self { path: path.to_owned(), slabs: (len_bytes / SLAB_BYTES) as usize, _mine: mine })
    }

    /// The number of slabs that fit.
    pub fn slab_count(&self) -> usize {
        self.slabs
    }

    /// The slab at this index, zeroed; `None`: its last recipient still maps it.
    pub(super) fn slab(&self, index: usize) -> Result<Option<Slab>, DonorError> {
        assert!(index < self.slabs, "slab {index} of {}", self.slabs);
        let error = |step| move |source| device_error(&self.path, step, source);
        let file = SlabFile::at(open(&self.path)?, index as u64 * SLAB_BYTES);
        if !file.lock().map_err(error("fcntl"))? {
            return Ok(None);
        }
        Slab::in_device(file).map(Some).map_err(error("mmap"))
    }
}

/// Checks that slabs of the device can be lent.
fn check(device: &DaxDevice) -> Result<(), DonorError> {
    let name = device.name.clone();
    if device.is_memory() {
        return Err(DonorError::DeviceIsMemory { name });
    }
    if device.bytes < SLAB_BYTES {
        return Err(DonorError::DeviceTooSmall { name, size: ByteSize(device.bytes) });
    }
    match device.align_bytes {
        Some(align) if !SLAB_BYTES.is_multiple_of(align) => {
            Err(DonorError::DevicePages { name, align: ByteSize(align) })
        }
        _ => Ok(()),
    }
}

fn open(path: &Path) -> Result<OwnedFd, DonorError> {
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|source| device_error(path, "open", source))
}

fn device_error(path: &Path, step: &'static str, source: Errno) -> DonorError {
    DonorError::Device { path: path.to_owned(), step, source }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use venice_ports::shm::MappedSlab;

    /// A file in place of a device of so many slabs.
    pub(in super::super) fn device(slabs: u64) -> (tempfile::NamedTempFile, MemoryDevice) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(slabs * SLAB_BYTES).unwrap();
        let device = MemoryDevice::at(file.path(), slabs * SLAB_BYTES).unwrap();
        (file, device)
    }

    /// Polls until `so` returns a value. A process that another test starts shares our descriptors,
    /// and with them our locks, until it executes its program.
    pub(in super::super) fn soon<T>(what: &str, mut so: impl FnMut() -> Option<T>) -> T {
        for _ in 0..1000 {
            if let Some(answer) = so() {
                return answer;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("timed out: {what}");
    }

    #[test]
    fn slab_stays_locked_while_mapped() {
        let (file, device) = device(2);
        let first = device.slab(0).unwrap().unwrap();
        assert!(device.slab(0).unwrap().is_none());
        let second = device.slab(1).unwrap().unwrap();
        second.write(5, b"secret");
        let recipients = second.file().unwrap();
        assert_eq!(recipients.offset_bytes(), SLAB_BYTES);
        let mapped = MappedSlab::map(&recipients, SLAB_BYTES as usize).unwrap();
        drop((second, recipients));
        assert!(device.slab(1).unwrap().is_none(), "it is still mapped");
        // SAFETY: inside the mapping, to which no reference exists.
        assert_eq!(unsafe { mapped.as_ptr().add(5).read() }, b's');
        drop(mapped);
        let second = soon("the slab is unmapped", || device.slab(1).unwrap());
        let mut seen = [1; 6];
        second.read(5, &mut seen);
        assert_eq!(seen, [0; 6]);
        assert_eq!(first.file().unwrap().offset_bytes(), 0);
        drop(file);
    }

    #[test]
    fn device_has_one_lending_agent() {
        let (file, device) = device(1);
        let again = MemoryDevice::at(file.path(), SLAB_BYTES).unwrap_err();
        assert!(matches!(again, DonorError::DeviceLent { .. }), "{again}");
        let kept = device.slab(0).unwrap().unwrap().file().unwrap();
        drop(device);
        let next = soon("free", || MemoryDevice::at(file.path(), SLAB_BYTES).ok());
        assert!(next.slab(0).unwrap().is_none());
        drop(kept);
        soon("the slab is unmapped", || next.slab(0).unwrap());
    }

    #[test]
    fn unusable_devices_are_refused() {
        let device = |bytes, align, driver: &str| DaxDevice {
            name: "dax0.0".into(),
            bytes,
            align_bytes: Some(align),
            start: None,
            numa_node: None,
            driver: Some(driver.into()),
            blocks: Vec::new(),
        };
        let said = |device| check(&device).unwrap_err().to_string();
        check(&device(SLAB_BYTES, 4096, "device_dax")).unwrap();
        check(&device(SLAB_BYTES, 2 << 20, "device_dax")).unwrap();
        assert!(said(device(1 << 30, 1 << 30, "device_dax")).contains("1GiB"));
        assert!(said(device(1 << 20, 4096, "device_dax")).contains("1MiB"));
        assert!(said(device(1 << 30, 4096, "kmem")).contains("venice window detach dax0.0"));
        let missing = MemoryDevice::open("dax77.7").unwrap_err();
        assert!(matches!(missing, DonorError::NoDevice(_)), "{missing}");
    }
}
