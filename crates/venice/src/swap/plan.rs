//! What a device is to be: written by who starts its server, read by the server.

use std::fs;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use venice_control::Policy;
use venice_control::client::Access;
use venice_recipient::local_rack::access;
use venice_recipient::{ReclaimTo, Waiting, Wish};
use venice_swap::BlockKind;
use venice_wire::ByteSize;

use crate::rack::{PortKind, RunDir};
use venice_cli::terminal;

/// Folders of devices in the run directory begin with this.
const PREFIX: &str = "swap-";
/// Names end up in file names, and in the 107 bytes of a socket's path.
const LONGEST_NAME: usize = 24;
const NO_FILES: &str = "files are no place for what is swapped: to reach them takes memory, which \
                        the kernel swaps to get (choose of donors and local; a disk can have a swap \
                        area of its own, with swapon)";
/// Fewer would not be worth a device.
pub const LEAST_BYTES: u64 = 1 << 20;

/// A device to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// How much.
    pub size: Size,
    /// The Monitor Node.
    pub monitor: String,
    /// How the donors are reached.
    pub port: PortKind,
    /// The donors to ask; empty: any.
    pub donors: Vec<String>,
    /// Which donors are taken first; `None`: as the rack does.
    #[serde(default)]
    pub placement: Option<Policy>,
    /// What its links have to carry, in bits a second; 0: it does not say.
    #[serde(default)]
    pub bandwidth_bps: u64,
    /// How it waits where there is no room.
    #[serde(default)]
    pub waiting: Waits,
    /// Copies of each page, on different donors; `None`: two where the rack has room for them.
    pub copies: Option<u32>,
    /// Where to put what donors want back.
    #[serde(default)]
    pub reclaim_to: Vec<Reclaim>,
    /// The node this machine belongs to, where nodes relay.
    pub node: Option<String>,
    /// Requests carried at a time.
    pub queues: u16,
    /// Of the swap area.
    pub priority: u16,
    /// How requests come from the kernel; `None`: the best way there is.
    pub device: Option<Device>,
    /// What for, for the rack's tables.
    pub purpose: String,
    /// The process the device is for: it goes when that does.
    pub owner_pid: Option<u32>,
}

/// [`Waiting`], in files.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Waits {
    /// How long at most; 0: not at all.
    pub wait_ms: u64,
    /// Of the request.
    pub rack_priority: u8,
    /// Grants of lower priority are called back for it.
    pub preempt: bool,
}

impl Default for Waits {
    fn default() -> Self {
        Waiting::default().into()
    }
}

impl From<Waiting> for Waits {
    fn from(waiting: Waiting) -> Self {
        let wait_ms = u64::try_from(waiting.at_most.as_millis()).unwrap_or(u64::MAX);
        Self { wait_ms, rack_priority: waiting.priority, preempt: waiting.preempt }
    }
}

impl From<Waits> for Waiting {
    fn from(waits: Waits) -> Self {
        let Waits { wait_ms, rack_priority, preempt } = waits;
        Self { at_most: Duration::from_millis(wait_ms), priority: rack_priority, preempt }
    }
}

/// How much to borrow.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Size {
    /// So many bytes.
    Exactly(u64),
    /// So many, or what the rack has free if that is less.
    UpTo(u64),
}

/// [`BlockKind`], on the command line and in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Device(pub BlockKind);

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

impl TryFrom<String> for Device {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Device> for String {
    fn from(device: Device) -> Self {
        device.0.name().to_owned()
    }
}

/// [`ReclaimTo`] for what is swapped, on the command line and in files. It is no file: those are
/// reached through the kernel's cached pages, and to get one takes memory, which the kernel may be
/// waiting for this very device to free. (Locked in memory, a file would cost as much as `local`
/// does.) A disk can have a swap area of its own, with nobody in between.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Reclaim(ReclaimTo);

impl Reclaim {
    /// As for programs that are paged: the memory of this machine that stands in for donors is
    /// locked, so that the kernel does not swap to the device what the device consists of.
    pub fn by_default() -> Vec<Reclaim> {
        ReclaimTo::by_default().into_iter().map(Reclaim).collect()
    }
}

impl TryFrom<ReclaimTo> for Reclaim {
    type Error = String;

