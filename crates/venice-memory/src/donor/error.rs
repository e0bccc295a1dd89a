//! Errors of the donor.

use std::path::PathBuf;

use rustix::io::Errno;
use venice_wire::{ByteSize, SLAB_BYTES};

use crate::hotplug::HotplugError;

/// An error of lending memory.
#[derive(Debug, thiserror::Error)]
pub enum DonorError {
    /// Less than one slab was offered.
    #[error(
        "--lend {} is less than one slab: lend at least {}",
        ByteSize(*lend_bytes),
        ByteSize(SLAB_BYTES)
    )]
    TooSmall {
        /// The memory offered, bytes.
        lend_bytes: u64,
    },
    /// The machine has too little memory available.
    #[error(
        "cannot lend {}: this machine has {} available; lower --lend or free memory",
        ByteSize(*need_bytes),
        ByteSize(*available_bytes)
    )]
    ShortOfMemory {
        /// The memory that the slabs need, bytes.
        need_bytes: u64,
        /// The memory that the kernel reports as available, bytes.
        available_bytes: u64,
    },
    /// The limit on locked memory is too low.
    #[error(
        "cannot lock {} of memory: the limit on locked memory is {}; raise it (`ulimit -l \
         unlimited`, or LimitMEMLOCK=infinity in the systemd unit) or run the agent as root",
        ByteSize(*need_bytes),
        ByteSize(*limit_bytes)
    )]
    LockLimit {
        /// The memory that the slabs need, bytes.
        need_bytes: u64,
        /// RLIMIT_MEMLOCK, bytes.
        limit_bytes: u64,
    },
    /// The kernel refused the memory of a slab.
    #[error("slab not created: {step} failed")]
    Memory {
        /// The system call.
        step: &'static str,
        /// The kernel's error.
        source: Errno,
    },
    /// The memory device does not exist.
    #[error(transparent)]
    NoDevice(HotplugError),
    /// The device is system memory at present.
    #[error(
        "{name} is system memory of this machine at present: lend it with --lend, or take it from the \
         kernel first (`venice window detach {name}`)"
    )]
    DeviceIsMemory {
        /// Name of the device.
        name: String,
    },
    /// The device has no room for a slab.
    #[error("{name} is too small ({size}): lend a device of at least {}", ByteSize(SLAB_BYTES))]
    DeviceTooSmall {
        /// Name of the device.
        name: String,
        /// Size of the device.
        size: ByteSize,
    },
    /// The device is mapped by larger pages than a slab has.
    #[error(
        "{name} is mapped by pages of {align}, and a slab is {}: create it anew with pages of \
         2 MiB or 4 KiB (`daxctl create-device --align`, `ndctl create-namespace --align`)",
        ByteSize(SLAB_BYTES)
    )]
    DevicePages {
        /// Name of the device.
        name: String,
        /// Size of the device's pages.
        align: ByteSize,
    },
    /// Another agent of this machine has the device.
    #[error("{} is lent by another agent of this machine already", path.display())]
    DeviceLent {
        /// Path of the device.
        path: PathBuf,
    },
    /// The kernel refused a slab of the device.
    #[error("{}: {step} failed", path.display())]
    Device {
        /// Path of the device.
        path: PathBuf,
        /// The system call.
        step: &'static str,
        /// The kernel's error.
        source: Errno,
    },
    /// Returned slabs of a device are not free yet: their last recipients still map them.
    #[error("{slabs} slabs are still mapped by their last recipients: end these, or wait")]
    StillMapped {
        /// Number of such slabs.
        slabs: usize,
    },
    /// The kernel refused to lock a slab.
    #[error("slab not locked in memory")]
    Lock {
        /// The error of `mlock(2)`.
        source: Errno,
    },
}
