//! Memory blocks taken offline from this machine's kernel while the agent runs.

use std::path::Path;

use venice_control::{ResourceKind, ResourceSpec};
use venice_memory::hotplug::{HotplugError, MemoryBlocks, Offline, record::Record};
use venice_wire::ByteSize;

use crate::AgentConfig;
use crate::memory_watch::MemoryWatch;

/// The taken blocks; dropping this brings them online again.
#[derive(Debug)]
pub(crate) struct LentBlocks {
    offline: Offline,
    block_bytes: u64,
}

impl LentBlocks {
    /// Takes the configured amount. Without one, brings blocks of a dead agent online and returns
    /// `None`. Takes milliseconds per block, and seconds if many cannot go offline.
    pub(crate) fn take(config: &AgentConfig) -> Result<Option<Self>, HotplugError> {
        if config.lend_blocks.0 == 0 {
            if config.state_dir.join(venice_memory::hotplug::record::FILE_NAME).exists() {
                let count = return_blocks(&config.state_dir)?;
                tracing::info!(count, "memory blocks of a dead agent brought online");
            }
            return Ok(None);
        }
        let blocks = MemoryBlocks::default();
        let block_bytes = blocks.block_bytes()?;
        let bytes = config.lend_blocks.0.div_ceil(block_bytes) * block_bytes;
        check_room(config, bytes)?;
        let told = |taken| {
            let (taken, of) = (ByteSize(taken), ByteSize(bytes));
            tracing::info!(%taken, %of, "memory blocks taken offline");
        };
        let offline = Offline::take(blocks, &config.state_dir, bytes, told)?;
        Ok(Some(Self { offline, block_bytes }))
    }

    /// Resource for the registration.
    pub(crate) fn resource(&self) -> Result<ResourceSpec, HotplugError> {
        let ranges = self.offline.ranges()?;
        let said = ranges.iter().map(|range| format!("{:#x}-{:#x}", range.start, range.end - 1));
        Ok(ResourceSpec {
            kind: ResourceKind::Window,
            address: format!("phys:{}", said.collect::<Vec<_>>().join(",")),
            bytes: ranges.iter().map(|range| range.end - range.start).sum(),
            slab_bytes: self.block_bytes,
            capabilities: vec!["hotplug".to_owned()],
        })
    }
}

impl Drop for LentBlocks {
    fn drop(&mut self) {
        match self.offline.give_back() {
            Ok(count) => tracing::info!(count, "memory blocks brought online again"),
            Err(error) => tracing::error!(%error, "run `venice agent --return-blocks`"),
        }
    }
}

/// Checks the room: the kernel would kill a process rather than refuse.
fn check_room(config: &AgentConfig, bytes: u64) -> Result<(), HotplugError> {
    let Some((available, keep_free)) = MemoryWatch::room(config) else { return Ok(()) };
    let slabs = config.lend.0;
    let left = available.saturating_sub(bytes).saturating_sub(slabs);
    if left >= keep_free {
        return Ok(());
    }
    Err(HotplugError::TooLittleLeft {
        asked: ByteSize(bytes + slabs),
        available: ByteSize(available),
        left: ByteSize(left),
        keep_free: ByteSize(keep_free),
    })
}

/// Brings the memory blocks online that a dead agent with this state directory has left offline;
/// returns their number. Creates nothing if no agent ever took any.
///
/// # Errors
/// Fails if an agent is running there, or a block stays offline.
pub fn return_blocks(state_dir: &Path) -> Result<usize, HotplugError> {
    if !Record::was_here(state_dir) {
        return Ok(0);
    }
    Record::open(state_dir)?.return_blocks(&MemoryBlocks::default())
}
