//! Readers of `/proc` for a process and its descendants.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use venice_memory::process_stat::ProcessStat;

/// Returns the resident anonymous memory of `pid`, in bytes; 0 for a process that is gone.
pub fn rss_anon_bytes(pid: u32) -> u64 {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return 0 };
    status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .and_then(|value| value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024)
}

/// Returns the anonymous memory of `pid` in bytes, each page divided by the processes that map it.
pub fn pss_anon_bytes(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    rollup
        .lines()
        .find_map(|line| line.strip_prefix("Pss_Anon:"))
        .and_then(|value| value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024)
}

/// Returns the bytes of donors' slabs that `pid` has mapped, used or not. Needs root.
pub fn mapped_slab_bytes(pid: u32) -> u64 {
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/map_files")) else { return 0 };
    let slabs = files.flatten().filter(|file| {
        let name = fs::read_link(file.path());
        name.is_ok_and(|name| name.to_string_lossy().starts_with("/memfd:venice-slab"))
    });
    let sizes = slabs.filter_map(|slab| fs::metadata(slab.path()).ok());
    let sizes: BTreeMap<u64, u64> = sizes.map(|size| (size.ino(), size.blocks() * 512)).collect();
    sizes.values().sum()
}

/// Returns the children of `pid`, their children, and so on, without `pid` itself.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut open = vec![pid];
    while let Some(parent) = open.pop() {
        for child in children(parent) {
            found.push(child);
            open.push(child);
        }
    }
    found
}

fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| {
            list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

/// True while `pid` runs; a zombie counts as gone.
pub fn is_alive(pid: u32) -> bool {
    ProcessStat::of(pid).is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'))
}

/// Describes where each thread of `pid` waits, for the message about a hang.
pub fn threads_report(pid: u32) -> String {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return format!("process {pid} is gone\n");
    };
    let mut report = format!("process {pid}, RssAnon {} KiB\n", rss_anon_bytes(pid) / 1024);
    for thread in threads.flatten() {
        let read = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        report.push_str(&format!(
            "  {} {} state {} wchan {} syscall {}\n",
            thread.file_name().to_string_lossy(),
            read("comm").trim(),
            read("stat").rsplit_once(") ").map_or("?".into(), |(_, rest)| rest[..1].to_string()),
            read("wchan").trim(),
            read("syscall").trim(),
        ));
    }
    report
}
