//! Admission of packets that wait.

use serde::{Deserialize, Serialize};

use super::DropCause;
use super::config::BufferConfig;

/// The bytes that wait where a packet would go.
pub(super) struct Depths {
    pub(super) queue: u64,
    pub(super) input: u64,
    pub(super) output: u64,
}

/// The room for packets that wait.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Buffer {
    config: BufferConfig,
    /// Bytes of the pool in use.
    pool_used: u64,
}

impl Buffer {
    pub(super) fn new(config: BufferConfig) -> Self {
        Self { config, pool_used: 0 }
    }

    /// Takes room for a packet.
    pub(super) fn admit(&mut self, depths: &Depths, bytes: u32) -> Result<(), DropCause> {
        let bytes = u64::from(bytes);
        let fits = |depth: u64, limit: u64| match depth + bytes <= limit {
            true => Ok(()),
            false => Err(DropCause::QueueFull),
        };
        match self.config {
            BufferConfig::PerQueue { bytes } => fits(depths.queue, bytes.0),
            BufferConfig::PerInput { bytes } => fits(depths.input, bytes.0),
            BufferConfig::PerOutput { bytes } => fits(depths.output, bytes.0),
            BufferConfig::Shared { bytes: pool, alpha, reserved } => {
                let shared = depths.output.saturating_sub(reserved.0);
                let more = (depths.output + bytes).saturating_sub(reserved.0) - shared;
                if more == 0 {
                    return Ok(());
                }
                let free = pool.0 - self.pool_used;
                if more > free {
                    return Err(DropCause::PoolFull);
                }
                if shared >= alpha.of(free) {
                    return Err(DropCause::OverThreshold);
                }
                self.pool_used += more;
                Ok(())
            }
        }
    }

    /// Gives the room of a packet back; `output` is the depth of its output without it.
    pub(super) fn release(&mut self, output: u64, bytes: u32) {
        match self.config {
            BufferConfig::PerQueue { .. }
            | BufferConfig::PerInput { .. }
            | BufferConfig::PerOutput { .. } => {}
            BufferConfig::Shared { bytes: _, alpha: _, reserved } => {
                let before = (output + u64::from(bytes)).saturating_sub(reserved.0);
                self.pool_used -= before - output.saturating_sub(reserved.0);
            }
        }
    }
}
