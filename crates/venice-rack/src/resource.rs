//! Resources that nodes offer, and devices in requests, grants and reports.

use crate::queueing::Queueing;
use serde::{Deserialize, Serialize};
use std::fmt;
use venice_wire::ByteSize;

/// The unit of storage: 1 MiB. Every other device is lent whole.
pub const STORAGE_UNIT_BYTES: u64 = 1 << 20;
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

/// The kind of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResourceKind {
    /// Memory, lent in slabs.
    Memory,
    /// Whole blocks of physical memory that the donor's kernel has released, for machines that
    /// reach them by hardware. The Monitor Node lists them and grants none.
    Window,
    /// A device that computes: a GPU, an FPGA. Lent whole.
    Accelerator,
    /// A network card. Lent whole.
    Nic,
    /// A block device, or a part of a file system. Lent by bytes.
    Storage,
}

impl ResourceKind {
    /// The kinds of devices: everything that is granted except memory.
    pub const DEVICES: [Self; 3] = [Self::Accelerator, Self::Nic, Self::Storage];

    /// Returns the name shown to users.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Window => "window",
            Self::Accelerator => "accelerator",
            Self::Nic => "nic",
            Self::Storage => "storage",
        }
    }

    /// True if it is granted device by device.
    pub fn is_device(self) -> bool {
        Self::DEVICES.contains(&self)
    }

    /// Returns the unit in which a device of this kind is lent, in bytes; 0: whole.
    pub fn device_unit_bytes(self) -> u64 {
        if self == Self::Storage { STORAGE_UNIT_BYTES } else { 0 }
    }
}

impl fmt::Display for ResourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
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
    pub fn share(&self, bytes: u64) -> DeviceShare {
        let bytes = match self.slab_bytes {
            0 => self.bytes,
            unit => bytes.div_ceil(unit).saturating_mul(unit),
        };
        let (kind, address) = (self.kind, self.address.clone());
        DeviceShare { kind, address, bytes, capabilities: self.capabilities.clone() }
    }
}

fn can_all(capabilities: &[String], wanted: &[String]) -> bool {
    wanted.iter().all(|wanted| capabilities.iter().any(|it| it.eq_ignore_ascii_case(wanted)))
}

/// A device, or a part of one, as its grant names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceShare {
    /// Its kind.
    pub kind: ResourceKind,
    /// Its name on the donor's machine.
    pub address: String,
    /// Bytes of storage lent, in whole MiB; the size of other devices, 0 if unknown.
    pub bytes: u64,
    /// Its capabilities.
    pub capabilities: Vec<String>,
}

impl DeviceShare {
    /// True if the share satisfies `request`.
    pub(crate) fn answers(&self, request: &DeviceRequest) -> bool {
        let asked = request.bytes.0;
        let is_enough = match self.kind.device_unit_bytes() {
            0 => self.bytes >= asked,
            unit => self.bytes == asked.div_ceil(unit).saturating_mul(unit),
        };
        self.kind == request.kind && is_enough && can_all(&self.capabilities, &request.capabilities)
    }

    /// Returns its amount: bytes of storage, or one whole device.
    pub(crate) fn amount(&self) -> u64 {
        if self.kind.device_unit_bytes() == 0 { 1 } else { self.bytes }
    }

    /// Returns kind and name of its device.
    pub fn device(&self) -> (ResourceKind, &str) {
        (self.kind, &self.address)
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

/// A recipient's request for one device: the paper's GetAccelerator and GetIO. The owner comes from
/// the certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRequest {
    /// The client's number for it, as for a memory request.
    pub client_id: u128,
    /// The recipient's description of itself, in words for users.
    pub recipient: String,
    /// The kind: an accelerator, a network card, or storage.
    pub kind: ResourceKind,
    /// Bytes of storage, rounded up to whole MiB; of an accelerator, its least size. 0: any.
    pub bytes: ByteSize,
    /// Capabilities the device must all have.
    pub capabilities: Vec<String>,
    /// Names of the donors to use; empty for any.
    pub donors: Vec<String>,
    /// The purpose, in words for users.
    pub purpose: String,
    /// Its queueing options.
    pub queueing: Queueing,
}

impl DeviceRequest {
    /// True if both requests are equal apart from their queueing options.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        *self == Self { queueing: self.queueing, ..other.clone() }
    }

    /// True if `spec` satisfies the request when none of it is lent.
    pub(crate) fn would_do(&self, spec: &ResourceSpec) -> bool {
        spec.kind == self.kind && spec.can(&self.capabilities) && spec.bytes >= self.bytes.0
    }

    /// Returns the amount it takes of a device: bytes of storage, or one whole device.
    pub(crate) fn amount(&self) -> u64 {
        match self.kind.device_unit_bytes() {
            0 => 1,
            unit => self.bytes.0.div_ceil(unit).saturating_mul(unit),
        }
    }

    /// Describes the requested device in words.
    pub fn wanted(&self) -> String {
        let mut text = match (self.kind, self.bytes.0) {
            (kind, 0) => kind.name().to_owned(),
            (ResourceKind::Storage, _) => format!("{} of storage", self.bytes),
            (kind, _) => format!("{kind} of {} at least", self.bytes),
        };
        if !self.capabilities.is_empty() {
            text.push_str(" with ");
            text.push_str(&self.capabilities.join(", "));
        }
        text
    }
}
