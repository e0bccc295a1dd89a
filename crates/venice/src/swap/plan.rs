//! The plan of a swap device: written by the command that starts its server, read by the server.

use std::fs;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use venice_control::Policy;
use venice_control::client::{Access, UserIds};
use venice_recipient::local_rack::{access, access_as};
use venice_recipient::{AllocationSpec, MemorySpec, ReclaimTo, Waiting};
use venice_swap::BlockKind;
use venice_wire::ByteSize;

use crate::rack::{PortKind, RunDir};
use venice_cli::terminal;

/// Prefix of device directories in the run directory.
const PREFIX: &str = "swap-";
/// Names are used in file names and in socket paths (107 bytes).
const LONGEST_NAME: usize = 24;
const NO_FILES: &str = "swapped memory cannot go to files: reaching them takes memory, which \
                        the kernel swaps to get (use donors or local; a disk can have a swap \
                        area of its own, with swapon)";
/// Minimum size of a device in bytes.
pub const LEAST_BYTES: u64 = 1 << 20;

/// The plan of a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Name of the device.
    pub name: String,
    /// Amount to borrow.
    pub size: Size,
    /// Address of the Monitor Node.
    pub monitor: String,
    /// Port to the donors.
    pub port: PortKind,
    /// Donors to borrow from; empty: any.
    pub donors: Vec<String>,
    /// Placement policy; `None`: the rack's.
    #[serde(default)]
    pub placement: Option<Policy>,
    /// Bandwidth to reserve on its links, in bits a second; 0: none.
    #[serde(default)]
    pub bandwidth_bps: u64,
    /// Waiting options.
    #[serde(default)]
    pub waiting: Waits,
    /// Copies of each page, on different donors; `None`: two if the rack has room for them.
    pub copies: Option<u32>,
    /// Destinations for reclaimed memory.
    #[serde(default)]
    pub reclaim_to: Vec<Reclaim>,
    /// Node that this machine belongs to, where nodes relay.
    pub node: Option<String>,
    /// Requests served at a time.
    pub queues: u16,
    /// Priority of the swap area.
    pub priority: u16,
    /// Path of requests from the kernel; `None`: the best available.
    pub device: Option<Device>,
    /// Purpose, for the rack's tables.
    pub purpose: String,
    /// Process that the device serves: the device goes when it ends.
    pub owner_pid: Option<u32>,
    /// User that the memory is granted to; `None`: the one that starts the server.
    #[serde(default)]
    pub user: Option<UserIds>,
}

/// [`Waiting`] in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// Longest wait in milliseconds; 0: no wait.
    pub wait_ms: u64,
    /// Priority of the request.
    pub rack_priority: u8,
    /// True if grants of lower priority are preempted for it.
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

/// Amount to borrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Size {
    /// Exactly this many bytes.
    Exactly(u64),
    /// At most this many bytes: less if the rack has less free.
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

/// [`ReclaimTo`] for swapped memory, on the command line and in files. Files are excluded: they are
/// reached through the kernel's page cache, and a cache page takes memory that the kernel may be
/// waiting for this device to free. (Locked in memory, a file would cost as much as `local`.) A
/// disk can have a swap area of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Reclaim(ReclaimTo);

impl Reclaim {
    /// Returns the default: as for paged programs. Local memory that replaces donors is locked, so
    /// that the kernel does not swap the device to itself.
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
            false => format!("{text:?} is not donors or local"),
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
    /// Returns the default number of requests served at a time.
    pub fn default_queues() -> u16 {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        processors.clamp(2, 4) as u16
    }

    /// Returns the access to the rack.
    pub fn access(&self) -> Access {
        match &self.user {
            Some(user) => access_as(&self.monitor, user.clone()),
            None => access(&self.monitor),
        }
    }

    /// Returns the specification of its memory.
    pub fn spec(&self) -> AllocationSpec {
        let (remote_bytes, default_bytes) = match self.size {
            Size::Exactly(bytes) => (Some(bytes), bytes),
            Size::UpTo(bytes) => (None, bytes),
        };
        let memory = MemorySpec {
            remote_bytes,
            default_bytes,
            copies: self.copies,
            bandwidth_bps: self.bandwidth_bps,
            reclaim_to: self.reclaim_to.iter().map(|place| place.0.clone()).collect(),
            locks_local: true,
            ..MemorySpec::default()
        };
        AllocationSpec {
            donors: self.donors.clone(),
            placement: self.placement,
            waiting: self.waiting.into(),
            purpose: self.purpose.clone(),
            ..AllocationSpec::of_memory(memory)
        }
    }

    /// Returns the name of the server's directory in the run directory.
    pub fn process_name(&self) -> String {
        process_name(&self.name)
    }

    /// Writes the plan for the server.
    pub fn save(&self, dir: &RunDir) -> anyhow::Result<()> {
        let path = dir.process_dir(&self.process_name()).join("plan.json");
        let text = serde_json::to_string_pretty(self)?;
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }

    /// Reads the plan in the server's folder.
    pub fn load(folder: &Path) -> anyhow::Result<Plan> {
        let path = folder.join("plan.json");
        let text = fs::read_to_string(&path);
        let text = text.with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))
    }
}

/// Returns the directory name of the device `name`.
pub fn process_name(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// Returns the names of all devices of a run directory, in any state.
pub fn names(dir: &RunDir) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir.path()) else { return Vec::new() };
    let folders = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> =
        folders.filter_map(|folder| folder.strip_prefix(PREFIX).map(str::to_owned)).collect();
    names.sort();
    names
}

/// Validates a device name.
pub fn name(text: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if text.is_empty() || text.len() > LONGEST_NAME || !text.bytes().all(allowed) {
        return Err(format!("use 1 to {LONGEST_NAME} letters, digits, - and _"));
    }
    Ok(text.to_owned())
}

/// Validates a device size.
pub fn check_size(size: ByteSize) -> Result<(), String> {
    if size.0 < LEAST_BYTES {
        return Err(format!(
            "{size} is too small: the minimum is {}",
            terminal::bytes(LEAST_BYTES)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_fields_roundtrip() {
        let device = Device(BlockKind::FuseLoop);
        let text = serde_json::to_string(&device).unwrap();
        assert_eq!(text, "\"fuse\"");
        assert_eq!(serde_json::from_str::<Device>(&text).unwrap(), device);
        assert!(serde_json::from_str::<Device>("\"floppy\"").is_err());
        let text = serde_json::to_string(&Reclaim::by_default()).unwrap();
        assert_eq!(text, "[\"donors\",\"local\"]");
        assert_eq!(serde_json::from_str::<Vec<Reclaim>>(&text).unwrap(), Reclaim::by_default());
        let disk = serde_json::from_str::<Reclaim>("\"disk:/\"").unwrap_err().to_string();
        assert!(disk.contains("swapped memory cannot go to files"), "{disk}");
        assert_eq!("disk:/no/such".parse::<Reclaim>(), "disk".parse::<Reclaim>());
        assert!("tape".parse::<Reclaim>().unwrap_err().ends_with("not donors or local"));
    }

    #[test]
    fn names_and_sizes_are_checked() {
        assert_eq!(name("swap0"), Ok("swap0".to_owned()));
        for bad in ["", "a/b", "..", "a b", &"x".repeat(LONGEST_NAME + 1)] {
            assert!(name(bad).is_err(), "{bad}");
        }
        assert!(check_size(ByteSize(4096)).is_err() && check_size(ByteSize(1 << 20)).is_ok());
    }
}
