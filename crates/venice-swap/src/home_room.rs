//! Whether what is on a swap device has room in memory, before it is brought home.
//!
//! swapoff(2) does not ask: it fills memory until the out-of-memory killer comes, and in a memory
//! cgroup at its limit it makes the kernel kill the group's programs.

use std::fs;
use std::path::Path;

use crate::SwapError;
use crate::cgroup::Hierarchy;
use crate::swap_area::used_bytes;

/// Memory that must stay free for everybody else.
const SPARE_BYTES: u64 = 64 << 20;

/// # Errors
/// [`SwapError::NoRoom`] or [`SwapError::GroupFull`].
pub(crate) fn check(device: &Path) -> Result<(), SwapError> {
    let used_bytes = used_bytes(device).unwrap_or(0);
    if used_bytes == 0 {
        return Ok(());
    }
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available_bytes = field_kib(&memory, "MemAvailable:") * 1024;
    if used_bytes.saturating_add(SPARE_BYTES) > available_bytes {
        return Err(SwapError::NoRoom { used_bytes, available_bytes });
    }
    let swap_free_bytes = field_kib(&memory, "SwapFree:") * 1024;
    let own_free_bytes = size_bytes(device).saturating_sub(used_bytes);
    // A group may also go to another device.
    let elsewhere_bytes = swap_free_bytes.saturating_sub(own_free_bytes);
    match Hierarchy::find() {
        Some(hierarchy) => check_groups(&hierarchy, hierarchy.mount(), elsewhere_bytes, 0),
        None => Ok(()),
    }
}

/// Groups nest; deeper than this nobody nests them.
const DEEPEST: u32 = 16;

fn check_groups(
    hierarchy: &Hierarchy,
    folder: &Path,
    elsewhere_bytes: u64,
    depth: u32,
) -> Result<(), SwapError> {
    if let Some(Charge { swapped_bytes, room_bytes }) = charge(hierarchy, folder)
        && swapped_bytes > room_bytes.saturating_add(elsewhere_bytes)
    {
        let group = folder.to_owned();
        return Err(SwapError::GroupFull { group, swapped_bytes, room_bytes });
    }
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries.flatten() {
        if depth < DEEPEST && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            check_groups(hierarchy, &entry.path(), elsewhere_bytes, depth + 1)?;
        }
    }
    Ok(())
}

/// What a group has on swap, and what more it may keep resident.
struct Charge {
    swapped_bytes: u64,
    room_bytes: u64,
}

/// `None` for a group without a limit.
fn charge(hierarchy: &Hierarchy, folder: &Path) -> Option<Charge> {
    let number = |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok();
    match hierarchy {
        Hierarchy::V1(_) => {
            let limit: u64 = number("memory.limit_in_bytes")?;
            let resident: u64 = number("memory.usage_in_bytes")?;
            let both: u64 = number("memory.memsw.usage_in_bytes")?;
            let room_bytes = limit.saturating_sub(resident) + files(folder, "total_");
            Some(Charge { swapped_bytes: both.saturating_sub(resident), room_bytes })
        }
        Hierarchy::V2(_) => {
            let limit: u64 = number("memory.max")?;
            let resident: u64 = number("memory.current")?;
            let swapped_bytes = number("memory.swap.current")?;
            let room_bytes = limit.saturating_sub(resident) + files(folder, "");
            Some(Charge { swapped_bytes, room_bytes })
        }
    }
}

/// Cached files of a group: they make room when memory is wanted.
fn files(folder: &Path, prefix: &str) -> u64 {
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let count = |name: &str| {
        let name = format!("{prefix}{name} ");
        stat.lines().find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok()).unwrap_or(0)
    };
    count("active_file") + count("inactive_file")
}

fn size_bytes(device: &Path) -> u64 {
    crate::swap_area::size_bytes(device).unwrap_or(0)
}

fn field_kib(memory: &str, field: &str) -> u64 {
    let line = memory.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|line| line.trim().split(' ').next()?.parse().ok()).unwrap_or(0)
}
