//! A swap area in use, and its removal.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::child::run_tool;

/// Swap priority above every other area of a machine, so that this one is filled first. The
/// kernel's greatest priority is 32767.
const PRIORITY: &str = "32000";
/// Label that marks the benchmarks' devices.
pub(super) const LABEL: &str = "venice-bench";

/// A swap area in use. Dropping it switches it off, which reads back all pages still in use; end
/// the processes that use it first.
#[derive(Debug)]
pub struct SwapArea {
    path: PathBuf,
}

impl SwapArea {
    /// Formats `path` (a file or a block device) and starts swapping to it.
    ///
    /// # Errors
    /// When `mkswap` or `swapon` refuse it, for example a file on a file system that cannot hold
    /// swap; the message quotes them.
    pub fn switch_on(path: &Path) -> Result<Self> {
        let text = path.to_str().context("a swap area needs a path in UTF-8")?;
        run_tool("mkswap", &["--label", LABEL, text])?;
        run_tool("swapon", &["--priority", PRIORITY, text])?;
        Ok(Self { path: path.to_owned() })
    }
}

impl Drop for SwapArea {
    fn drop(&mut self) {
        let path = self.path.to_string_lossy();
        if let Err(error) = run_tool("swapoff", &[&path]) {
            eprintln!("venice: {error:#}; switch it off by hand: swapoff {path}");
        }
    }
}
