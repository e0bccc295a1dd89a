//! Which processors there are, and staying on one.

use anyhow::{Context, Result, bail};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors this process may use, at least one.
///
/// # Errors
/// When the kernel does not tell.
pub fn allowed() -> Result<Vec<usize>> {
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
pub fn pin_to(cpu: usize) -> Result<()> {
    stay_on(&[cpu])
}

/// Keeps the calling thread, and what it starts from then on, to some processors.
///
/// # Errors
/// When the processors are not this process's to use.
pub fn stay_on(cpus: &[usize]) -> Result<()> {
    sched_setaffinity(None, &set_of(cpus))
        .with_context(|| format!("cannot keep a thread to CPUs {cpus:?}"))
}

/// Keeps a process with all the threads that it has to some processors; what those start later stays
/// there too. Threads that end meanwhile do not count.
///
/// # Errors
/// When the processors are not there to be used, or the process is not ours to place.
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
