//! A file as a block device.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::child::run_tool;

/// A loop device on a file. Dropping it detaches the device.
#[derive(Debug)]
pub(super) struct LoopDevice {
    pub(super) path: PathBuf,
}

impl LoopDevice {
    /// Attaches a file. With direct I/O the file's pages are not cached a second time.
    ///
    /// # Errors
    /// Without root, or when no loop device is available.
    pub(super) fn attach(file: &Path, direct_io: bool) -> Result<Self> {
        let file = file.to_str().context("a loop device's file needs a path in UTF-8")?;
        let direct_io = if direct_io { "--direct-io=on" } else { "--direct-io=off" };
        let out = run_tool("losetup", &["--find", "--show", direct_io, file])?;
        Ok(Self { path: out.trim().into() })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = run_tool("losetup", &["--detach", &self.path.to_string_lossy()]) {
            eprintln!("venice: {error:#}");
        }
    }
}
