//! The identity of a process, in spite of reused process ids.

use serde::{Deserialize, Serialize};
use venice_memory::process_stat::ProcessStat;

/// A unique process: ids are reused, start times within one boot are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its process id.
    pub pid: u32,
    /// Its start, in clock ticks since boot (field 22 of /proc/PID/stat).
    pub start_ticks: u64,
}

impl Identity {
    /// Returns the process that has the id `pid` now.
    pub fn of(pid: u32) -> Option<Identity> {
        Some(Identity { pid, start_ticks: ProcessStat::of(pid)?.start_ticks })
    }

    /// True if any of it is left. A process that is ending has no command line any more, but its
    /// descriptors may still be open.
    pub fn exists(self) -> bool {
        ProcessStat::of(self.pid)
            .is_some_and(|stat| stat.start_ticks == self.start_ticks && !is_dead(&stat))
    }
}

/// Returns the state of a process, a letter (`proc_pid_stat(5)`); `None`: it is gone.
pub fn state_of(pid: u32) -> Option<char> {
    Some(ProcessStat::of(pid)?.state)
}

/// Returns the processor time of a process and of the children that it has waited for, in seconds;
/// 0 if there is no such process.
pub fn cpu_s(pid: u32) -> f64 {
    ProcessStat::of(pid).map_or(0.0, |stat| seconds(stat.cpu_ticks + stat.children_ticks))
}

/// Returns the processor time of the children that this process has waited for, in seconds.
pub fn cpu_s_of_children() -> f64 {
    ProcessStat::of(std::process::id()).map_or(0.0, |stat| seconds(stat.children_ticks))
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// True if only its entry in the table is left. While other threads of a killed process are still
/// ending, its sockets are open.
fn is_dead(stat: &ProcessStat) -> bool {
    matches!(stat.state, 'X' | 'x') || (stat.state == 'Z' && stat.threads <= 1)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    #[test]
    fn stopped_process_shows_state() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
        while state_of(child.id()) != Some('T') {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(state_of(child.id()), None);
    }
}
