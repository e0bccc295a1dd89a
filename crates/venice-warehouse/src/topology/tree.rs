//! Trees of up to three levels, with parallel ways: ports by arithmetic.

use serde::{Deserialize, Serialize};

use super::{Host, pick};
use crate::switch::PortNumber;

/// The peer of a port to the level below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Below {
    Host(Host),
    Switch(u32, PortNumber),
}

/// A tree. Switches are numbered ToRs first, then array switches array by array, then datacenter
/// switches group by group. Ports are numbered downwards first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tree {
    pub(super) hosts_per_rack: u32,
    pub(super) racks_per_array: u32,
    pub(super) arrays: u32,
    /// Links upwards of a ToR; 0 if it is alone.
    pub(super) tor_uplinks: u32,
    pub(super) array_switches: u32,
    /// Links upwards of an array switch; 0 if there is one array.
    pub(super) array_uplinks: u32,
    pub(super) datacenter_switches: u32,
    /// Groups of datacenter switches: array switch `s` of each array has links to group `s % groups`.
    pub(super) groups: u32,
}

/// A switch by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Tor { rack: u32 },
    Array { array: u32, index: u32 },
    Datacenter { group: u32, index: u32 },
}

impl Tree {
    pub(super) fn hosts(&self) -> u64 {
        [self.racks_per_array, self.arrays]
            .iter()
            .fold(u64::from(self.hosts_per_rack), |product, n| product.saturating_mul((*n).into()))
    }

    pub(super) fn racks(&self) -> u32 {
        self.racks_per_array * self.arrays
    }

    /// Returns the number of switches of a level.
    pub(super) fn switches_of(&self, level: u8) -> u64 {
        match level {
            0 => self.racks().into(),
            1 => u64::from(self.arrays) * u64::from(self.array_switches),
            _ => self.datacenter_switches.into(),
        }
    }

    pub(super) fn switches(&self) -> u32 {
        self.racks() + self.arrays * self.array_switches + self.datacenter_switches
    }

    /// Returns the level of a switch: 0 for ToRs.
    pub(super) fn level(&self, switch: u32) -> u8 {
        match self.place(switch) {
            Place::Tor { .. } => 0,
            Place::Array { .. } => 1,
            Place::Datacenter { .. } => 2,
        }
    }

    fn place(&self, switch: u32) -> Place {
        let Some(above) = switch.checked_sub(self.racks()) else {
            return Place::Tor { rack: switch };
        };
        match above.checked_sub(self.arrays * self.array_switches) {
            None => Place::Array {
                array: above / self.array_switches,
                index: above % self.array_switches,
            },
            Some(top) => {
                Place::Datacenter { group: top / self.in_group(), index: top % self.in_group() }
            }
        }
    }

    /// Returns the number of datacenter switches of a group.
    fn in_group(&self) -> u32 {
        self.datacenter_switches / self.groups
    }

    /// Returns the number of parallel links between a ToR and an array switch.
    fn tor_links(&self) -> u32 {
        self.tor_uplinks / self.array_switches.max(1)
    }

    /// Returns the number of parallel links between an array switch and a datacenter switch.
    fn array_links(&self) -> u32 {
        self.array_uplinks / self.in_group().max(1)
    }

    /// Returns the number of an array's switches that have links to one datacenter switch.
    fn reached(&self) -> u32 {
        self.array_switches / self.groups
    }

    /// Returns the ports of a switch to the level below, and all of its ports.
    pub(super) fn ports(&self, level: u8) -> (u64, u64) {
        let product = |a: u32, b: u32| u64::from(a) * u64::from(b);
        let (down, up) = match level {
            0 => (self.hosts_per_rack.into(), self.tor_uplinks),
            1 => (product(self.racks_per_array, self.tor_links()), self.array_uplinks),
            _ => (product(self.arrays, self.reached()) * u64::from(self.array_links()), 0),
        };
        (down, down + u64::from(up))
    }

    /// Returns the peer of a port to the level below, `None` for other ports.
    pub(super) fn below(&self, switch: u32, port: PortNumber) -> Option<Below> {
        let port = u32::from(port);
        if u64::from(port) >= self.ports(self.level(switch)).0 {
            return None;
        }
        Some(match self.place(switch) {
            Place::Tor { rack } => Below::Host(rack * self.hosts_per_rack + port),
            Place::Array { array, index } => {
                let (rack, link) = (port / self.tor_links(), port % self.tor_links());
                let up = self.hosts_per_rack + link * self.array_switches + index;
                Below::Switch(array * self.racks_per_array + rack, up as PortNumber)
            }
            Place::Datacenter { group, index } => {
                let (from, link) = (port / self.array_links(), port % self.array_links());
                let (array, at) = (from / self.reached(), from % self.reached());
                let lower = self.racks() + array * self.array_switches + at * self.groups + group;
                let up = self.ports(1).0 as u32 + link * self.in_group() + index;
                Below::Switch(lower, up as PortNumber)
            }
        })
    }

    /// Returns the port of a switch towards a host, one of several by the hash.
    pub(super) fn output(&self, switch: u32, to: Host, hash: u32) -> PortNumber {
        let rack = to / self.hosts_per_rack;
        let port = match self.place(switch) {
            Place::Tor { rack: own } if own == rack => to % self.hosts_per_rack,
            Place::Tor { .. } => self.hosts_per_rack + pick(hash, 0, self.tor_uplinks),
            Place::Array { array, .. } if array == rack / self.racks_per_array => {
                let first = rack % self.racks_per_array * self.tor_links();
                first + pick(hash, 1, self.tor_links())
            }
            Place::Array { .. } => {
                self.racks_per_array * self.tor_links() + pick(hash, 2, self.array_uplinks)
            }
            Place::Datacenter { .. } => {
                let ways = self.reached() * self.array_links();
                rack / self.racks_per_array * ways + pick(hash, 3, ways)
            }
        };
        port as PortNumber
    }

    /// Returns the number of switches between two hosts.
    pub(super) fn switch_hops(&self, from: Host, to: Host) -> u32 {
        let (from, to) = (from / self.hosts_per_rack, to / self.hosts_per_rack);
        if from == to {
            1
        } else if from / self.racks_per_array == to / self.racks_per_array {
            3
        } else {
            5
        }
    }
}
