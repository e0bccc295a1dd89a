//! Memory blocks: the units in which Linux takes memory offline and online.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::HotplugError;
use super::lock::Locked;

/// Time limit for taking a block offline. Most blocks that can go offline do so within
/// milliseconds; the kernel tries the others until it is interrupted.
const OFFLINE_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(1);

/// The memory blocks of this machine.
#[derive(Debug, Clone)]
pub struct MemoryBlocks {
    root: PathBuf,
}

/// A memory block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The block's number: its physical address divided by the size of a block.
    pub number: u64,
    /// True if the kernel uses it.
    pub is_online: bool,
    /// True if the kernel has put only movable memory into it.
    pub is_movable: bool,
    /// True if it may go offline at all.
    pub is_removable: bool,
    /// The NUMA node that it belongs to.
    pub numa_node: Option<u32>,
}

impl Default for MemoryBlocks {
    fn default() -> Self {
        Self::at("/sys/devices/system/memory")
    }
}

impl MemoryBlocks {
    /// Creates the view of the blocks that a directory lists.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The size of a block, bytes.
    ///
    /// # Errors
    /// [`HotplugError::NoBlocks`] if the kernel has none.
    pub fn block_bytes(&self) -> Result<u64, HotplugError> {
        let path = self.root.join("block_size_bytes");
        let text = fs::read_to_string(&path).ok();
        let bytes = text.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        bytes.filter(|bytes| *bytes > 0).ok_or_else(|| HotplugError::NoBlocks(self.root.clone()))
    }

    /// All blocks, by number.
    ///
    /// # Errors
    /// [`HotplugError::NoBlocks`] if the kernel has none.
    pub fn list(&self) -> Result<Vec<Block>, HotplugError> {
        let none = |_| HotplugError::NoBlocks(self.root.clone());
        let entries = fs::read_dir(&self.root).map_err(none)?;
        let names = entries.flatten().map(|entry| entry.file_name());
        let numbers = names.filter_map(|name| name.to_str()?.strip_prefix("memory")?.parse().ok());
        let mut blocks: Vec<Block> = numbers.filter_map(|number| self.block(number)).collect();
        blocks.sort_by_key(|block| block.number);
        Ok(blocks)
    }

