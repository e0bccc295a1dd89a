//! DAX devices: memory of a device (CXL, NVDIMM) that the kernel uses as system memory with the
//! driver kmem, or that programs map with the driver device_dax.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use venice_wire::ByteSize;

use super::blocks::write;
use super::{Block, HotplugError, MemoryBlocks};

const KMEM: &str = "kmem";
const DEVICE_DAX: &str = "device_dax";

/// An error: a text names no DAX device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a memory device name: write it as in dax0.0 (`venice window list` shows the devices)"
)]
pub struct BadDaxName(String);

/// The name of a DAX device in a text, which may be its path in `/dev`. The device itself need not
/// exist.
///
/// # Errors
/// [`BadDaxName`] if the text has another form.
pub fn dax_name(text: &str) -> Result<&str, BadDaxName> {
    let name = text.trim_start_matches("/dev/");
    let is_number = |rest: &str| {
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    };
    let is_name = name.strip_prefix("dax").is_some_and(is_number);
    is_name.then_some(name).ok_or_else(|| BadDaxName(name.to_owned()))
}

/// The bus of the DAX devices.
#[derive(Debug, Clone)]
pub struct DaxBus {
    root: PathBuf,
    blocks: MemoryBlocks,
}

/// A DAX device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaxDevice {
    /// The device's name, such as `dax0.0`.
    pub name: String,
    /// Size, bytes.
    pub bytes: u64,
    /// Alignment of its mappings, bytes; `None` if the kernel does not report it.
    pub align_bytes: Option<u64>,
    /// Physical address; `None` if the kernel does not report it (it does so to root only).
    pub start: Option<u64>,
    /// The NUMA node of its memory, also before it is system memory.
    pub numa_node: Option<u32>,
    /// `kmem`: it is system memory; `device_dax`: programs can map it.
    pub driver: Option<String>,
    /// Its memory blocks, while it is system memory.
    pub blocks: Vec<Block>,
}

impl DaxDevice {
    /// True if it is system memory.
    pub fn is_memory(&self) -> bool {
        self.driver.as_deref() == Some(KMEM)
    }

    /// The number of its blocks that the kernel uses.
    pub fn online_blocks(&self) -> usize {
        self.blocks.iter().filter(|block| block.is_online).count()
    }
}

impl Default for DaxBus {
    fn default() -> Self {
        Self { root: "/sys/bus/dax".into(), blocks: MemoryBlocks::default() }
    }
}

impl DaxBus {
    /// True if the kernel has the driver kmem.
    pub fn has_kmem(&self) -> bool {
        self.driver_file(KMEM, "bind").exists()
    }

    /// All devices, by name; none if the kernel has no such bus.
    pub fn list(&self) -> Vec<DaxDevice> {
        let entries = fs::read_dir(self.root.join("devices")).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut devices: Vec<_> = names.filter_map(|name| self.device(&name).ok()).collect();
        devices.sort_by(|a, b| a.name.cmp(&b.name));
        devices
    }

    /// The device of this name.
    ///
    /// # Errors
    /// [`HotplugError::NoDevice`] if it does not exist.
    pub fn device(&self, name: &str) -> Result<DaxDevice, HotplugError> {
        let missing = || HotplugError::NoDevice { name: name.to_owned() };
        let is_name = !name.is_empty() && !name.contains('/') && name != "." && name != "..";
        let folder = Some(self.root.join("devices").join(name)).filter(|_| is_name);
        let folder = folder.ok_or_else(missing)?;
        let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
        let bytes = read("size").and_then(|text| text.trim().parse().ok()).ok_or_else(missing)?;
        let start = read("resource")
            .and_then(|text| u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok());
        let driver = fs::read_link(folder.join("driver")).ok();
        let driver = driver.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
        let is_memory = driver.as_deref() == Some(KMEM);
        let blocks = match start.filter(|start| is_memory && *start > 0) {
            Some(start) => self.blocks_in(start..start + bytes)?,
            None => Vec::new(),
        };
        let align_bytes = read("align").and_then(|text| text.trim().parse().ok());
        let numa_node = read("target_node").and_then(|text| text.trim().parse().ok());
        let name = name.to_owned();
        Ok(DaxDevice { name, bytes, align_bytes, start, numa_node, driver, blocks })
    }

