//! Ports by name.

use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// A port: a physical attachment over which a recipient reaches a donor, or a program another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortId {
    /// Memory of one host, mapped by descriptor.
    Shm,
    /// Messages through shared memory of one host.
    Ring,
    /// Datagrams.
    Udp,
    /// An RDMA device.
    Verbs,
}

impl PortId {
    /// All ports.
    pub const ALL: [Self; 4] = [Self::Shm, Self::Ring, Self::Udp, Self::Verbs];

    /// Returns the name that users and messages carry.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Ring => "ring",
            Self::Udp => "udp",
            Self::Verbs => "verbs",
        }
    }
}

/// Capabilities of a port. [`PortId::capabilities`] is their only table: refusals,
/// verdicts and documents are read from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortCapabilities {
    /// Memory can be read and written over it.
    pub memory: bool,
    /// Two programs can exchange messages and streams over it.
    pub messages: bool,
    /// Memory is mapped into the recipient: a page is an address.
    pub mapped: bool,
    /// Memory is read and written without the donor's processor.
    pub one_sided: bool,
    /// It encrypts and authenticates, given a key. What travels over a port that does not leave the
    /// machine is visible to this machine alone.
    pub encrypts: bool,
    /// It reaches other machines.
    pub leaves_machine: bool,
    /// Most grants that a recipient reaches at a time, or as many as it began with if those are
    /// more; `None`: no limit.
    pub max_grants: Option<u32>,
}

impl PortCapabilities {
    /// Of a port that can do nothing: each port names what it can.
    const NONE: Self = Self {
        memory: false,
        messages: false,
        mapped: false,
        one_sided: false,
        encrypts: false,
        leaves_machine: false,
        max_grants: None,
    };

    /// True if a device accesses memory, which must be registered with it: no file is, and a forked
    /// child registers nothing.
    pub const fn registers(&self) -> bool {
        self.one_sided && !self.mapped
    }

    /// Returns the most grants at a time of a recipient that began with `first`.
    pub const fn most_grants(&self, first: usize) -> usize {
        match self.max_grants {
            None => usize::MAX,
            Some(most) if first > most as usize => first,
            Some(most) => most as usize,
        }
    }
}

impl PortId {
    /// Returns what can be done over the port.
    pub const fn capabilities(self) -> PortCapabilities {
        let none = PortCapabilities::NONE;
        match self {
            Self::Shm => PortCapabilities {
                memory: true,
                messages: true,
                mapped: true,
                one_sided: true,
                ..none
            },
            Self::Ring => PortCapabilities { messages: true, ..none },
            Self::Udp => PortCapabilities {
                memory: true,
                messages: true,
                encrypts: true,
                leaves_machine: true,
                ..none
            },
            // A thread has queue pairs for so many, whenever it opened its device.
            Self::Verbs => PortCapabilities {
                memory: true,
                one_sided: true,
                leaves_machine: true,
                max_grants: Some(16),
                ..none
            },
        }
    }
}

/// A port by which far memory is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u32)]
pub enum PortKind {
    /// The donors' slabs are mapped.
    #[default]
    Shm = 1,
    /// Frames over UDP.
    Udp = 2,
    /// Requests of an RDMA device.
    Verbs = 3,
}

impl PortKind {
    /// All ports of far memory.
    pub const ALL: [Self; 3] = [Self::Shm, Self::Udp, Self::Verbs];

    /// Returns the port.
    pub const fn id(self) -> PortId {
        match self {
            Self::Shm => PortId::Shm,
            Self::Udp => PortId::Udp,
            Self::Verbs => PortId::Verbs,
        }
    }

    /// Returns what can be done over it.
    pub const fn capabilities(self) -> PortCapabilities {
        self.id().capabilities()
    }
}

impl fmt::Display for PortKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id().fmt(f)
    }
}

impl FromStr for PortKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|port| port.id().name() == name);
        named.ok_or_else(|| format!("unknown port {name:?}: use shm, udp or verbs"))
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An unknown name of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownPort;

impl fmt::Display for UnknownPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown port: expected shm, ring, udp or verbs")
    }
}

impl core::error::Error for UnknownPort {}

impl FromStr for PortId {
    type Err = UnknownPort;

    fn from_str(name: &str) -> Result<Self, UnknownPort> {
        Self::ALL.into_iter().find(|port| port.name() == name).ok_or(UnknownPort)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_far_memory_carry_memory() {
        for port in PortId::ALL {
            let kind = PortKind::ALL.into_iter().find(|kind| kind.id() == port);
            assert_eq!(kind.is_some(), port.capabilities().memory, "{port}");
            assert_eq!(port.name().parse(), Ok(port));
            assert_eq!(port.name().parse().ok(), kind);
        }
    }

    #[test]
    fn mapped_memory_stays_on_its_machine() {
        for can in PortId::ALL.map(PortId::capabilities) {
            assert!(!can.mapped || (can.memory && can.one_sided && !can.leaves_machine), "{can:?}");
            assert!(!can.registers() || can.max_grants.is_some(), "{can:?}");
        }
    }

    #[test]
    fn first_grants_are_never_too_many() {
        let verbs = PortId::Verbs.capabilities();
        assert_eq!((verbs.most_grants(1), verbs.most_grants(40)), (16, 40));
        assert_eq!(PortId::Udp.capabilities().most_grants(1), usize::MAX);
    }
}
