//! The record of blocks that a donor has taken offline, on disk. It is written before the kernel
//! takes a block, so that the process after a `kill -9` brings all of them back.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::blocks::Claim;
use super::lock::Locked;
use super::{HotplugError, MemoryBlocks};

/// The record's file name in a state directory.
pub const FILE_NAME: &str = "offline-blocks";

/// A record that this process alone may write, as long as it lives.
///
/// Format: lines of text. The first is the boot id, each other one a block and the way in which it
/// comes back.
#[derive(Debug)]
pub struct Record {
    path: PathBuf,
    boot: String,
    blocks: Vec<Named>,
    _lock: Locked,
}

/// The file that the owner of the record locks.
fn lock_path(state_dir: &Path) -> PathBuf {
    state_dir.join(format!("{FILE_NAME}.lock"))
}

/// A block of the record.
#[derive(Debug)]
struct Named {
    number: u64,
    is_movable: bool,
    /// `None` if a dead process wrote the line.
    claim: Option<Claim>,
}

impl Record {
    /// Opens the record in `state_dir`, or an empty one. The record of an earlier boot is empty: a
    /// boot brings all blocks online.
    ///
    /// # Errors
    /// [`HotplugError::InUse`] if another process has it open, [`HotplugError::Damaged`] if a line
    /// is invalid, [`HotplugError::File`] if a file cannot be read or written.
    pub fn open(state_dir: &Path) -> Result<Self, HotplugError> {
        let path = state_dir.join(FILE_NAME);
        let failed = |source| HotplugError::File { path: path.clone(), source };
        fs::create_dir_all(state_dir).map_err(failed)?;
        let lock = File::create(lock_path(state_dir)).map_err(failed)?;
        let Ok(lock) = Locked::exclusively(lock) else { return Err(HotplugError::InUse(path)) };
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(failed)?;
        let boot = boot.trim().to_owned();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed(error)),
        };
        let blocks = read(&text, &boot)
            .map_err(|reason| HotplugError::Damaged { path: path.clone(), reason })?;
        let named = |(number, is_movable)| Named { number, is_movable, claim: None };
        Ok(Self { path, boot, blocks: blocks.into_iter().map(named).collect(), _lock: lock })
    }

    /// True if any process has opened a record in `state_dir`.
    pub fn was_here(state_dir: &Path) -> bool {
        lock_path(state_dir).exists() || state_dir.join(FILE_NAME).exists()
    }

    /// The numbers of the blocks.
    pub(super) fn blocks(&self) -> impl ExactSizeIterator<Item = u64> {
        self.blocks.iter().map(|named| named.number)
    }

    /// Adds a block; it is on disk when this returns.
    pub(super) fn add(
        &mut self,
        number: u64,
        is_movable: bool,
        claim: Claim,
    ) -> Result<(), HotplugError> {
        self.blocks.push(Named { number, is_movable, claim: Some(claim) });
        self.save()
    }

    /// Removes a block that never went offline. Its line on disk could otherwise be taken for one
    /// of a block that another donor has taken since.
    pub(super) fn forget(&mut self, number: u64) -> Result<(), HotplugError> {
        self.blocks.retain(|named| named.number != number);
        self.save()
    }

    /// Brings every block of the record online, except those that a live donor has taken since.
    /// Returns the number of blocks that were offline.
    ///
    /// # Errors
    /// The error of the first block that stays offline; it is still in the record then.
    pub fn return_blocks(&mut self, blocks: &MemoryBlocks) -> Result<usize, HotplugError> {
        let mut failed = None;
        let mut count = 0;
        let mut left = Vec::new();
        for mut named in std::mem::take(&mut self.blocks) {
            match named.return_block(blocks) {
                Ok(was_offline) => count += usize::from(was_offline),
                Err(error) => {
                    left.push(named);
                    failed.get_or_insert(error);
                }
            }
        }
        self.blocks = left;
        self.save()?;
        failed.map_or(Ok(count), Err)
    }

    fn save(&self) -> Result<(), HotplugError> {
        let failed = |source| HotplugError::File { path: self.path.clone(), source };
        if self.blocks.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
                _ => Ok(()),
            };
        }
        let mut text = format!("{}\n", self.boot);
        for Named { number, is_movable, .. } in &self.blocks {
            let kind = if *is_movable { "movable" } else { "kernel" };
            text.push_str(&format!("{number} {kind}\n"));
        }
        let new = self.path.with_extension("new");
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &self.path)
        };
        write().map_err(failed)
    }
}

