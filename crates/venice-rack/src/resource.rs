//! What nodes offer, and devices as they are asked for, granted and reported.

use crate::queueing::Queueing;
use serde::{Deserialize, Serialize};
use std::fmt;
use venice_wire::ByteSize;

/// What storage is lent in: 1 MiB. Every other device is lent as a whole.
pub const STORAGE_UNIT_BYTES: u64 = 1 << 20;
/// Most devices that a node may offer.
pub const MAX_DEVICES: usize = 256;
/// Most grants of a node's devices at a time: its heartbeat names them all.
pub const MAX_DEVICE_GRANTS: usize = 1024;
/// Most grants of devices that one user may have at a time, on all nodes.
pub const MAX_DEVICE_GRANTS_OF_USER: usize = 256;
/// Most capabilities of a device, and most that a request may name.
pub const MAX_CAPABILITIES: usize = 32;
/// Longest all capabilities of a device may be together, in bytes.
pub const MAX_CAPABILITIES_BYTES: usize = 1024;

pub(crate) fn too_many_grants() -> String {
    format!("its node has {MAX_DEVICE_GRANTS} grants of devices, the most at a time")
}

/// What a resource is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResourceKind {
    /// Memory, lent in slabs.
    Memory,
    /// Whole blocks of physical memory that the donor's kernel has let go of, for who can reach
    /// them by the hardware. The Monitor Node lists them and grants nothing of them.
    Window,
    /// A device that computes: a GPU, an FPGA. Lent whole.
    Accelerator,
    /// A network card. Lent whole.
    Nic,
    /// A block device, or a part of a file system. Lent by bytes.
    Storage,
}

impl ResourceKind {
    /// The devices: what is granted and is no memory.
    pub const DEVICES: [Self; 3] = [Self::Accelerator, Self::Nic, Self::Storage];

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Window => "window",
            Self::Accelerator => "accelerator",
            Self::Nic => "nic",
            Self::Storage => "storage",
        }
    }

    /// Whether it is granted device by device.
    pub fn is_device(self) -> bool {
        Self::DEVICES.contains(&self)
    }

    /// The unit in which a device of this kind is lent, in bytes; 0: whole.
    pub fn device_unit_bytes(self) -> u64 {
        if self == Self::Storage { STORAGE_UNIT_BYTES } else { 0 }
    }
}

impl fmt::Display for ResourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One resource a node offers: a line of the Resource Registration Table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceSpec {
    /// What it is.
    pub kind: ResourceKind,
    /// Where it is reached, in words a person can use, for example `udp:10.0.0.2:7500`; a device's
    /// name on its own machine, for example `/dev/nvidia0`.
    pub address: String,
    /// Its whole size, lent or not; of a device 0 where it has none, or nobody knows.
    pub bytes: u64,
    /// The unit it is lent in; 0: whole.
    pub slab_bytes: u64,
    /// What it can do, for example `crma`, `rdma`, `shm`, `udp`; of a device `gpu`, `cuda`,
    /// `25Gbps`.
    pub capabilities: Vec<String>,
}

impl ResourceSpec {
    /// True if it can do all of these; large and small letters are one.
    pub fn can(&self, capabilities: &[String]) -> bool {
        can_all(&self.capabilities, capabilities)
    }

    /// What a grant of so many bytes of it is; a device that is lent whole is granted whole.
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
    /// What it is.
    pub kind: ResourceKind,
    /// Its name on the donor's machine.
    pub address: String,
    /// Of storage how much was lent, in whole MiB; of other devices their size, 0 where nobody
    /// knows.
    pub bytes: u64,
    /// What it can do.
    pub capabilities: Vec<String>,
}

impl DeviceShare {
    /// Whether that is what was asked for.
    pub(crate) fn answers(&self, request: &DeviceRequest) -> bool {
        let asked = request.bytes.0;
        let is_enough = match self.kind.device_unit_bytes() {
            0 => self.bytes >= asked,
            unit => self.bytes == asked.div_ceil(unit).saturating_mul(unit),
        };
        self.kind == request.kind && is_enough && can_all(&self.capabilities, &request.capabilities)
    }

    /// How much of its device it is: bytes of storage, or one whole device.
    pub(crate) fn amount(&self) -> u64 {
        if self.kind.device_unit_bytes() == 0 { 1 } else { self.bytes }
    }

    /// Which device it is of.
    pub fn device(&self) -> (ResourceKind, &str) {
        (self.kind, &self.address)
    }
}

/// How a device of a donor is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceReport {
    /// What it is.
    pub kind: ResourceKind,
    /// Its name there.
    pub address: String,
    /// What is wrong with it; empty: nothing.
    pub fault: String,
}

/// A recipient's request for one device: the paper's GetAccelerator and GetIO. Whose it is, its
/// certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRequest {
    /// As that of a request for memory.
    pub client_id: u128,
    /// Who borrows, in words for people.
    pub recipient: String,
    /// What is wanted: an accelerator, a network card, or storage.
    pub kind: ResourceKind,
    /// How much storage, rounded up to whole MiB; of an accelerator how large it is to be at
    /// least. 0: any.
    pub bytes: ByteSize,
    /// What it has to be able to do, all of it.
    pub capabilities: Vec<String>,
    /// Names of the donors to use; empty for any.
    pub donors: Vec<String>,
    /// What for, in words for people.
    pub purpose: String,
    /// How it waits where none is to be had.
    pub queueing: Queueing,
}

impl DeviceRequest {
    /// Whether it is the same, however it waits.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        *self == Self { queueing: self.queueing, ..other.clone() }
    }

    /// Whether a device would do if nobody had any of it.
    pub(crate) fn would_do(&self, spec: &ResourceSpec) -> bool {
        spec.kind == self.kind && spec.can(&self.capabilities) && spec.bytes >= self.bytes.0
    }

    /// How much of a device it takes: bytes of storage, or one whole device.
    pub(crate) fn amount(&self) -> u64 {
        match self.kind.device_unit_bytes() {
            0 => 1,
            unit => self.bytes.0.div_ceil(unit).saturating_mul(unit),
        }
    }

    /// What is wanted, in words.
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
