//! Swap to compressed local memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::SwapDevice;
use super::swap_area::SwapArea;

const CONTROL: &str = "/sys/class/zram-control";

/// A zram device in use as swap. Dropping it switches it off, and resets or removes the device.
#[derive(Debug)]
pub(crate) struct ZramSwap {
    algorithm: String,
    // Dropped in this order: off first, then the device.
    _area: SwapArea,
    device: ZramDevice,
}

impl ZramSwap {
    /// Swaps to a zram device that takes up to `len_bytes` of uncompressed pages.
    ///
    /// # Errors
    /// Without root or where the kernel has no zram.
    pub(crate) fn create(len_bytes: u64) -> Result<Self> {
        venice_swap::require_root()?;
        let device = ZramDevice::take()?;
        fs::write(device.attribute("disksize"), len_bytes.to_string())
            .with_context(|| format!("cannot size zram{}", device.number))?;
        let choices = fs::read_to_string(device.attribute("comp_algorithm")).unwrap_or_default();
        let algorithm = selected(&choices).unwrap_or("unknown").to_owned();
        let area = SwapArea::switch_on(&device.path)?;
        Ok(Self { algorithm, _area: area, device })
    }

    /// The compression in use: `lzo-rle`, `zstd`, ...
    pub(crate) fn algorithm(&self) -> &str {
        &self.algorithm
    }
}

impl SwapDevice for ZramSwap {
    fn path(&self) -> &Path {
        &self.device.path
    }
}

#[derive(Debug)]
struct ZramDevice {
    path: PathBuf,
    number: u32,
    added: bool,
}

impl ZramDevice {
    /// Adds a device of our own, so that one which is in use stays untouched.
    fn take() -> Result<Self> {
        if !Path::new(CONTROL).exists() {
            bail!("this kernel has no zram (try `modprobe zram`)");
        }
        if let Ok(text) = fs::read_to_string(format!("{CONTROL}/hot_add")) {
            let number = text.trim().parse().context("zram gave no device number")?;
            let device = Self::numbered(number, true);
            let node = device.path.clone();
            crate::interrupt::wait_until(
                "the new zram device node",
                Duration::from_secs(5),
                || Ok(node.exists().then_some(())),
            )?;
            return Ok(device);
        }
        let device = Self::numbered(0, false);
        let size = fs::read_to_string(device.attribute("disksize")).unwrap_or_default();
        if size.trim() != "0" || !device.path.exists() {
            bail!("no zram device is free");
        }
        Ok(device)
    }

    fn numbered(number: u32, added: bool) -> Self {
        Self { path: format!("/dev/zram{number}").into(), number, added }
    }

    fn attribute(&self, name: &str) -> PathBuf {
        format!("/sys/block/zram{}/{name}", self.number).into()
    }
}

impl Drop for ZramDevice {
    fn drop(&mut self) {
        let released = if self.added {
            fs::write(format!("{CONTROL}/hot_remove"), self.number.to_string())
        } else {
            fs::write(self.attribute("reset"), "1")
        };
        if let Err(error) = released {
            eprintln!("venice: zram{} could not be released: {error}", self.number);
        }
    }
}

/// The word in brackets of a sysfs choice such as `lzo [lz4] zstd`.
fn selected(choices: &str) -> Option<&str> {
    choices.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_in_brackets_is_read() {
        assert_eq!(selected("[lzo-rle] lzo lz4\n"), Some("lzo-rle"));
        assert_eq!(selected("lzo [lz4] zstd"), Some("lz4"));
        assert_eq!(selected("lzo lz4"), None);
    }
}