impl Named {
    /// Brings it online; `true` if it was offline, and no other donor's.
    fn return_block(&mut self, blocks: &MemoryBlocks) -> Result<bool, HotplugError> {
        if self.claim.is_none() {
            self.claim = blocks.claim(self.number)?;
        }
        // Another donor has it, or it no longer belongs to this machine.
        let Some(block) = blocks.block(self.number).filter(|_| self.claim.is_some()) else {
            return Ok(false);
        };
        blocks.bring_online(self.number, self.is_movable)?;
        Ok(!block.is_online)
    }
}

/// The number of blocks that the record in `state_dir` lists and that are offline. Does not open
/// the record for writing.
pub fn left_offline(state_dir: &Path, blocks: &MemoryBlocks) -> usize {
    let text = fs::read_to_string(state_dir.join(FILE_NAME)).unwrap_or_default();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let named = read(&text, boot.trim()).unwrap_or_default();
    let is_offline = |number| blocks.block(number).is_some_and(|block| !block.is_online);
    named.into_iter().filter(|(number, _)| is_offline(*number)).count()
}

fn read(text: &str, boot: &str) -> Result<Vec<(u64, bool)>, String> {
    let mut lines = text.lines();
    if lines.next() != Some(boot) {
        return Ok(Vec::new());
    }
    let block = |line: &str| {
        let (number, kind) = line.split_once(' ')?;
        Some((number.parse().ok()?, kind == "movable"))
    };
    lines.map(|line| block(line).ok_or_else(|| format!("invalid line {line:?}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::blocks::tests::folder;
    use super::*;

    #[test]
    fn killed_donors_blocks_come_back() {
        let root = folder(&[(1, "online\n", "Normal\n"), (2, "online\n", "Movable\n")]);
        let blocks = MemoryBlocks::at(root.path());
        let state = tempfile::tempdir().unwrap();
        let mut record = Record::open(state.path()).unwrap();
        for number in [1, 2] {
            record.add(number, number == 2, blocks.claim(number).unwrap().unwrap()).unwrap();
            blocks.take_offline(number).unwrap();
        }
        assert!(matches!(Record::open(state.path()), Err(HotplugError::InUse(_))));
        drop(record);
        assert_eq!(left_offline(state.path(), &blocks), 2);
        let mut record = Record::open(state.path()).unwrap();
        assert_eq!(record.blocks().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(record.return_blocks(&blocks).unwrap(), 2);
        // The directory keeps the word that the kernel would have turned into a state.
        let word = fs::read_to_string(root.path().join("memory1/state")).unwrap();
        assert_eq!(word, "online");
        assert!(!state.path().join(FILE_NAME).exists());
    }

    #[test]
    fn live_donor_keeps_reused_block() {
        let root = folder(&[(1, "online\n", "Normal\n"), (2, "online\n", "Normal\n")]);
        let blocks = MemoryBlocks::at(root.path());
        let (dead, living) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        // The donor was killed before the kernel took block 1.
        let mut record = Record::open(dead.path()).unwrap();
        record.add(1, false, blocks.claim(1).unwrap().unwrap()).unwrap();
        drop(record);
        let mut others = Record::open(living.path()).unwrap();
        others.add(1, false, blocks.claim(1).unwrap().unwrap()).unwrap();
        blocks.take_offline(1).unwrap();

        assert_eq!(Record::open(dead.path()).unwrap().return_blocks(&blocks).unwrap(), 0);
        assert!(!blocks.block(1).unwrap().is_online);
        assert_eq!(others.return_blocks(&blocks).unwrap(), 1);
    }

    #[test]
    fn record_of_earlier_boot_is_empty() {
        assert_eq!(read("yesterday\n1 kernel\n", "today"), Ok(vec![]));
        assert_eq!(read("today\n1 kernel\n7 movable\n", "today"), Ok(vec![(1, false), (7, true)]));
        assert!(read("today\nsome kernel\n", "today").is_err());
        assert_eq!(read("", "today"), Ok(vec![]));
    }
}
