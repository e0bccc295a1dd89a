//! What can go wrong at the donor.

use rustix::io::Errno;
use venice_wire::{ByteSize, SLAB_BYTES};

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
    /// The kernel would not lock a slab.
    #[error("cannot lock a slab in memory")]
    Lock {
        /// What mlock said.
        source: Errno,
    },
}
