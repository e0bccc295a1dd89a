//! Check that the contents of a swap device fit into memory before swap-off.
//!
//! swapoff(2) does not check: it fills memory until the out-of-memory killer comes, and in a memory
//! cgroup at its limit it makes the kernel kill the group's programs.

use std::fs;
use std::path::Path;

use crate::SwapError;
use crate::cgroup::Hierarchy;
use crate::swap_area::used_bytes;

/// Memory that must stay free for other uses.
const SPARE_BYTES: u64 = 64 << 20;

/// Checks the room for swap-off of `device`.
///
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
    // A group's pages may also go to another device.
    let other_free_bytes = swap_free_bytes.saturating_sub(own_free_bytes);
    let swap_off = SwapOff { used_bytes, other_free_bytes };
    match Hierarchy::find() {
        Some(hierarchy) => check_groups(&hierarchy, hierarchy.mount(), swap_off, 0),
        None => Ok(()),
    }
}

/// The amount to swap in, and the room for it outside memory.
#[derive(Clone, Copy, Debug)]
struct SwapOff {
    /// Bytes in use on the device.
    used_bytes: u64,
    /// Bytes free on the machine's other devices.
    other_free_bytes: u64,
}

impl SwapOff {
    /// Returns the most a group may have on the device. The kernel does not report where its
    /// swapped pages are; those on other devices stay there.
    fn coming_bytes(self, group: &Charge) -> u64 {
        group.swapped_bytes.min(self.used_bytes)
    }

    fn fits(self, group: &Charge) -> bool {
        self.coming_bytes(group) <= group.room_bytes.saturating_add(self.other_free_bytes)
    }
}

/// Maximum nesting of groups examined; deeper nesting does not occur in practice.
const DEEPEST: u32 = 16;

fn check_groups(
    hierarchy: &Hierarchy,
    folder: &Path,
    swap_off: SwapOff,
    depth: u32,
) -> Result<(), SwapError> {
    if let Some(charge) = charge(hierarchy, folder)
        && !swap_off.fits(&charge)
    {
        let (group, room_bytes) = (folder.to_owned(), charge.room_bytes);
        let coming_bytes = swap_off.coming_bytes(&charge);
        return Err(SwapError::GroupFull { group, coming_bytes, room_bytes });
    }
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries.flatten() {
        if depth < DEEPEST && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            check_groups(hierarchy, &entry.path(), swap_off, depth + 1)?;
        }
    }
    Ok(())
}

/// A group's bytes on swap, on all devices together, and the bytes it may additionally keep
/// resident.
struct Charge {
    swapped_bytes: u64,
    room_bytes: u64,
}

/// Returns `None` for a group without a limit.
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

/// Returns the cached files of a group: the kernel drops them when memory is short.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_on_other_devices_stay() {
        // A device that holds 4 MiB, and no other with room left.
        let swap_off = SwapOff { used_bytes: 4 << 20, other_free_bytes: 0 };
        let fits = |swapped_mib: u64, room_mib: u64| {
            swap_off.fits(&Charge { swapped_bytes: swapped_mib << 20, room_bytes: room_mib << 20 })
        };
        // 100 MiB on swap, of which 4 at most are on the device.
        assert!(fits(100, 4) && !fits(100, 3));
        assert!(fits(2, 2) && !fits(2, 1));
        // Another device takes what the group may not keep.
        let swap_off = SwapOff { other_free_bytes: 3 << 20, ..swap_off };
        assert!(swap_off.fits(&Charge { swapped_bytes: 100 << 20, room_bytes: 1 << 20 }));
        assert!(!swap_off.fits(&Charge { swapped_bytes: 100 << 20, room_bytes: 0 }));
    }
}
