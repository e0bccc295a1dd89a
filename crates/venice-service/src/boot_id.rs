//! Identity of the running kernel.

use std::fs;

/// Returns the boot id of this machine, the same for all its containers; empty if the kernel does
/// not show it. A recipient that finds it in a ring endpoint knows that the path is on its machine.
pub fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}
