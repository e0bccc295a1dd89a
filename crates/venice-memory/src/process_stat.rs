//! A process as `/proc/PID/stat` describes it (`proc_pid_stat(5)`).

/// The fields in use. Times are in clock ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// Its state, a letter: `Z` for a zombie.
    pub state: char,
    /// The process that waits for its end.
    pub parent: u32,
    /// Its process group; 0: the kernel's own threads.
    pub group: u32,
    /// User and system time of its own.
    pub cpu_ticks: u64,
    /// The same of the children that it has waited for.
    pub children_ticks: u64,
    /// Its threads.
    pub threads: u64,
    /// Its start, since boot.
    pub start_ticks: u64,
    /// Its wait status, as a zombie; 0 for callers that may not trace it.
    pub exit_code: i32,
}

impl ProcessStat {
    /// Reads that of a process; `None` if there is none.
    pub fn of(pid: u32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses the line. The name in parentheses may itself contain blanks and parentheses, so fields
    /// count from the last one.
    pub fn parse(line: &str) -> Option<Self> {
        let (_, rest) = line.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            state: fields.first()?.chars().next()?,
            parent: number(1).and_then(|parent| u32::try_from(parent).ok())?,
            // Of a process that is gone but for its entry it is -1.
            group: number(2).and_then(|group| u32::try_from(group).ok()).unwrap_or(0),
            cpu_ticks: number(11)? + number(12)?,
            children_ticks: number(13)? + number(14)?,
            threads: number(17)?,
            start_ticks: number(19)?,
            exit_code: fields.get(49)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_follow_a_hostile_name() {
        let times = "250 40 9 8 20 0 3 0 777";
        let rest = format!("S 1 7 7 0 -1 4194304 10 0 0 0 {times} {} 139", "0 ".repeat(29));
        let found = ProcessStat::parse(&format!("7 (a) 1 2 b) {rest}")).unwrap();
        let wanted = ProcessStat {
            state: 'S',
            parent: 1,
            group: 7,
            cpu_ticks: 290,
            children_ticks: 17,
            threads: 3,
            start_ticks: 777,
            exit_code: 139,
        };
        assert_eq!(found, wanted);
        assert_eq!(ProcessStat::parse("7 (x) S 1"), None);
        assert_eq!(ProcessStat::parse(""), None);
    }

    #[test]
    fn own_process_is_read() {
        let own = ProcessStat::of(std::process::id()).unwrap();
        assert!(
            own.threads > 0 && own.start_ticks > 0 && matches!(own.state, 'R' | 'S'),
            "{own:?}"
        );
    }
}
