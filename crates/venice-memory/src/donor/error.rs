//! What can go wrong at the donor.

use std::path::PathBuf;

use rustix::io::Errno;
use venice_wire::{ByteSize, SLAB_BYTES};

use crate::hotplug::HotplugError;

/// Why memory cannot be lent.
#[derive(Debug, thiserror::Error)]
pub enum DonorError {
    /// Less than one slab was offered.
    #[error(
        "--lend {} is less than one slab: lend at least {}",
        ByteSize(*lend_bytes),
        ByteSize(SLAB_BYTES)
    )]
    TooSmall {
        /// What was offered, in bytes.
        lend_bytes: u64,
    },
    /// This machine has not that much memory to spare.
    #[error(
        "cannot lend {}: this machine has {} available; lower --lend or free memory",
        ByteSize(*need_bytes),
        ByteSize(*available_bytes)
    )]
    ShortOfMemory {
        /// What the slabs need, in bytes.
        need_bytes: u64,
        /// What the kernel calls available, in bytes.
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
        /// What the slabs need, in bytes.
        need_bytes: u64,
        /// RLIMIT_MEMLOCK, in bytes.
        limit_bytes: u64,
    },
    /// The kernel would not make a slab.
    #[error("cannot make a slab of memory: {step} failed")]
    Memory {
        /// The system call.
        step: &'static str,
        /// What it said.
        source: Errno,
    },
    /// There is no such memory device.
    #[error(transparent)]
    NoDevice(HotplugError),
    /// The device is system memory.
    #[error(
        "{name} is this machine's own memory at present: lend it with --lend, or take it from the \
         kernel first (`venice window detach {name}`)"
    )]
    DeviceIsMemory {
        /// Its name.
        name: String,
    },
    /// The device has no room for a slab.
    #[error("{name} has {size}: a slab is {}", ByteSize(SLAB_BYTES))]
    DeviceTooSmall {
        /// Its name.
        name: String,
        /// Its size.
        size: ByteSize,
    },
    /// The device is mapped by larger pages than a slab has.
    #[error(
        "{name} is mapped in pieces of {align} only, and a slab is {}: make it anew with pages of \
         2 MiB or 4 KiB (`daxctl create-device --align`, `ndctl create-namespace --align`)",
        ByteSize(SLAB_BYTES)
    )]
    DevicePages {
        /// Its name.
        name: String,
        /// Its pages.
        align: ByteSize,
    },
    /// Another agent of this machine has the device.
    #[error("{} is lent by another agent of this machine already", path.display())]
    DeviceLent {
        /// Where it is.
        path: PathBuf,
    },
    /// The kernel would not give a slab of the device.
    #[error("{}: {step} failed", path.display())]
    Device {
        /// Where it is.
        path: PathBuf,
        /// The system call.
        step: &'static str,
        /// What it said.
        source: Errno,
    },
    /// Slabs of a device came back and are not free: their recipients have them mapped.
    #[error("{slabs} slabs are mapped by those who had them before")]
    StillMapped {
        /// How many.
        slabs: usize,
    },
    /// The kernel would not lock a slab.
    #[error("cannot lock a slab in memory")]
    Lock {
        /// What mlock said.
        source: Errno,
    },
}
