//! Resources that nodes offer, and the shares of them that grants hold.

use crate::want::Want;
use serde::{Deserialize, Serialize};
use venice_wire::SLAB_BYTES;

pub use crate::kind::ResourceKind;

/// Most devices a node may offer.
pub const MAX_DEVICES: usize = 256;
/// Most grants of a node's devices at a time: each heartbeat lists them all.
pub const MAX_DEVICE_GRANTS: usize = 1024;
/// Most device grants of one user at a time, on all nodes.
pub const MAX_DEVICE_GRANTS_OF_USER: usize = 256;
/// Most capabilities of a device, and most that a request may name.
pub const MAX_CAPABILITIES: usize = 32;
/// Most bytes of all capabilities of a device together.
pub const MAX_CAPABILITIES_BYTES: usize = 1024;

pub(crate) fn too_many_grants() -> String {
    format!("its node has {MAX_DEVICE_GRANTS} grants of devices, the most at a time")
}

/// One resource of a node: a line of the Resource Registration Table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceSpec {
    /// Its kind.
    pub kind: ResourceKind,
    /// Its address in words for users, for example `udp:10.0.0.2:7500`; a device's name on its own
    /// machine, for example `/dev/nvidia0`.
    pub address: String,
    /// Its whole size in bytes, lent or not; for a device 0 if it has no size or it is unknown.
    pub bytes: u64,
    /// The unit it is lent in, in bytes; 0: whole.
    pub slab_bytes: u64,
    /// Its capabilities, for example `crma`, `rdma`, `shm`, `udp`; of a device `gpu`, `cuda`,
    /// `25Gbps`.
    pub capabilities: Vec<String>,
}

impl ResourceSpec {
    /// True if it has all these capabilities, regardless of case.
    pub fn can(&self, capabilities: &[String]) -> bool {
        can_all(&self.capabilities, capabilities)
    }

    /// Returns the share that a grant of `bytes` gets, in whole units; a device that is lent whole
    /// is granted whole.
    pub fn share(&self, bytes: u64) -> Share {
        let bytes = match self.slab_bytes {
            0 => self.bytes,
            unit => bytes.div_ceil(unit).saturating_mul(unit),
        };
        let (kind, address) = (self.kind, self.address.clone());
        Share { kind, address, bytes, capabilities: self.capabilities.clone() }
    }

    /// True if none other than this is the device of that kind and name.
    pub(crate) fn is_device(&self, device: (ResourceKind, &str)) -> bool {
        (self.kind, &*self.address) == device
    }
}

fn can_all(capabilities: &[String], wanted: &[String]) -> bool {
    wanted.iter().all(|wanted| capabilities.iter().any(|it| it.eq_ignore_ascii_case(wanted)))
}

/// The part of a donor's resources that one grant holds: slabs of its pool, a device, or a part of
/// one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Its kind.
    pub kind: ResourceKind,
    /// A device's name on the donor's machine; empty for slabs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// Bytes, in whole units; of a device that is lent whole its size, 0 if unknown.
    pub bytes: u64,
    /// A device's capabilities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
}

impl Share {
    /// Creates a share of this many slabs.
    pub fn of_slabs(slabs: u32) -> Self {
        Self {
            kind: ResourceKind::Memory,
            address: String::new(),
            bytes: u64::from(slabs) * SLAB_BYTES,
            capabilities: Vec::new(),
        }
    }

    /// Returns its slabs; 0 for a device.
    pub fn slabs(&self) -> u32 {
        match self.kind.is_device() {
            true => 0,
            false => u32::try_from(self.bytes / SLAB_BYTES).unwrap_or(u32::MAX),
        }
    }

    /// Returns kind and name of its device; `None` for slabs.
    pub fn device(&self) -> Option<(ResourceKind, &str)> {
        self.kind.is_device().then_some((self.kind, &*self.address))
    }

    /// Returns its amount: bytes of a divisible kind, or one whole device.
    pub fn amount(&self) -> u64 {
        if self.kind.is_divisible() { self.bytes } else { 1 }
    }

    /// True if it has all these capabilities, regardless of case.
    pub(crate) fn can(&self, capabilities: &[String]) -> bool {
        can_all(&self.capabilities, capabilities)
    }

    /// True if it satisfies one piece of `want`.
    pub(crate) fn answers(&self, want: &Want) -> bool {
        let is_enough = match self.kind.is_divisible() {
            true => self.bytes == self.kind.in_units(want.bytes.0),
            false => self.bytes >= want.bytes.0,
        };
        self.kind == want.kind && is_enough && self.can(&want.capabilities)
    }
}

/// The health of a donor's device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceReport {
    /// Its kind.
    pub kind: ResourceKind,
    /// Its name on the donor's machine.
    pub address: String,
    /// Its fault; empty if it is healthy.
    pub fault: String,
}
