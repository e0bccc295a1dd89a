//! Blocks that a donor has taken from its own kernel, to be used by others.

use std::ops::Range;
use std::path::Path;

use venice_wire::ByteSize;

use super::record::Record;
use super::{HotplugError, MemoryBlocks};

/// Blocks that are offline for as long as this lives.
#[derive(Debug)]
pub struct Offline {
    blocks: MemoryBlocks,
    record: Record,
}

impl Offline {
    /// Takes as many blocks offline as `bytes` is long, rounded up: movable ones first, else the
    /// highest first. What a dead predecessor left offline is brought back before. `told` is
    /// called for each block with how many bytes have been taken.
    ///
    /// # Errors
    /// [`HotplugError::TooFew`] when not so many blocks can go; none is offline then. Those of
    /// [`Record::open`] and of the kernel's files.
    pub fn take(
        blocks: MemoryBlocks,
        state_dir: &Path,
        bytes: u64,
        mut told: impl FnMut(u64),
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
                told(taken.count() * block_bytes);
            }
        }
        Ok(taken)
    }

    /// False where the block stays online, or is another donor's.
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

    /// The physical addresses, by address; blocks that lie side by side are one range.
    ///
    /// # Errors
    /// [`HotplugError::NoBlocks`] where the kernel has none.
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

    /// Brings all of them online again.
    ///
    /// # Errors
    /// As [`Record::return_blocks`].
    pub fn give_back(&mut self) -> Result<usize, HotplugError> {
        self.record.return_blocks(&self.blocks)
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        // What stays offline stays in the record, for whoever comes next.
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
    fn movable_blocks_go_first_and_all_come_back() {
        let online = "online\n";
        let root = folder(&[
            (1, online, "Movable\n"),
            (2, online, "Normal\n"),
            (3, online, "Normal\n"),
            (9, "offline\n", "Normal Movable\n"),
        ]);
        let blocks = MemoryBlocks::at(root.path());
        let state = tempfile::tempdir().unwrap();
        let mut told = Vec::new();
        let taken =
            Offline::take(blocks.clone(), state.path(), 129 << 20, |bytes| told.push(bytes >> 20));
        let taken = taken.unwrap();
        assert_eq!(told, [128, 256]);
        assert_eq!(states(&blocks), [false, true, false, false]);
        assert_eq!(taken.ranges().unwrap(), [1 << 27..2 << 27, 3 << 27..4 << 27]);
        drop(taken);
        let movable = std::fs::read_to_string(root.path().join("memory1/state")).unwrap();
        assert_eq!(movable, "online_movable");
        assert!(states(&blocks)[2] && !states(&blocks)[3], "not its own it leaves alone");
    }

    #[test]
    fn all_or_nothing() {
        let root = folder(&[(1, "online\n", "Normal\n"), (2, "offline\n", "Normal\n")]);
        let blocks = MemoryBlocks::at(root.path());
        let state = tempfile::tempdir().unwrap();
        let error = Offline::take(blocks.clone(), state.path(), 256 << 20, |_| {}).unwrap_err();
        assert!(matches!(error, HotplugError::TooFew { .. }), "{error}");
        assert!(blocks.block(1).unwrap().is_online);
    }

    #[test]
    fn two_donors_never_have_the_same_block() {
        let root = folder(&[(1, "online\n", "Normal\n"), (2, "online\n", "Normal\n")]);
        let blocks = MemoryBlocks::at(root.path());
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let claimed = blocks.claim(2).unwrap();
        let first = Offline::take(blocks.clone(), one.path(), 1, |_| {}).unwrap();
        assert_eq!(first.ranges().unwrap()[0].start, 1 << 27, "the highest is being taken");
        drop(claimed);
        let second = Offline::take(blocks.clone(), two.path(), 1, |_| {}).unwrap();
        assert_eq!(second.ranges().unwrap()[0].start, 2 << 27);
    }

    #[test]
    fn neighbours_are_one_range() {
        let root = folder(&[(4, "online\n", "Normal\n"), (5, "online\n", "Normal\n")]);
        let state = tempfile::tempdir().unwrap();
        let taken = Offline::take(MemoryBlocks::at(root.path()), state.path(), 256 << 20, |_| {});
        let ranges = taken.unwrap().ranges().unwrap();
        assert_eq!((ranges.len(), &ranges[0]), (1, &(4 << 27..6 << 27)));
    }
}