    fn try_from(place: ReclaimTo) -> Result<Self, String> {
        match place {
            ReclaimTo::Disk(_) => Err(NO_FILES.to_owned()),
            place => Ok(Reclaim(place)),
        }
    }
}

impl FromStr for Reclaim {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_file = text == "disk" || text.starts_with("disk:");
        let place = text.parse::<ReclaimTo>().map_err(|_| match is_file {
            true => NO_FILES.to_owned(),
            false => format!("{text:?} is none of donors, local"),
        });
        place?.try_into()
    }
}

impl TryFrom<String> for Reclaim {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Reclaim> for String {
    fn from(place: Reclaim) -> Self {
        place.0.to_string()
    }
}

impl Plan {
    /// Requests carried at a time unless asked otherwise.
    pub fn default_queues() -> u16 {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        processors.clamp(2, 4) as u16
    }

    /// How the rack is reached.
    pub fn access(&self) -> Access {
        access(&self.monitor)
    }

    /// What is to be borrowed.
    pub fn wish(&self) -> Wish {
        let (remote_bytes, default_bytes) = match self.size {
            Size::Exactly(bytes) => (Some(bytes), bytes),
            Size::UpTo(bytes) => (None, bytes),
        };
        Wish {
            remote_bytes,
            default_bytes,
            copies: self.copies,
            donors: self.donors.clone(),
            placement: self.placement,
            bandwidth_bps: self.bandwidth_bps,
            waiting: self.waiting.into(),
            purpose: self.purpose.clone(),
            reclaim_to: self.reclaim_to.iter().map(|place| place.0.clone()).collect(),
            locks_local: true,
            ..Wish::default()
        }
    }

    /// The folder of this device's server, by the name it has as a process of the run directory.
    pub fn process_name(&self) -> String {
        process_name(&self.name)
    }

    /// Writes it for the server.
    pub fn save(&self, dir: &RunDir) -> anyhow::Result<()> {
        let path = dir.process_dir(&self.process_name()).join("plan.json");
        let text = serde_json::to_string_pretty(self)?;
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }

    /// Reads it in the server's folder.
    pub fn load(folder: &Path) -> anyhow::Result<Plan> {
        let path = folder.join("plan.json");
        let text = fs::read_to_string(&path);
        let text = text.with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))
    }
}

/// The folder of the device `name` in the run directory.
pub fn process_name(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// The names of all devices of a run directory, whatever their state.
pub fn names(dir: &RunDir) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir.path()) else { return Vec::new() };
    let folders = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> =
        folders.filter_map(|folder| folder.strip_prefix(PREFIX).map(str::to_owned)).collect();
    names.sort();
    names
}

/// Checks a name for a device.
pub fn name(text: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if text.is_empty() || text.len() > LONGEST_NAME || !text.bytes().all(allowed) {
        return Err(format!("use 1 to {LONGEST_NAME} letters, digits, - and _"));
    }
    Ok(text.to_owned())
}

/// Checks the size of a device.
pub fn check_size(size: ByteSize) -> Result<(), String> {
    if size.0 < LEAST_BYTES {
        return Err(format!(
            "{size} is too little: ask for {} at least",
            terminal::bytes(LEAST_BYTES)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_as_it_was_written() {
        let device = Device(BlockKind::FuseLoop);
        let text = serde_json::to_string(&device).unwrap();
        assert_eq!(text, "\"fuse\"");
        assert_eq!(serde_json::from_str::<Device>(&text).unwrap(), device);
        assert!(serde_json::from_str::<Device>("\"floppy\"").is_err());
        let text = serde_json::to_string(&Reclaim::by_default()).unwrap();
        assert_eq!(text, "[\"donors\",\"local\"]");
        assert_eq!(serde_json::from_str::<Vec<Reclaim>>(&text).unwrap(), Reclaim::by_default());
        let disk = serde_json::from_str::<Reclaim>("\"disk:/\"").unwrap_err().to_string();
        assert!(disk.contains("no place for what is swapped"), "{disk}");
        assert_eq!("disk:/no/such".parse::<Reclaim>(), "disk".parse::<Reclaim>());
        assert!("tape".parse::<Reclaim>().unwrap_err().ends_with("none of donors, local"));
    }

    #[test]
    fn names_fit_into_file_names() {
        assert_eq!(name("swap0"), Ok("swap0".to_owned()));
        for bad in ["", "a/b", "..", "a b", &"x".repeat(LONGEST_NAME + 1)] {
            assert!(name(bad).is_err(), "{bad}");
        }
        assert!(check_size(ByteSize(4096)).is_err() && check_size(ByteSize(1 << 20)).is_ok());
    }
}
