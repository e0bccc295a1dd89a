//! Devices of the rack: the paper's `GetAccelerator` and `GetIO`.

use std::time::{Duration, Instant};

use venice_control::{DEFAULT_PRIORITY, ResourceKind};
use venice_recipient::{DeviceWish, Fate, Held, Waiting, reason_text};

use crate::Error;
use crate::rack::Rack;

/// What kind of device something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// Computes: a GPU, an FPGA. One recipient's at a time.
    Accelerator,
    /// A network card. One recipient's at a time.
    Nic,
    /// Holds bytes; granted by size.
    Storage,
}

impl DeviceKind {
    /// What people call it: `accelerator`, `nic`, `storage`.
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

/// What I/O is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// So many bytes of one storage device, rounded up to whole MiB.
    Storage(u64),
    /// A network card.
    Nic,
}

/// Which device, and what for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// What it has to be able to do, all of it, as in `venice resources`: `cuda`, `25Gbps`.
    pub capabilities: Vec<String>,
    /// How large an accelerator has to be at least, in bytes; 0: any.
    pub min_bytes: u64,
    /// The nodes to get it from; empty: any.
    pub donors: Vec<String>,
    /// Where none is to be had, wait for one in line so long at most; zero: not at all. Whoever waits is
    /// listed by `venice queue`.
    pub wait: Duration,
    /// 0 to 255, for those who wait: higher ones are served first. More than [`DEFAULT_PRIORITY`] is
    /// for administrators.
    pub priority: u8,
    /// While it waits, have a device of lower priority called back: the user's own, for administrators
    /// anybody's. Its holder has a minute to give it back ([`Device::leaving`]).
    pub preempt: bool,
    /// What for, in `venice grants`.
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

/// A device's donor wants it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// Why, in words.
    pub why: &'static str,
    /// How long it is still held: then [`Device::check`] says that it is lost. `None`: its donor waits.
    pub within: Option<Duration>,
}

/// A device of the rack, held until this is dropped. The grant holds it and no more: how its data
/// is reached from here is the holder's business.
#[derive(Debug)]
pub struct Device {
    kind: DeviceKind,
    held: Held,
}

impl Rack {
    /// Gets an accelerator, whole.
    ///
    /// # Errors
    /// [`Error::NoRoom`]: none is free that would do, and why; [`Error::Refused`],
    /// [`Error::Unreachable`].
    pub fn get_accelerator(&self, options: &DeviceOptions) -> Result<Device, Error> {
        self.get_device(DeviceKind::Accelerator, options.min_bytes, options)
    }

    /// Gets storage, or a network card.
    ///
    /// # Errors
    /// As [`get_accelerator`](Rack::get_accelerator); [`Error::Invalid`] for no storage at all.
    pub fn get_io(&self, io: Io, options: &DeviceOptions) -> Result<Device, Error> {
        match io {
            Io::Storage(0) => Err(Error::Invalid("ask for a byte of storage at least".into())),
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
    /// What it is.
    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// The node it is on.
    pub fn node(&self) -> &str {
        &self.held.grants()[0].donor
    }

    /// Its name there, for example `/dev/nvidia0`.
    pub fn address(&self) -> &str {
        self.share().map_or("", |share| &share.address)
    }

    /// Of storage how much was granted; of others their size, 0 where nobody knows.
    pub fn len_bytes(&self) -> u64 {
        self.held.grants()[0].bytes
    }

    /// What it can do.
    pub fn capabilities(&self) -> &[String] {
        self.share().map_or(&[], |share| &share.capabilities)
    }

    /// The grant's number, as in `venice grants`.
    pub fn grant(&self) -> u64 {
        self.held.grants()[0].id.0
    }

    /// Whether its donor wants it back, as for a request of higher priority; `None`: it does not, or
    /// not any more. Whoever gives it back in time (drops it) has used it to the end.
    pub fn leaving(&self) -> Option<Leaving> {
        let wanted = self.held.wanted()?;
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        Some(Leaving { why: reason_text(wanted.reason), within: wanted.until.map(left) })
    }

    /// Whether it is still held.
    ///
    /// # Errors
    /// [`Error::DeviceLost`]: its node is gone or has taken it back. It may be another's.
    pub fn check(&self) -> Result<(), Error> {
        let Some(fate) = self.held.lost() else { return Ok(()) };
        let why = match fate {
            Fate::Died => "its agent is gone",
            Fate::Revoked => "it was taken back",
            Fate::Unresponsive => "it does not answer",
        };
        let (node, address) = (self.node().to_owned(), self.address().to_owned());
        Err(Error::DeviceLost { node, address, why })
    }

    fn share(&self) -> Option<&venice_control::DeviceShare> {
        self.held.grants()[0].device.as_ref()
    }
}
