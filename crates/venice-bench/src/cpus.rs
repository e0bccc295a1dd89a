//! Which processors there are, and staying on one.

use anyhow::{Context, Result, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors this process may use, at least one.
///
/// # Errors
/// When the kernel does not tell.
pub(crate) fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("cannot learn which processors may be used")?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
    if cpus.is_empty() {
        bail!("no processor may be used");
    }
    Ok(cpus)
}

/// Pins the calling thread to one processor.
///
/// # Errors
/// When the processor is not this process's to use.
pub(crate) fn pin_to(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("cannot pin a thread to CPU {cpu}"))
}
