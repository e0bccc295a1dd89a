//! Processor time used by processes.

/// Returns the clock ticks a second in `/proc`.
fn ticks_per_s() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

/// Returns the processor seconds of all `pids` together, with their threads and the kernel's work
/// for them. A process that has ended counts nothing.
pub(crate) fn of_processes_s(pids: &[u32]) -> f64 {
    pids.iter().filter_map(|pid| of_process_s(*pid)).sum()
}

fn of_process_s(pid: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(parse_ticks(&stat)? as f64 / ticks_per_s())
}

/// Parses user and system ticks; the program's name, which may hold anything, ends at the last `)`.
fn parse_ticks(stat: &str) -> Option<u64> {
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let user: u64 = fields.get(11)?.parse().ok()?;
    let system: u64 = fields.get(12)?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_follow_a_hostile_name() {
        let stat = "7 (a) 1 2 b) S 1 7 7 0 -1 4194304 10 0 0 0 250 40 9 9 20 0 1 0";
        assert_eq!(parse_ticks(stat), Some(290));
        assert_eq!(parse_ticks("7 (x) S 1"), None);
        assert_eq!(parse_ticks(""), None);
    }
}
