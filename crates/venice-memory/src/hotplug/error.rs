//! Errors of the kernel's memory hot-plug.

use std::path::PathBuf;

use venice_wire::ByteSize;

/// An error of the kernel's memory hot-plug.
#[derive(Debug, thiserror::Error)]
pub enum HotplugError {
    /// A file of the kernel could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The kernel has no memory blocks to take offline or online.
    #[error(
        "this kernel has no memory blocks to take offline (no {0}): it needs \
         CONFIG_MEMORY_HOTREMOVE"
    )]
    NoBlocks(PathBuf),
    /// A block cannot go offline: its contents cannot be moved elsewhere.
    #[error("memory block {number} stays online: its contents cannot be moved")]
    Busy {
        /// Number of the block.
        number: u64,
    },
    /// A block did not come online.
    #[error("memory block {number} did not come online")]
    StaysOffline {
        /// Number of the block.
        number: u64,
    },
    /// Fewer blocks went offline than requested.
    #[error(
        "only {taken} of the {asked} to lend could be taken offline: the rest of this machine's \
         memory is in use, or holds what cannot be moved"
    )]
    TooFew {
        /// The memory taken; it is online again.
        taken: ByteSize,
        /// The memory requested.
        asked: ByteSize,
    },
    /// The machine would keep too little memory.
    #[error(
        "taking {asked} offline leaves this machine {left} of its {available} available memory, \
         less than the {keep_free} that it is to keep: lend fewer blocks, or lower --keep-free"
    )]
    TooLittleLeft {
        /// The memory requested.
        asked: ByteSize,
        /// The memory available.
        available: ByteSize,
        /// The part of it that would be left.
        left: ByteSize,
        /// The memory that the machine must keep.
        keep_free: ByteSize,
    },
    /// Another process has the record of blocks taken offline open.
    #[error("{0} is in use: an agent that has taken memory blocks offline is running")]
    InUse(PathBuf),
    /// The record is damaged.
    #[error("{path} is damaged ({reason}): bring the blocks online by hand and remove it")]
    Damaged {
        /// Path of the record.
        path: PathBuf,
        /// The defect.
        reason: String,
    },
    /// The DAX device does not exist.
    #[error("no DAX device {name}: `venice window list` shows the devices")]
    NoDevice {
        /// The name requested.
        name: String,
    },
    /// The kernel cannot use DAX devices as system memory.
    #[error("no driver kmem for DAX devices in this kernel: run `modprobe kmem`")]
    NoKmem,
    /// The device is in the wrong state for the request.
    #[error("{name} {state}")]
    WrongState {
        /// Name of the device.
        name: String,
        /// The state, as the rest of a sentence.
        state: &'static str,
    },
    /// The device is smaller than a memory block.
    #[error("{name} is too small: it has no whole memory block of {block}")]
    TooSmall {
        /// Name of the device.
        name: String,
        /// Size of a block.
        block: ByteSize,
    },
    /// Some of the device's memory cannot be freed.
    #[error(
        "{name} stays attached: {busy} of its {blocks} memory blocks have contents that cannot be moved; \
         end the programs that use them"
    )]
    DeviceBusy {
        /// Name of the device.
        name: String,
        /// Number of blocks in use.
        busy: usize,
        /// Number of all its blocks.
        blocks: usize,
    },
}
