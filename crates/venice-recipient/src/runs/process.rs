//! The identity of a process, in spite of reused process ids.

use std::fs;

use serde::{Deserialize, Serialize};

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
        Some(Identity { pid, start_ticks: stat(pid)?.start_ticks })
    }

    /// True if any of it is left. A process that is ending has no command line any more, but its
    /// descriptors may still be open.
    pub fn exists(self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.start_ticks == self.start_ticks && !stat.is_dead())
    }
}

/// Returns the state of a process, a letter (`proc_pid_stat(5)`); `None`: it is gone.
pub fn state_of(pid: u32) -> Option<char> {
    Some(stat(pid)?.state)
}

/// Returns the processor time of a process and of the children that it has waited for, in seconds;
/// 0 if there is no such process.
pub fn cpu_s(pid: u32) -> f64 {
    stat(pid).map_or(0.0, |stat| seconds(stat.cpu_ticks + stat.children_ticks))
}

/// Returns the processor time of the children that this process has waited for, in seconds.
pub fn cpu_s_of_children() -> f64 {
    stat(std::process::id()).map_or(0.0, |stat| seconds(stat.children_ticks))
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

struct Stat {
    state: char,
    /// User and system time of its own, in clock ticks.
    cpu_ticks: u64,
    /// The same of the children that it has waited for.
    children_ticks: u64,
    threads: u64,
    start_ticks: u64,
}

impl Stat {
    /// True if only its entry in the table is left. While other threads of a killed process are
    /// still ending, its sockets are open.
    fn is_dead(&self) -> bool {
        matches!(self.state, 'X' | 'x') || (self.state == 'Z' && self.threads <= 1)
    }
}

fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses a stat line. The name in parentheses may itself contain blanks and parentheses, so fields
/// count from the last one.
fn parse_stat(text: &str) -> Option<Stat> {
    let mut fields = text[text.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let rest = fields.map(|field| field.parse::<u64>().unwrap_or(0)).collect::<Vec<_>>();
    // proc_pid_stat(5), from the parent's id on: utime, stime, cutime, cstime.
    let &[user, system, of_children_user, of_children_system] = rest.get(10..14)? else {
        return None;
    };
    Some(Stat {
        state,
        cpu_ticks: user + system,
        children_ticks: of_children_user + of_children_system,
        threads: *rest.get(16)?,
        start_ticks: *rest.get(18)?,
    })
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

    #[test]
    fn stat_lines_with_odd_names_parse() {
        let line = "42 (a) b (c) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2 3\n";
        let stat = parse_stat(line).unwrap();
        assert_eq!((stat.state, stat.threads, stat.start_ticks), ('S', 1, 98765));
        assert_eq!((stat.cpu_ticks, stat.children_ticks), (11, 15));
        assert!(parse_stat("").is_none());
    }
}
