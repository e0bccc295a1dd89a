//! The reason why a daemon on this machine does not answer, as far as the kernel shows it.

use std::fs;

/// The reason why a listening process does not answer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::client) enum Standstill {
    /// It is stopped, with this process id.
    Stopped(i32),
    /// It has this many file descriptors, and may have no more.
    NoDescriptors(usize),
    /// The kernel shows no reason, or not to this user.
    Unknown,
}

impl Standstill {
    /// Looks at the process.
    pub(in crate::client) fn of(pid: Option<i32>) -> Self {
        let Some(pid) = pid else { return Standstill::Unknown };
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
        if read("stat").is_some_and(|stat| is_stopped(&stat)) {
            return Standstill::Stopped(pid);
        }
        let limit = read("limits").and_then(|limits| descriptor_limit(&limits));
        let open = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        match limit {
            Some(limit) if open >= limit => Standstill::NoDescriptors(open),
            Some(_) | None => Standstill::Unknown,
        }
    }

    /// Names the reason, and a remedy.
    pub(super) fn advice(&self, who: &str) -> String {
        match self {
            Standstill::Stopped(pid) => {
                format!("{who} is stopped: resume it (kill -CONT {pid})")
            }
            Standstill::NoDescriptors(count) => format!(
                "{who} has used up its {count} file descriptors: raise its limit (LimitNOFILE, \
                 ulimit -n) and restart it"
            ),
            Standstill::Unknown => {
                format!("{who} is overloaded or hangs: its log may say why; else restart it")
            }
        }
    }
}

/// Parses the state in /proc/PID/stat; it follows the name, which may have any character.
fn is_stopped(stat: &str) -> bool {
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}

/// Parses the soft limit on open files in /proc/PID/limits; `None` without a limit.
fn descriptor_limit(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_shows_the_standstill() {
        assert!(is_stopped("7 (venice) x) T 1 7"));
        assert!(!is_stopped("7 (T) S 1 7"));
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            600                  4096                 files\n";
        assert_eq!(descriptor_limit(limits), Some(600));
        assert_eq!(descriptor_limit("Max open files   unlimited   unlimited   files\n"), None);
        let here = i32::try_from(std::process::id()).ok();
        assert_eq!(Standstill::of(here), Standstill::Unknown);
        let said = Standstill::NoDescriptors(600).advice("the Monitor Node");
        assert!(said.contains("600 file descriptors") && !said.contains("kill"), "{said}");
    }
}
