//! Memory: available amount, overcommit, huge pages, the map-count limit.

use std::fs;

use venice_memory::paged::huge_pages::{NoHugePages, check_available};

use super::Finding;
use venice_cli::terminal;

/// The kernel's default limit of mappings per process.
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

/// Returns `MemAvailable` of this machine in bytes.
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
        None => Finding::warn("memory", "cannot read /proc/meminfo", "mount /proc"),
    }
}

fn overcommit(policy: &str) -> Finding {
    match policy {
        "0" => Finding::ok("overcommit", "0: heuristic"),
        "1" => Finding::ok("overcommit", "1: always"),
        "2" => Finding::warn(
            "overcommit",
            "2: strict: borrowed memory counts as local memory",
            "`sysctl -w vm.overcommit_memory=0`, or raise vm.overcommit_ratio",
        ),
        _ => Finding::warn("overcommit", "unknown policy", "`sysctl -w vm.overcommit_memory=0`"),
    }
}

/// Huge pages of 2 MiB, for `venice run --page-size 2m`.
fn huge_pages(to_be_had: Result<(), NoHugePages>) -> Finding {
    let reserved = read("/proc/sys/vm/nr_hugepages");
    let reserved = if reserved.is_empty() { "none".to_string() } else { reserved };
    match to_be_had {
        Ok(()) => Finding::ok(
            "huge pages",
            format!("transparent huge pages of 2 MiB for --page-size 2m; {reserved} reserved"),
        ),
        Err(none) => {
            let remedy = match &none {
                NoHugePages::NotBuilt => {
                    "boot a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y".to_string()
                }
                NoHugePages::Off { file } => format!("`echo madvise > {file}` as root"),
                NoHugePages::TablesStay => {
                    "boot Linux 6.14 or newer with CONFIG_PT_RECLAIM=y".to_string()
                }
                NoHugePages::Untried(_) => {
                    "mend what else is missing here, then try again".to_string()
                }
            };
            Finding::warn("huge pages", format!("no --page-size 2m: {none}"), remedy)
        }
    }
}

fn map_count(limit: &str) -> Finding {
    let remedy = "`sysctl -w vm.max_map_count=262144`";
    match limit.parse::<u64>() {
        Ok(n) if n >= USUAL_MAP_COUNT => {
            Finding::ok("map-count limit", format!("vm.max_map_count={n}"))
        }
        Ok(n) => Finding::warn(
            "map-count limit",
            format!("vm.max_map_count={n}: too low for programs with many regions"),
            remedy,
        ),
        Err(_) => Finding::warn("map-count limit", "cannot read vm.max_map_count", remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn meminfo_is_parsed_as_kib() {
        let text = "MemTotal:       100 kB\nMemAvailable:    64 kB\n";
        assert_eq!(meminfo(text, "MemAvailable:"), Some(65_536));
        assert_eq!(meminfo(text, "SwapFree:"), None);
    }

    #[test]
    fn strict_overcommit_warns() {
        assert_eq!(overcommit("0").state, State::Ok);
        assert_eq!(overcommit("2").state, State::Warn);
        assert_eq!(map_count("1024").state, State::Warn);
        assert_eq!(map_count("65530").state, State::Ok);
    }
}
