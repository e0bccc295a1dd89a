//! Memory: how much there is, cgroups, overcommit, huge pages, the map-count limit.

use std::fs;
use std::path::Path;

use super::Finding;
use crate::terminal;

/// The kernel's usual limit of mappings for one process.
const USUAL_MAP_COUNT: u64 = 65_530;

/// Rows about memory.
pub fn examine() -> Vec<Finding> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    vec![
        available(),
        cgroup(&mounts),
        overcommit(&read("/proc/sys/vm/overcommit_memory")),
        huge_pages(),
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

/// The hierarchy that has the memory controller: its version and its directory.
fn memory_hierarchy(mounts: &str) -> Option<(u8, String)> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, at, kind, options) =
            (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        match kind {
            "cgroup" if options.split(',').any(|o| o == "memory") => Some((1, at.to_string())),
            "cgroup2" => {
                let controllers = fs::read_to_string(format!("{at}/cgroup.controllers")).ok()?;
                let found = controllers.split_whitespace().any(|c| c == "memory");
                found.then(|| (2, at.to_string()))
            }
            _ => None,
        }
    })
}

fn cgroup(mounts: &str) -> Finding {
    let what = "memory cgroup";
    let Some((version, at)) = memory_hierarchy(mounts) else {
        return Finding::warn(
            what,
            "no memory controller: programs cannot be compared with the kernel's own swap",
            "boot with cgroup_enable=memory, or mount the cgroup file system",
        );
    };
    if rustix::fs::access(Path::new(&at), rustix::fs::Access::WRITE_OK).is_ok() {
        return Finding::ok(what, format!("version {version} at {at}"));
    }
    Finding::warn(
        what,
        format!("version {version} at {at}, but this user may not make groups there"),
        "run as root (only the comparison with the kernel's own swap needs it)",
    )
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

fn huge_pages() -> Finding {
    let reserved = read("/proc/sys/vm/nr_hugepages");
    let transparent = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let chosen = transparent
        .split_whitespace()
        .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
        .unwrap_or("not there");
    let reserved = if reserved.is_empty() { "none".to_string() } else { reserved };
    Finding::ok("huge pages", format!("{reserved} reserved; transparent: {chosen}"))
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
    fn the_old_hierarchy_is_found_by_its_controller() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,nosuid,memory 0 0\n";
        assert_eq!(memory_hierarchy(mounts), Some((1, "/sys/fs/cgroup/memory".to_string())));
        assert_eq!(memory_hierarchy("tmpfs /tmp tmpfs rw 0 0\n"), None);
    }

    #[test]
    fn strict_overcommit_is_a_warning() {
        assert_eq!(overcommit("0").state, State::Ok);
        assert_eq!(overcommit("2").state, State::Warn);
        assert_eq!(map_count("1024").state, State::Warn);
        assert_eq!(map_count("65530").state, State::Ok);
    }
}
