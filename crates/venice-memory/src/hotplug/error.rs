//! Why the kernel's hot-plug did not do what was asked of it.

use std::path::PathBuf;

use venice_wire::ByteSize;

/// Why the kernel's hot-plug did not do what was asked of it.
#[derive(Debug, thiserror::Error)]
pub enum HotplugError {
    /// A file of the kernel's could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The kernel has no memory blocks to take offline or online.
    #[error(
        "this kernel has no memory blocks to take offline (no {0}): it needs \
         CONFIG_MEMORY_HOTREMOVE"
    )]
    NoBlocks(PathBuf),
    /// A block cannot go offline: what lies in it cannot be moved elsewhere.
    #[error("memory block {number} stays online: what lies in it cannot be moved")]
    Busy {
        /// Its number.
        number: u64,
    },
    /// A block did not come online.
    #[error("memory block {number} did not come online")]
    StaysOffline {
        /// Its number.
        number: u64,
    },
    /// Less went offline than was asked for.
    #[error(
        "only {taken} of the {asked} to lend could be taken offline: the rest of this machine's \
         memory is in use, or holds what cannot be moved"
    )]
    TooFew {
        /// What could be taken; it is online again.
        taken: ByteSize,
        /// What was asked for.
        asked: ByteSize,
    },
    /// The machine would have too little left.
    #[error(
        "taking {asked} offline leaves this machine {left} of its {available} available memory, \
         less than the {keep_free} that it is to keep: lend fewer blocks, or lower --keep-free"
    )]
    TooLittleLeft {
        /// What was asked for.
        asked: ByteSize,
        /// What is available.
        available: ByteSize,
        /// What of that would be left.
        left: ByteSize,
        /// What the machine is to keep.
        keep_free: ByteSize,
    },
    /// Another process keeps the record of blocks taken offline.
    #[error("{0} is in use: an agent that has taken memory blocks offline runs")]
    InUse(PathBuf),
    /// The record is damaged.
    #[error("{path} is damaged ({reason}): bring the blocks online by hand and remove it")]
    Damaged {
        /// The record.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no such DAX device.
    #[error("no DAX device {name}: `venice window list` shows those there are")]
    NoDevice {
        /// What was asked for.
        name: String,
    },
    /// The kernel cannot use DAX devices as memory.
    #[error("the kernel has no driver kmem for DAX devices: `modprobe kmem`")]
    NoKmem,
    /// The device is memory already, or not yet.
    #[error("{name} {state}")]
    WrongState {
        /// The device.
        name: String,
        /// What it is.
        state: &'static str,
    },
    /// The device is smaller than a memory block.
    #[error("{name} holds no whole memory block of {block}: the kernel cannot use it as memory")]
    TooSmall {
        /// The device.
        name: String,
        /// The size of a block.
        block: ByteSize,
    },
    /// Some of the device's memory cannot be freed.
    #[error(
        "{name} stays: {busy} of its {blocks} memory blocks are in use by what cannot be moved; \
         end the programs that use them"
    )]
    DeviceBusy {
        /// The device.
        name: String,
        /// Blocks in use.
        busy: usize,
        /// Its blocks.
        blocks: usize,
    },
}
