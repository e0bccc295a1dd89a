//! Blocks that a donor has taken from its own kernel, to be used by others.

use std::ops::Range;
use std::path::Path;

use venice_wire::ByteSize;

use super::record::Record;
use super::{HotplugError, MemoryBlocks};

/// Blocks that are offline as long as this lives.
#[derive(Debug)]
pub struct Offline {
    blocks: MemoryBlocks,
    record: Record,
}

impl Offline {
    /// Takes blocks of `bytes` in all (rounded up) offline: movable ones first, otherwise the
    /// highest first. Blocks that a dead predecessor left offline are brought back before. Calls
    /// `progress` after each block with the bytes taken so far.
    ///
    /// # Errors
    /// [`HotplugError::TooFew`] if too few blocks can go offline; none is offline then. Also those
    /// of [`Record::open`] and of the kernel's files.
    pub fn take(
        blocks: MemoryBlocks,
        state_dir: &Path,
        bytes: u64,
        mut progress: impl FnMut(u64),
    ) -> Result<Self, HotplugError> {
        let mut record = Record::open(state_dir)?;
        record.return_blocks(&blocks)?;
        let block_bytes = blocks.block_bytes()?;
        let mut candidates = blocks.list()?;
        candidates.retain(|block| block.is_online && block.is_removable);
        candidates.sort_by_key(|block| (block.is_movable, block.number));
        let wanted = bytes.div_ceil(block_bytes);
        let mut taken = Self { blocks, record };
        while taken.count() < wanted {
            let Some(block) = candidates.pop() else {
                let got = taken.count() * block_bytes;
                taken.give_back()?;
                let asked = ByteSize(wanted * block_bytes);
                return Err(HotplugError::TooFew { taken: ByteSize(got), asked });
            };
            if taken.take_block(block.number, block.is_movable)? {
                progress(taken.count() * block_bytes);
            }
        }
        Ok(taken)
    }

    /// Takes one block offline; `false` if it stays online, or is another donor's.
    fn take_block(&mut self, number: u64, is_movable: bool) -> Result<bool, HotplugError> {
        let Some(claim) = self.blocks.claim(number)? else { return Ok(false) };
        if self.blocks.block(number).is_none_or(|block| !block.is_online) {
            return Ok(false);
        }
        self.record.add(number, is_movable, claim)?;
        match self.blocks.take_offline(number) {
            Ok(()) => Ok(true),
            Err(HotplugError::Busy { number }) => self.record.forget(number).map(|()| false),
            Err(error) => Err(error),
        }
    }

    fn count(&self) -> u64 {
        self.record.blocks().len() as u64
    }

    /// The physical address ranges, by address, with adjacent blocks merged.
    ///
    /// # Errors
    /// [`HotplugError::NoBlocks`] if the kernel has none.
    pub fn ranges(&self) -> Result<Vec<Range<u64>>, HotplugError> {
        let mut ranges =
            self.record.blocks().map(|n| self.blocks.range(n)).collect::<Result<Vec<_>, _>>()?;
        ranges.sort_by_key(|range| range.start);
        ranges.dedup_by(|next, before| {
            let touches = before.end == next.start;
            if touches {
                before.end = next.end;
            }
            touches
        });
        Ok(ranges)
    }

    /// Brings all blocks online again, and returns their number.
    ///
    /// # Errors
    /// The errors of [`Record::return_blocks`].
    pub fn give_back(&mut self) -> Result<usize, HotplugError> {
        self.record.return_blocks(&self.blocks)
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        // Blocks that stay offline stay in the record, for the next process.
        let _ = self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::super::blocks::tests::folder;
    use super::*;

    fn states(blocks: &MemoryBlocks) -> Vec<bool> {
        blocks.list().unwrap().iter().map(|block| block.is_online).collect()
    }

    #[test]
    fn movable_blocks_go_first() {
        let online = "online\n";
        let root = folder(&[
            (1, online, "Movable\n"),
            (2, online, "Normal\n"),
            (3, online, "Normal\n"),
            (9, "offline\n", "Normal Movable\n"),
        ]);
        let blocks = MemoryBlocks::at(root.path());
        let state = tempfile::tempdir().unwrap();
        let mut progress = Vec::new();
        let taken = Offline::take(blocks.clone(), state.path(), 129 << 20, |bytes| {
            progress.push(bytes >> 20)
        });
        let taken = taken.unwrap();
        assert_eq!(progress, [128, 256]);
        assert_eq!(states(&blocks), [false, true, false, false]);
        assert_eq!(taken.ranges().unwrap(), [1 << 27..2 << 27, 3 << 27..4 << 27]);
        drop(taken);
        let movable = std::fs::read_to_string(root.path().join("memory1/state")).unwrap();
        assert_eq!(movable, "online_movable");
        assert!(states(&blocks)[2] && !states(&blocks)[3], "other offline blocks stay offline");
    }

    #[test]
    fn takes_all_blocks_or_none() {
        let root = folder(&[(1, "online\n", "Normal\n"), (2, "offline\n", "Normal\n")]);
        let blocks = MemoryBlocks::at(root.path());
        let state = tempfile::tempdir().unwrap();
        let error = Offline::take(blocks.clone(), state.path(), 256 << 20, |_| {}).unwrap_err();
        assert!(matches!(error, HotplugError::TooFew { .. }), "{error}");
        assert!(blocks.block(1).unwrap().is_online);
    }

    #[test]
    fn donors_never_share_blocks() {
        let root = folder(&[(1, "online\n", "Normal\n"), (2, "online\n", "Normal\n")]);
        let blocks = MemoryBlocks::at(root.path());
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let claimed = blocks.claim(2).unwrap();
        let first = Offline::take(blocks.clone(), one.path(), 1, |_| {}).unwrap();
        assert_eq!(first.ranges().unwrap()[0].start, 1 << 27, "the highest is claimed");
        drop(claimed);
        let second = Offline::take(blocks.clone(), two.path(), 1, |_| {}).unwrap();
        assert_eq!(second.ranges().unwrap()[0].start, 2 << 27);
    }

    #[test]
    fn adjacent_blocks_merge() {
        let root = folder(&[(4, "online\n", "Normal\n"), (5, "online\n", "Normal\n")]);
        let state = tempfile::tempdir().unwrap();
        let taken = Offline::take(MemoryBlocks::at(root.path()), state.path(), 256 << 20, |_| {});
        let ranges = taken.unwrap().ranges().unwrap();
        assert_eq!((ranges.len(), &ranges[0]), (1, &(4 << 27..6 << 27)));
    }
}
