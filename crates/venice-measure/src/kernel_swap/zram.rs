//! Swap to compressed local memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::SwapDevice;
use super::swap_area::SwapArea;
use crate::scratch;

const CONTROL: &str = "/sys/class/zram-control";

/// A zram device in use as swap. Dropping it switches it off, and resets or removes the device.
#[derive(Debug)]
pub struct ZramSwap {
    algorithm: String,
    // The fields drop in this order: swap off first, then the device.
    _area: SwapArea,
    device: ZramDevice,
}

impl ZramSwap {
    /// Swaps to a zram device that takes up to `len_bytes` of uncompressed pages.
    ///
    /// # Errors
    /// Without root or when the kernel has no zram.
    pub fn create(len_bytes: u64) -> Result<Self> {
        venice_swap::require_root()?;
        let device = ZramDevice::take()?;
        fs::write(device.attribute("disksize"), len_bytes.to_string())
            .with_context(|| format!("cannot size zram{}", device.number))?;
        let choices = fs::read_to_string(device.attribute("comp_algorithm")).unwrap_or_default();
        let algorithm = selected(&choices).unwrap_or("unknown").to_owned();
        let area = SwapArea::switch_on(&device.path)?;
        Ok(Self { algorithm, _area: area, device })
    }

    /// Returns the compression in use: `lzo-rle`, `zstd`, ...
    pub fn algorithm(&self) -> &str {
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
    /// A file that names the device's owner.
    note: PathBuf,
}

impl ZramDevice {
    /// Adds a device, so that one in use stays untouched.
    fn take() -> Result<Self> {
        if !Path::new(CONTROL).exists() {
            bail!("this kernel has no zram (try `modprobe zram`)");
        }
        if can_add() {
            let text = fs::read_to_string(format!("{CONTROL}/hot_add"))
                .context("cannot add a zram device")?;
            let number = text.trim().parse().context("zram returned no device number")?;
            let device = Self::numbered(number)?;
            let node = device.path.clone();
            crate::interrupt::wait_until(
                "the new zram device node",
                Duration::from_secs(5),
                || Ok(node.exists().then_some(())),
            )?;
            return Ok(device);
        }
        let size = fs::read_to_string("/sys/block/zram0/disksize").unwrap_or_default();
        if size.trim() != "0" || !Path::new("/dev/zram0").exists() {
            bail!("no zram device is free");
        }
        Self::numbered(0)
    }

    fn numbered(number: u32) -> Result<Self> {
        let name = format!("{}-{number}", scratch::name(scratch::ZRAM));
        let note = Path::new(scratch::MEMORY_FOLDER).join(name);
        fs::File::create_new(&note).with_context(|| format!("cannot write {}", note.display()))?;
        Ok(Self { path: format!("/dev/zram{number}").into(), number, note })
    }

    fn attribute(&self, name: &str) -> PathBuf {
        format!("/sys/block/zram{}/{name}", self.number).into()
    }
}

impl Drop for ZramDevice {
    fn drop(&mut self) {
        if let Err(error) = release(self.number) {
            eprintln!("venice: zram{} could not be released: {error}", self.number);
        }
        if let Err(error) = fs::remove_file(&self.note) {
            eprintln!("venice: {} is left: {error}", self.note.display());
        }
    }
}

/// Releases a device of [`ZramDevice::take`].
///
/// # Errors
/// While it is in use.
pub fn release(number: u32) -> std::io::Result<()> {
    match can_add() {
        true => fs::write(format!("{CONTROL}/hot_remove"), number.to_string()),
        false => fs::write(format!("/sys/block/zram{number}/reset"), "1"),
    }
}

/// True if the kernel can add devices: the first one may belong to another user.
fn can_add() -> bool {
    Path::new(CONTROL).join("hot_add").exists()
}

/// Returns the word in brackets of a sysfs choice such as `lzo [lz4] zstd`.
fn selected(choices: &str) -> Option<&str> {
    choices.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bracketed_choice_is_parsed() {
        assert_eq!(selected("[lzo-rle] lzo lz4\n"), Some("lzo-rle"));
        assert_eq!(selected("lzo [lz4] zstd"), Some("lz4"));
        assert_eq!(selected("lzo lz4"), None);
    }
}