    /// Turns a device into system memory, movable so that it can be detached again. Calls `progress`
    /// after each block with the numbers of blocks online and in all.
    ///
    /// # Errors
    /// [`HotplugError`]. The device is then restored as far as possible.
    pub fn attach(
        &self,
        name: &str,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<DaxDevice, HotplugError> {
        let device = self.device(name)?;
        if device.is_memory() && device.online_blocks() == device.blocks.len() {
            let state = "is system memory already";
            return Err(HotplugError::WrongState { name: name.to_owned(), state });
        }
        if !self.has_kmem() {
            return Err(HotplugError::NoKmem);
        }
        // Otherwise the kernel would put unmovable memory into the new blocks.
        let _held_back = self.blocks.hold_back_new();
        if !device.is_memory() {
            self.hand_over(&device, KMEM)?;
        }
        let device = self.device(name)?;
        let result = self.bring_online(&device, &mut progress);
        if let Err(error) = result {
            let _ = self.detach(name, |_, _| {});
            return Err(error);
        }
        self.device(name)
    }

    fn bring_online(
        &self,
        device: &DaxDevice,
        progress: &mut impl FnMut(usize, usize),
    ) -> Result<(), HotplugError> {
        let count = device.blocks.len();
        if count == 0 {
            let block = ByteSize(self.blocks.block_bytes()?);
            return Err(HotplugError::TooSmall { name: device.name.clone(), block });
        }
        for (done, block) in device.blocks.iter().enumerate() {
            self.blocks.bring_online(block.number, true)?;
            progress(done + 1, count);
        }
        Ok(())
    }

    /// Takes a device's memory from the kernel and leaves the device to programs. Calls `progress`
    /// after each block with the numbers of blocks offline and in all.
    ///
    /// # Errors
    /// [`HotplugError::DeviceBusy`] if part of it cannot be freed; all of it is online then.
    pub fn detach(
        &self,
        name: &str,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<DaxDevice, HotplugError> {
        let device = self.device(name)?;
        if !device.is_memory() {
            let state = "is no system memory";
            return Err(HotplugError::WrongState { name: name.to_owned(), state });
        }
        let count = device.blocks.len();
        let mut busy = 0;
        for (done, block) in device.blocks.iter().enumerate() {
            match self.blocks.take_offline(block.number) {
                Err(HotplugError::Busy { .. }) => busy += 1,
                other => other?,
            }
            progress(done + 1 - busy, count);
        }
        if busy > 0 {
            for block in device.blocks.iter().filter(|block| block.is_online) {
                self.blocks.bring_online(block.number, true)?;
            }
            return Err(HotplugError::DeviceBusy { name: name.to_owned(), busy, blocks: count });
        }
        self.hand_over(&device, DEVICE_DAX)?;
        self.device(name)
    }

    /// Moves a device from its present driver to another.
    fn hand_over(&self, device: &DaxDevice, to: &str) -> Result<(), HotplugError> {
        let name = &device.name;
        if let Some(from) = &device.driver {
            write(&self.driver_file(from, "unbind"), name)?;
        }
        let is_bound = || self.device(name).is_ok_and(|d| d.driver.as_deref() == Some(to));
        if to == KMEM {
            // The driver takes only devices that were announced to it, and takes this one at once.
            write(&self.driver_file(KMEM, "new_id"), name)?;
        } else {
            write(&self.driver_file(KMEM, "remove_id"), name)?;
        }
        // A device that the driver has taken by itself cannot be bound again.
        let bound = if is_bound() { Ok(()) } else { write(&self.driver_file(to, "bind"), name) };
        if is_bound() { Ok(()) } else { bound.and(Err(HotplugError::NoKmem)) }
    }

    fn driver_file(&self, driver: &str, file: &str) -> PathBuf {
        self.root.join("drivers").join(driver).join(file)
    }

    /// The blocks that lie entirely in a range.
    fn blocks_in(&self, range: Range<u64>) -> Result<Vec<Block>, HotplugError> {
        let bytes = self.blocks.block_bytes()?;
        let numbers = range.start.div_ceil(bytes)..range.end / bytes;
        Ok(numbers.filter_map(|number| self.blocks.block(number)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::blocks::tests::folder;
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn devices_list_their_blocks() {
        let blocks = folder(&[
            (7, "online\n", "Movable\n"),
            (8, "online\n", "Movable\n"),
            (9, "offline\n", "Movable\n"),
            (10, "online\n", "Movable\n"),
        ]);
        let root = tempfile::tempdir().unwrap();
        for name in ["dax1.0", "dax0.0"] {
            let folder = root.path().join("devices").join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("size"), "402653184\n").unwrap();
            fs::write(folder.join("target_node"), "1\n").unwrap();
            // The range begins in block 7 and ends before the end of block 10.
            fs::write(folder.join("resource"), "0x38200000\n").unwrap();
        }
        symlink("/sys/bus/dax/drivers/kmem", root.path().join("devices/dax0.0/driver")).unwrap();
        let bus = DaxBus { root: root.path().to_owned(), blocks: MemoryBlocks::at(blocks.path()) };
        let devices = bus.list();
        let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["dax0.0", "dax1.0"]);
        let numbers: Vec<_> = devices[0].blocks.iter().map(|block| block.number).collect();
        assert_eq!((numbers, devices[0].online_blocks()), (vec![8, 9], 1));
        assert!(devices[0].is_memory() && devices[0].numa_node == Some(1));
        assert!(!devices[1].is_memory() && devices[1].blocks.is_empty());
        assert!(matches!(bus.attach("dax1.0", |_, _| {}), Err(HotplugError::NoKmem)));
        let error = bus.detach("dax1.0", |_, _| {}).unwrap_err();
        assert_eq!(error.to_string(), "dax1.0 is no system memory");
        for name in ["dax9.9", "", "..", "../x"] {
            assert!(matches!(bus.device(name), Err(HotplugError::NoDevice { .. })));
        }
    }
}
