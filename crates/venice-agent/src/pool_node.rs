//! Default amount of memory that a pool node lends.

use venice_wire::{ByteSize, SLAB_BYTES};

use crate::memory_watch::MemoryWatch;
use crate::{AgentConfig, AgentError};

impl AgentConfig {
    /// Fills in the memory that a pool node lends if no setting says what it lends.
    ///
    /// # Errors
    /// [`AgentError::Config`] if its machine has nothing to lend, or does not report its memory.
    pub(crate) fn with_pool_memory(self) -> Result<Self, AgentError> {
        let lends_else =
            self.lend_blocks.0 > 0 || !self.offer.is_empty() || !self.lend_dax.is_empty();
        let is_said = self.lend.0 > 0 || lends_else;
        if !self.pool || is_said {
            return Ok(self);
        }
        let unknown = || {
            let said = "a pool node lends its machine's available memory, which this kernel does not \
                        report: set the amount with --lend";
            AgentError::Config(said.to_owned())
        };
        let (available_bytes, keep_free_bytes) = MemoryWatch::room(&self).ok_or_else(unknown)?;
        let lend = lendable(available_bytes, keep_free_bytes);
        if lend.0 == 0 {
            return Err(AgentError::Config(format!(
                "a pool node lends its machine's available memory, {}, less twice --keep-free, {}: nothing \
                 is left; lower --keep-free, or set the amount with --lend",
                ByteSize(available_bytes),
                ByteSize(keep_free_bytes)
            )));
        }
        Ok(Self { lend, ..self })
    }
}

/// Returns the lendable part of the available memory, in whole slabs: all but twice `keep_free`,
/// below which stalling tasks count as pressure.
pub(crate) fn lendable(available_bytes: u64, keep_free_bytes: u64) -> ByteSize {
    let left_bytes = available_bytes.saturating_sub(keep_free_bytes.saturating_mul(2));
    ByteSize(left_bytes / SLAB_BYTES * SLAB_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn lendable_leaves_twice_keep_free() {
        assert_eq!(lendable(1000 * MIB, 100 * MIB), ByteSize(800 * MIB));
        assert_eq!(lendable(1000 * MIB + SLAB_BYTES - 1, 100 * MIB), ByteSize(800 * MIB));
        assert_eq!(lendable(100 * MIB, 0), ByteSize(96 * MIB));
        assert_eq!(lendable(200 * MIB + SLAB_BYTES - 1, 100 * MIB), ByteSize(0));
        assert_eq!(lendable(100 * MIB, 100 * MIB), ByteSize(0));
        assert_eq!(lendable(u64::MAX, u64::MAX), ByteSize(0));
    }

    #[test]
    fn only_pool_node_lends_by_default() {
        let proc_dir = tempfile::tempdir().unwrap();
        let tell = |mib: u64| {
            let text = format!("MemTotal: 8388608 kB\nMemAvailable: {} kB\n", mib << 10);
            std::fs::write(proc_dir.path().join("meminfo"), text).unwrap();
        };
        let config = |pool, lend| AgentConfig {
            pool,
            lend: ByteSize(lend),
            keep_free: Some(ByteSize(100 * MIB)),
            proc_dir: proc_dir.path().to_owned(),
            ..AgentConfig::default()
        };
        let lends = |config: AgentConfig| config.with_pool_memory().map(|config| config.lend.0);
        tell(1000);
        assert_eq!(lends(config(true, 0)).unwrap(), 800 * MIB);
        assert_eq!(lends(config(true, 32 * MIB)).unwrap(), 32 * MIB);
        assert_eq!(lends(config(false, 0)).unwrap(), 0);
        let offers = AgentConfig { offer: vec!["nic:eth1".to_owned()], ..config(true, 0) };
        assert_eq!(lends(offers).unwrap(), 0);
        tell(201);
        let said = lends(config(true, 0)).unwrap_err().to_string();
        assert!(said.contains("--keep-free") && said.contains("--lend"), "{said}");
    }
}
