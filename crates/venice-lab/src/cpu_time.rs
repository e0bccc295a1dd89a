//! Processor time used by processes.

use rustix::time::{ClockId, clock_gettime};
use venice_memory::process_stat::ProcessStat;

/// Returns the clock ticks a second in `/proc`.
fn ticks_per_s() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

/// Returns the processor seconds of all `pids` together, with their threads and the kernel's work
/// for them. A process that has ended counts nothing.
pub(crate) fn of_processes_s(pids: &[u32]) -> f64 {
    let ticks = pids.iter().filter_map(|pid| Some(ProcessStat::of(*pid)?.cpu_ticks));
    ticks.sum::<u64>() as f64 / ticks_per_s()
}

/// Returns the processor seconds of this process: all its threads, and the kernel's work for them.
pub(crate) fn of_this_process_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
