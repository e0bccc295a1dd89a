//! Devices of the rack: `GetAccelerator` and `GetIO` of the paper, for devices of any kind.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use venice_control::{DEFAULT_PRIORITY, ResourceKind, ServiceAccess, Share, Want};
use venice_recipient::{AllocationSpec, Fate, Held, Waiting, allocate, reason_text};
use venice_service::ServiceClient;

use crate::Error;
use crate::rack::Rack;

/// The options of requested devices.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceOptions {
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

/// A device of the rack, granted until this is dropped. A program reaches its data by its service
/// ([`Device::open_service`]); a device without one is only reserved.
#[derive(Debug)]
pub struct Device {
    held: Held,
}

/// Parses wants, separated by spaces: `"accelerator:cuda=2 nic"`. Each is
/// `KIND[:CAPABILITY,...][=AMOUNT]`, as for `venice get`.
///
/// # Errors
/// [`Error::Invalid`].
pub fn wants(text: &str) -> Result<Vec<Want>, Error> {
    let parsed = text.split_whitespace().map(|word| (word, word.parse()));
    let named = |(word, want): (&str, Result<Want, _>)| {
        want.map_err(|error| Error::Invalid(format!("invalid want {word:?}: {error}")))
    };
    parsed.map(named).collect()
}

impl Rack {
    /// Gets one device: `rack.get_device(&"accelerator:cuda".parse()?, &options)`.
    ///
    /// # Errors
    /// [`Error::NoRoom`] if no suitable one is free, with the reason; [`Error::Invalid`] for memory
    /// and for several devices; [`Error::Refused`], [`Error::Unreachable`].
    pub fn get_device(&self, want: &Want, options: &DeviceOptions) -> Result<Device, Error> {
        if want.count != 1 {
            let said = format!("{want} is not one device: get_devices returns several");
            return Err(Error::Invalid(said));
        }
        let devices = self.get_devices(std::slice::from_ref(want), options)?;
        devices.into_iter().next().ok_or_else(|| Error::Refused("the rack granted nothing".into()))
    }

    /// Gets devices of any kinds, all of them or none. [`MemoryOptions::devices`] gets memory with
    /// them.
    ///
    /// # Errors
    /// Like [`get_device`](Rack::get_device).
    ///
    /// [`MemoryOptions::devices`]: crate::MemoryOptions::devices
    pub fn get_devices(
        &self,
        wants: &[Want],
        options: &DeviceOptions,
    ) -> Result<Vec<Device>, Error> {
        check_devices(wants)?;
        let spec = AllocationSpec {
            devices: wants.to_vec(),
            donors: options.donors.clone(),
            waiting: Waiting {
                at_most: options.wait,
                priority: options.priority,
                preempt: options.preempt,
            },
            purpose: options.purpose.clone(),
            ..AllocationSpec::default()
        };
        let mut loan = allocate(self.access(), &spec, &mut |_| ControlFlow::Continue(()))?;
        Ok(Held::each_device_of(&mut loan)?.into_iter().map(Device::new).collect())
    }
}

/// Refuses wants of memory.
pub(crate) fn check_devices(wants: &[Want]) -> Result<(), Error> {
    match wants.iter().find(|want| !want.kind.is_device()) {
        Some(want) => Err(Error::Invalid(format!("{want} is not a device: see get_memory"))),
        None => Ok(()),
    }
}

impl Device {
    pub(crate) fn new(held: Held) -> Self {
        Self { held }
    }

    /// Returns its kind.
    pub fn kind(&self) -> ResourceKind {
        self.share().kind
    }

    /// Returns its node.
    pub fn node(&self) -> &str {
        &self.held.grants()[0].donor
    }

    /// Returns its name on that node, for example `/dev/nvidia0`.
    pub fn address(&self) -> &str {
        &self.share().address
    }

    /// Returns the granted bytes of storage; for other devices their size, 0 if unknown.
    pub fn len_bytes(&self) -> u64 {
        self.share().bytes
    }

    /// Returns its capabilities.
    pub fn capabilities(&self) -> &[String] {
        &self.share().capabilities
    }

    /// Returns the number of its grant, as in `venice grants`.
    pub fn grant(&self) -> u64 {
        self.held.grants()[0].id.0
    }

    /// Returns the way to its service; `None`: the program uses the device by itself.
    pub fn service(&self) -> Option<&ServiceAccess> {
        self.held.services()[0].as_ref()
    }

    /// Connects to its service; each call of the client waits at most `timeout`, more than zero
    /// (`None`: without limit).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a device without a service, and for a time-out of zero; [`Error::Unreachable`], [`Error::Channel`],
    /// [`Error::Refused`].
    pub fn open_service(&self, timeout: Option<Duration>) -> Result<ServiceClient, Error> {
        let none = || Error::Invalid(format!("{} has no service", self.address()));
        Ok(ServiceClient::open(self.service().ok_or_else(none)?, timeout)?)
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
    /// [`Error::DeviceLost`]: its node is gone or has taken the device back, or it was transferred. It
    /// may belong to
    /// another recipient now.
    pub fn check(&self) -> Result<(), Error> {
        let Some(why) = self.why_lost() else { return Ok(()) };
        let (node, address) = (self.node().to_owned(), self.address().to_owned());
        Err(Error::DeviceLost { node, address, why })
    }

    /// Returns the reason of its loss; `None`: it is not lost.
    pub(crate) fn why_lost(&self) -> Option<String> {
        let said = match self.held.lost()? {
            Fate::Died => "its agent has died",
            Fate::Revoked => "its node has taken it back",
            Fate::Unresponsive => "its node does not answer",
            Fate::NotAdmitted => "its node does not admit this program any more",
        };
        Some(self.held.why_lost().unwrap_or_else(|| said.to_owned()))
    }

    fn share(&self) -> &Share {
        &self.held.grants()[0].share
    }
}
