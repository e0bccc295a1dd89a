//! The processors of this process, and pinning to them.

use anyhow::{Context, Result, bail};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns the processors that this process may use, at least one.
///
/// # Errors
/// When the kernel does not report them.
pub fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("cannot read the allowed processors")?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
    if cpus.is_empty() {
        bail!("no processor may be used");
    }
    Ok(cpus)
}

/// Pins the calling thread to one processor.
///
/// # Errors
/// When this process may not use the processor.
pub fn pin_to(cpu: usize) -> Result<()> {
    stay_on(&[cpu])
}

/// Confines the calling thread, and what it starts from then on, to some processors.
///
/// # Errors
/// When this process may not use them.
pub fn stay_on(cpus: &[usize]) -> Result<()> {
    sched_setaffinity(None, &set_of(cpus))
        .with_context(|| format!("cannot keep a thread to CPUs {cpus:?}"))
}

/// Confines a process with all its threads to some processors; threads that those start later are
/// confined too. Threads that end meanwhile do not count.
///
/// # Errors
/// When the processors are unavailable, or the process belongs to another user.
pub fn confine(pid: u32, cpus: &[usize]) -> Result<()> {
    let set = set_of(cpus);
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Ok(()) };
    for thread in threads.flatten() {
        let number = thread.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(number) = number.and_then(Pid::from_raw) else { continue };
        match sched_setaffinity(Some(number), &set) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot keep {pid} to CPUs {cpus:?}"));
            }
        }
    }
    Ok(())
}

fn set_of(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    set
}