    /// The block of this number; `None` if it does not exist.
    pub fn block(&self, number: u64) -> Option<Block> {
        let folder = self.folder(number);
        let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
        let state = read("state")?;
        let zones = read("valid_zones").unwrap_or_default();
        let node = fs::read_dir(&folder)
            .ok()?
            .flatten()
            .find_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok());
        Some(Block {
            number,
            is_online: state.starts_with("online"),
            is_movable: zones.trim() == "Movable",
            is_removable: read("removable").is_none_or(|flag| flag.trim() == "1"),
            numa_node: node,
        })
    }

    /// The physical addresses of a block.
    ///
    /// # Errors
    /// [`HotplugError::NoBlocks`] if the kernel has none.
    pub fn range(&self, number: u64) -> Result<Range<u64>, HotplugError> {
        let bytes = self.block_bytes()?;
        Ok(number * bytes..(number + 1) * bytes)
    }

    /// Takes a block offline. The kernel moves its contents elsewhere. Takes milliseconds, or five
    /// seconds if the kernel tries in vain.
    ///
    /// # Errors
    /// [`HotplugError::Busy`] if it stays online, [`HotplugError::File`] if its state cannot be
    /// written.
    pub fn take_offline(&self, number: u64) -> Result<(), HotplugError> {
        self.ask_within_limit(number, "offline")?;
        match self.block(number) {
            Some(block) if !block.is_online => Ok(()),
            _ => Err(HotplugError::Busy { number }),
        }
    }

    /// Brings a block online. With `movable` the kernel puts only movable memory into it. A block
    /// that is online already stays unchanged.
    ///
    /// # Errors
    /// [`HotplugError::StaysOffline`] if it does not come online, [`HotplugError::File`] if its
    /// state cannot be written.
    pub fn bring_online(&self, number: u64, movable: bool) -> Result<(), HotplugError> {
        if self.block(number).is_some_and(|block| block.is_online) {
            return Ok(());
        }
        let state = self.folder(number).join("state");
        let word = if movable { "online_movable" } else { "online" };
        let written = write(&state, word);
        match self.block(number) {
            Some(block) if block.is_online => Ok(()),
            _ => written.and(Err(HotplugError::StaysOffline { number })),
        }
    }

    /// Claims a block: as long as the claim lives, at most as long as the process, other donors
    /// neither take the block nor bring it online. `None` if another donor has it, or it is gone.
    pub(super) fn claim(&self, number: u64) -> Result<Option<Claim>, HotplugError> {
        let path = self.folder(number);
        let failed = |source| HotplugError::File { path: path.clone(), source };
        let folder = match File::open(&path) {
            Ok(folder) => folder,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        match Locked::exclusively(folder) {
            Ok(folder) => Ok(Some(Claim { _folder: folder })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// Stops the kernel from bringing new blocks online, for as long as the result lives.
    pub(super) fn hold_back_new(&self) -> HeldBack {
        let path = self.root.join("auto_online_blocks");
        let before = fs::read_to_string(&path).ok().map(|text| text.trim().to_owned());
        let before = before.filter(|_| write(&path, "offline").is_ok());
        HeldBack { path, before }
    }

    fn folder(&self, number: u64) -> PathBuf {
        self.root.join(format!("memory{number}"))
    }

    /// Writes the state in a child process, which can be killed. A write in this process could not
    /// be interrupted while the kernel tries to empty a block.
    fn ask_within_limit(&self, number: u64, word: &str) -> Result<(), HotplugError> {
        let path = self.folder(number).join("state");
        let failed = |source| HotplugError::File { path: path.clone(), source };
        let mut asking = Command::new("/bin/sh")
            .args(["-c", "echo \"$1\" > \"$2\"", "sh", word])
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        wait_or_kill(&mut asking).map_err(failed)
    }
}

fn wait_or_kill(asking: &mut Child) -> std::io::Result<()> {
    let deadline = Instant::now() + OFFLINE_LIMIT;
    while asking.try_wait()?.is_none() {
        if Instant::now() > deadline {
            asking.kill()?;
            asking.wait()?;
            break;
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// A block that no other donor on this machine uses.
#[derive(Debug)]
pub(super) struct Claim {
    _folder: Locked,
}

/// A guard: the kernel leaves new blocks offline while it lives.
#[derive(Debug)]
pub(super) struct HeldBack {
    path: PathBuf,
    /// The setting before; `None` if it was not changed.
    before: Option<String>,
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = write(&self.path, before);
        }
    }
}

/// Writes a word to a file of the kernel, which must exist.
pub(super) fn write(path: &Path, word: &str) -> Result<(), HotplugError> {
    let written = match path.exists() {
        true => fs::write(path, word),
        false => Err(ErrorKind::NotFound.into()),
    };
    written.map_err(|source| HotplugError::File { path: path.to_owned(), source })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A directory like the kernel's, of blocks of 128 MiB that accept every state.
    pub(in super::super) fn folder(blocks: &[(u64, &str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("block_size_bytes"), "8000000\n").unwrap();
        for (number, state, zones) in blocks {
            let folder = root.path().join(format!("memory{number}"));
            fs::create_dir(&folder).unwrap();
            fs::create_dir(folder.join("node0")).unwrap();
            fs::write(folder.join("state"), state).unwrap();
            fs::write(folder.join("valid_zones"), zones).unwrap();
            fs::write(folder.join("removable"), "1\n").unwrap();
        }
        root
    }

    #[test]
    fn blocks_are_listed_by_number() {
        let root = folder(&[(12, "online\n", "Movable\n"), (3, "offline\n", "Normal Movable\n")]);
        let blocks = MemoryBlocks::at(root.path());
        assert_eq!(blocks.block_bytes().unwrap(), 128 << 20);
        let listed = blocks.list().unwrap();
        let seen = |b: &Block| (b.number, b.is_online, b.is_movable, b.is_removable, b.numa_node);
        assert_eq!(seen(&listed[0]), (3, false, false, true, Some(0)));
        assert_eq!(seen(&listed[1]), (12, true, true, true, Some(0)));
        assert_eq!(blocks.range(3).unwrap(), 3 << 27..4 << 27);
    }

    #[test]
    fn block_goes_offline_and_online() {
        let root = folder(&[(1, "online\n", "Normal\n")]);
        let blocks = MemoryBlocks::at(root.path());
        blocks.take_offline(1).unwrap();
        assert!(!blocks.block(1).unwrap().is_online);
        blocks.bring_online(1, false).unwrap();
        assert!(blocks.block(1).unwrap().is_online);
        assert!(matches!(blocks.take_offline(2), Err(HotplugError::Busy { number: 2 })));
    }

    #[test]
    fn missing_blocks_are_an_error() {
        let blocks = MemoryBlocks::at("/nowhere");
        assert!(matches!(blocks.list(), Err(HotplugError::NoBlocks(_))));
        assert!(matches!(blocks.block_bytes(), Err(HotplugError::NoBlocks(_))));
    }
}
