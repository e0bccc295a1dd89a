//! Devices of the rack: `GetAccelerator` and `GetIO` of the paper.

use std::time::{Duration, Instant};

use venice_control::{DEFAULT_PRIORITY, ResourceKind};
use venice_recipient::{DeviceWish, Fate, Held, Waiting, reason_text};

use crate::Error;
use crate::rack::Rack;

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A compute device: a GPU, an FPGA. Exclusive to one recipient.
    Accelerator,
    /// A network card. Exclusive to one recipient.
    Nic,
    /// A storage device; granted by size.
    Storage,
}

impl DeviceKind {
    /// Returns the common name: `accelerator`, `nic`, `storage`.
    pub fn name(self) -> &'static str {
        ResourceKind::from(self).name()
    }
}

impl From<DeviceKind> for ResourceKind {
    fn from(kind: DeviceKind) -> Self {
        match kind {
            DeviceKind::Accelerator => Self::Accelerator,
            DeviceKind::Nic => Self::Nic,
            DeviceKind::Storage => Self::Storage,
        }
    }
}

/// A requested I/O device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// This many bytes of one storage device, rounded up to whole MiB.
    Storage(u64),
    /// A network card.
    Nic,
}

/// The choice of a device, and the purpose of its grant.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// Required capabilities, as in `venice resources`: `cuda`, `25Gbps`. The device has all of
    /// them.
    pub capabilities: Vec<String>,
    /// Minimum size of an accelerator in bytes; 0: any.
    pub min_bytes: u64,
    /// Nodes to borrow from; empty: any.
    pub donors: Vec<String>,
    /// Maximum time to wait if no device is free; zero: do not wait. `venice queue` lists waiting
    /// requests.
    pub wait: Duration,
    /// Priority of a waiting request, 0 to 255: higher ones are served first. Values above
    /// [`DEFAULT_PRIORITY`] are for administrators.
    pub priority: u8,
    /// Preempts a device of lower priority while the request waits: the user's own, for
    /// administrators any user's. Its recipient has a minute to release it ([`Device::leaving`]).
    pub preempt: bool,
    /// Purpose shown by `venice grants`.
    pub purpose: String,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            capabilities: Vec::new(),
            min_bytes: 0,
            donors: Vec::new(),
            wait: Duration::ZERO,
            priority: DEFAULT_PRIORITY,
            preempt: false,
            purpose: String::new(),
        }
    }
}

/// A device that its donor reclaims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// The reason, in words.
    pub why: &'static str,
    /// Time until the grant ends: then [`Device::check`] reports the loss. `None`: the donor waits.
    pub within: Option<Duration>,
}

/// A device of the rack, granted until this is dropped. The grant only reserves the device; the
/// access to its data is up to the program.
#[derive(Debug)]
pub struct Device {
    kind: DeviceKind,
    held: Held,
}

impl Rack {
    /// Gets a whole accelerator.
    ///
    /// # Errors
    /// [`Error::NoRoom`] if no suitable one is free, with the reason; [`Error::Refused`],
    /// [`Error::Unreachable`].
    pub fn get_accelerator(&self, options: &DeviceOptions) -> Result<Device, Error> {
        self.get_device(DeviceKind::Accelerator, options.min_bytes, options)
    }

    /// Gets storage or a network card.
    ///
    /// # Errors
    /// Like [`get_accelerator`](Rack::get_accelerator); [`Error::Invalid`] for a size of 0.
    pub fn get_io(&self, io: Io, options: &DeviceOptions) -> Result<Device, Error> {
        match io {
            Io::Storage(0) => {
                Err(Error::Invalid("invalid size 0: ask for at least 1 byte of storage".into()))
            }
            Io::Storage(bytes) => self.get_device(DeviceKind::Storage, bytes, options),
            Io::Nic => self.get_device(DeviceKind::Nic, 0, options),
        }
    }

    fn get_device(
        &self,
        kind: DeviceKind,
        bytes: u64,
        options: &DeviceOptions,
    ) -> Result<Device, Error> {
        let wish = DeviceWish {
            kind: kind.into(),
            bytes,
            capabilities: options.capabilities.clone(),
            donors: options.donors.clone(),
            waiting: Waiting {
                at_most: options.wait,
                priority: options.priority,
                preempt: options.preempt,
            },
            purpose: options.purpose.clone(),
        };
        let held = Held::device(self.access(), &wish, |_| {})?;
        Ok(Device { kind, held })
    }
}

impl Device {
    /// Returns its kind.
    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// Returns its node.
    pub fn node(&self) -> &str {
        &self.held.grants()[0].donor
    }

    /// Returns its name on that node, for example `/dev/nvidia0`.
    pub fn address(&self) -> &str {
        self.share().map_or("", |share| &share.address)
    }

    /// Returns the granted bytes of storage; for other devices their size, 0 if unknown.
    pub fn len_bytes(&self) -> u64 {
        self.held.grants()[0].bytes
    }

    /// Returns its capabilities.
    pub fn capabilities(&self) -> &[String] {
        self.share().map_or(&[], |share| &share.capabilities)
    }

    /// Returns the number of its grant, as in `venice grants`.
    pub fn grant(&self) -> u64 {
        self.held.grants()[0].id.0
    }

    /// Returns the reclaim or preemption of this device, if there is one at present. Drop the
    /// device within the given time to release it in order.
    pub fn leaving(&self) -> Option<Leaving> {
        let wanted = self.held.wanted()?;
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        Some(Leaving { why: reason_text(wanted.reason), within: wanted.until.map(left) })
    }

    /// Checks that the grant still exists.
    ///
    /// # Errors
    /// [`Error::DeviceLost`]: its node is gone or has taken the device back. It may belong to
    /// another recipient now.
    pub fn check(&self) -> Result<(), Error> {
        let Some(fate) = self.held.lost() else { return Ok(()) };
        let why = match fate {
            Fate::Died => "its agent has died",
            Fate::Revoked => "its node has taken it back",
            Fate::Unresponsive => "its node does not answer",
        };
        let (node, address) = (self.node().to_owned(), self.address().to_owned());
        Err(Error::DeviceLost { node, address, why })
    }

    fn share(&self) -> Option<&venice_control::DeviceShare> {
        self.held.grants()[0].device.as_ref()
    }
}
