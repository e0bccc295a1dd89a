//! Far pages read by slot, for a thread that is no pager's: the contents of a core dump.

use std::sync::Arc;

use super::PAGE;
use super::direct::FarMemory;
use super::far::{Far, FarError};
use super::run_block::RunBlockMap;
use super::transfer::Words;

/// One thread's access to the far pages of a run.
#[derive(Debug)]
pub struct SlotReader {
    block: Arc<RunBlockMap>,
    far: Far,
    page: Box<Words>,
}

impl Drop for SlotReader {
    fn drop(&mut self) {
        self.far.close(&self.block);
    }
}

impl SlotReader {
    /// Opens the far memory `memory`; `disk` is the descriptor of the write-behind file, if there
    /// is one, which must stay open.
    ///
    /// # Errors
    /// [`FarError`] if the way to the donors cannot be set up.
    pub fn new(memory: &FarMemory, disk: Option<i32>) -> Result<SlotReader, FarError> {
        let mut far = memory.far()?;
        far.set_disk(disk);
        Ok(SlotReader { block: memory.block().clone(), far, page: Box::new([0; PAGE / 8]) })
    }

    /// Reads the page in `slot` into `into`; `false`: there is no such slot, or its contents are
    /// lost with their donors. A process must hold the slot, lest it gets other contents meanwhile.
    ///
    /// # Panics
    /// If `into` is not a page long.
    pub fn read(&mut self, slot: u32, into: &mut [u8]) -> bool {
        assert_eq!(into.len(), PAGE, "slots are read whole");
        if slot as usize >= self.block.holders().len() {
            return false;
        }
        self.far.begin_read_section(&self.block);
        let found = self.far.fetch_at_once(&self.block, slot, &mut self.page);
        if let Some(address) = found {
            // SAFETY: a page of `self.page`, or of a slab that stays mapped until the section ends.
            let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, PAGE) };
            into.copy_from_slice(bytes);
        }
        self.far.end_read_section(&self.block);
        found.is_some()
    }
}
