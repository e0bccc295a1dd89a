//! Memory: how much there is, overcommit, huge pages, the map-count limit.

use std::fs;

use venice_memory::paged::huge_pages::{NoHugePages, check_available};

use super::Finding;
use crate::terminal;

/// The kernel's usual limit of mappings for one process.
const USUAL_MAP_COUNT: u64 = 65_530;

/// Rows about memory.
pub fn examine() -> Vec<Finding> {
    vec![
        available(),
        overcommit(&read("/proc/sys/vm/overcommit_memory")),
        huge_pages(check_available()),
        map_count(&read("/proc/sys/vm/max_map_count")),
    ]
}

/// `MemAvailable` of this machine in bytes.
pub fn available_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    meminfo(&text, "MemAvailable:")
}

fn meminfo(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = value.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1024)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

fn available() -> Finding {
    match available_bytes() {
        Some(bytes) => Finding::ok("memory", format!("{} available", terminal::bytes(bytes))),
        None => Finding::warn("memory", "/proc/meminfo cannot be read", "mount /proc"),
    }
}

fn overcommit(policy: &str) -> Finding {
    match policy {
        "0" => Finding::ok("overcommit", "0: heuristic"),
        "1" => Finding::ok("overcommit", "1: always"),
        "2" => Finding::warn(
            "overcommit",
            "2: strict: borrowed memory counts as if it were this machine's",
            "`sysctl -w vm.overcommit_memory=0`, or raise vm.overcommit_ratio",
        ),
        _ => Finding::warn("overcommit", "unknown policy", "`sysctl -w vm.overcommit_memory=0`"),
    }
}

/// What `venice run --page-size 2m` needs.
fn huge_pages(to_be_had: Result<(), NoHugePages>) -> Finding {
    let reserved = read("/proc/sys/vm/nr_hugepages");
    let reserved = if reserved.is_empty() { "none".to_string() } else { reserved };
    match to_be_had {
        Ok(()) => Finding::ok(
            "huge pages",
            format!("transparent ones of 2 MiB for --page-size 2m; {reserved} reserved"),
        ),
        Err(none) => {
            let mend = match &none {
                NoHugePages::NotBuilt => {
                    "boot a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y".to_string()
                }
                NoHugePages::Off { file } => format!("`echo madvise > {file}` as root"),
                NoHugePages::TablesStay => {
                    "boot Linux 6.14 or newer with CONFIG_PT_RECLAIM=y".to_string()
                }
                NoHugePages::Untried(_) => "see the rows on the kernel".to_string(),
            };
            Finding::warn("huge pages", format!("no --page-size 2m: {none}"), mend)
        }
    }
}

fn map_count(limit: &str) -> Finding {
    let mend = "`sysctl -w vm.max_map_count=262144`";
    match limit.parse::<u64>() {
        Ok(n) if n >= USUAL_MAP_COUNT => {
            Finding::ok("map-count limit", format!("vm.max_map_count={n}"))
        }
        Ok(n) => Finding::warn(
            "map-count limit",
            format!("vm.max_map_count={n}: programs with many regions run into it"),
            mend,
        ),
        Err(_) => Finding::warn("map-count limit", "vm.max_map_count cannot be read", mend),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn meminfo_lines_are_in_kib() {
        let text = "MemTotal:       100 kB\nMemAvailable:    64 kB\n";
        assert_eq!(meminfo(text, "MemAvailable:"), Some(65_536));
        assert_eq!(meminfo(text, "SwapFree:"), None);
    }

    #[test]
    fn strict_overcommit_is_a_warning() {
        assert_eq!(overcommit("0").state, State::Ok);
        assert_eq!(overcommit("2").state, State::Warn);
        assert_eq!(map_count("1024").state, State::Warn);
        assert_eq!(map_count("65530").state, State::Ok);
    }
}
