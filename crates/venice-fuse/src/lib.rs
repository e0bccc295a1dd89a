//! The part of the FUSE protocol that Venice's servers need (`linux/fuse.h`, version 7.31), and
//! their mounts: the file below a swap device, and the shared files of a run.
//!
//! [`request`] parses what the kernel sends, [`reply`] builds what it gets, both in the machine's
//! byte order and without I/O. [`mount`] opens a connection and mounts it, attached to no tree.
//! Each server decides what a request does.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod mount;
mod numbers;
pub mod reply;
pub mod request;

pub use reply::{Attributes, Features, REPLY_HEADER_BYTES, Reply};
pub use request::{Call, Changes, REQUEST_HEADER_BYTES, Request, WRITE_ARGUMENT_BYTES};

/// Most bytes of a read or a write. Larger ones would make readers wait behind writers.
pub const MAX_TRANSFER_BYTES: usize = 256 << 10;
/// Inode number of the root.
pub const ROOT: u64 = 1;

/// A second word of flags follows.
const MORE_FLAGS: u32 = 1 << 30;
/// `FUSE_OVER_IO_URING`, in the second word (Linux 6.14).
const BY_RING: u32 = 1 << (41 - 32);
