//! The kernel's switch for rings, which is one for the whole machine.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

use crate::SwapError;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Offers rings to new connections while this lives; the old setting is restored afterwards. A
/// connection keeps its negotiated mode.
#[derive(Debug)]
pub(crate) struct SwitchedOn {
    /// Locked if it must be restored: servers that start side by side would take each other's
    /// setting for the machine's.
    to_restore: Option<File>,
}

impl SwitchedOn {
    /// Checks that the switch is on, or can be.
    pub(crate) fn check() -> Result<(), SwapError> {
        if !Path::new(SWITCH).exists() {
            return Err(SwapError::no_fuse_rings());
        }
        if is_on()? || open().is_ok() { Ok(()) } else { Err(SwapError::fuse_rings_off()) }
    }

    /// Switches it on if it is off.
    pub(crate) fn begin() -> Result<Self, SwapError> {
        Self::check()?;
        let Ok(mut file) = open() else { return Ok(Self { to_restore: None }) };
        file.lock().map_err(SwapError::file("lock", SWITCH))?;
        if is_on()? {
            return Ok(Self { to_restore: None });
        }
        file.write_all(b"Y").map_err(SwapError::file("write", SWITCH))?;
        Ok(Self { to_restore: Some(file) })
    }
}

impl Drop for SwitchedOn {
    fn drop(&mut self) {
        if let Some(file) = &mut self.to_restore {
            let _ = file.write_all(b"N");
        }
    }
}

fn open() -> std::io::Result<File> {
    OpenOptions::new().write(true).open(SWITCH)
}

fn is_on() -> Result<bool, SwapError> {
    let text = fs::read_to_string(SWITCH).map_err(SwapError::file("read", SWITCH))?;
    Ok(text.trim() == "Y")
}

/// Returns the number of processors the kernel may ever have, absent ones included: each has a
/// queue.
pub(super) fn possible_processors() -> Result<usize, SwapError> {
    let text = fs::read_to_string(POSSIBLE).map_err(SwapError::file("read", POSSIBLE))?;
    let malformed = || SwapError::file("read", POSSIBLE)(std::io::ErrorKind::InvalidData.into());
    count(text.trim()).ok_or_else(malformed)
}

/// Counts the processors of a list like `0-3,6`.
fn count(list: &str) -> Option<usize> {
    let each = list.split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(last.checked_sub(first)? + 1)
    });
    each.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn possible_processors_are_counted() {
        assert_eq!((count("0"), count("0-1"), count("0-3,6,8-9")), (Some(1), Some(2), Some(7)));
        assert_eq!((count(""), count("3-1"), count("0-x")), (None, None, None));
        assert!(possible_processors().unwrap() > 0);
    }
}
