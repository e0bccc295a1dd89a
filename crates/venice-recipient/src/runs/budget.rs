//! Checks of local budgets.

use std::io;

use venice_wire::ByteSize;

/// Least local memory of a program: below it the pager's own needs exceed the program's.
pub const LEAST_LOCAL_BYTES: u64 = 4 << 20;

/// Returns half of this machine's available memory.
///
/// # Errors
/// If /proc cannot be read.
pub fn by_default() -> io::Result<u64> {
    Ok(meminfo("MemAvailable:")? / 2)
}

/// Checks a budget against the machine, and returns the reason if it is invalid.
///
/// # Errors
/// If /proc cannot be read.
pub fn check(local_bytes: u64) -> io::Result<Result<(), String>> {
    let total_bytes = meminfo("MemTotal:")?;
    let asked = ByteSize(local_bytes);
    Ok(if local_bytes > total_bytes {
        let has = ByteSize(total_bytes);
        Err(format!("--local {asked} is more than this machine has ({has}): ask for less"))
    } else if local_bytes < LEAST_LOCAL_BYTES {
        let least = ByteSize(LEAST_LOCAL_BYTES);
        Err(format!("--local {asked} is too little: ask for {least} at least"))
    } else {
        Ok(())
    })
}

/// Returns a field of /proc/meminfo, in bytes; 0 if it is missing.
fn meminfo(field: &str) -> io::Result<u64> {
    let unread = |error: io::Error| io::Error::new(error.kind(), format!("/proc/meminfo: {error}"));
    let text = std::fs::read_to_string("/proc/meminfo").map_err(unread)?;
    let line = text.lines().find(|line| line.starts_with(field));
    let word = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(word.and_then(|word| word.parse::<u64>().ok()).unwrap_or(0) * 1024)
}
