//! Meshes and tori: ports by arithmetic.

use serde::{Deserialize, Serialize};

use super::{Host, pick};
use crate::switch::PortNumber;

/// A grid of hosts with a router each, of the same number. A router has two ports a dimension, upwards
/// and downwards, and then the one to its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Grid {
    pub(super) extents: Vec<u32>,
    /// True if the ends of each dimension are joined. A ring of two is a line: it has one link.
    pub(super) is_torus: bool,
}

impl Grid {
    pub(super) fn hosts(&self) -> u64 {
        self.extents.iter().fold(1, |product: u64, extent| product.saturating_mul((*extent).into()))
    }

    pub(super) fn host_port(&self) -> PortNumber {
        2 * self.extents.len() as PortNumber
    }

    fn is_ring(&self, extent: u32) -> bool {
        self.is_torus && extent > 2
    }

    /// Returns the neighbour of a router at a port, with the neighbour's port; `None` at an end.
    pub(super) fn neighbour(&self, router: u32, port: PortNumber) -> Option<(u32, PortNumber)> {
        let dimension = usize::from(port / 2);
        let extent = *self.extents.get(dimension)?;
        let stride: u32 = self.extents[..dimension].iter().product();
        let at = router / stride % extent;
        let upwards = port.is_multiple_of(2);
        let next = match (upwards, self.is_ring(extent)) {
            (true, true) => (at + 1) % extent,
            (false, true) => (at + extent - 1) % extent,
            (true, false) => Some(at + 1).filter(|next| *next < extent)?,
            (false, false) => at.checked_sub(1)?,
        };
        Some((router - at * stride + next * stride, port ^ 1))
    }

    /// Returns the port of a router towards a host: along the first dimension in which they differ,
    /// the shorter way around a ring, either way by the hash if both are as long.
    pub(super) fn output(&self, router: u32, to: Host, hash: u32) -> PortNumber {
        let (mut here, mut there) = (router, to);
        for (dimension, extent) in (0..).zip(&self.extents) {
            let (at, want) = (here % extent, there % extent);
            (here, there) = (here / extent, there / extent);
            if at == want {
                continue;
            }
            let ahead = (want + extent - at) % extent;
            let upwards = match self.is_ring(*extent) {
                false => want > at,
                true if 2 * ahead == *extent => pick(hash, dimension, 2) == 0,
                true => 2 * ahead < *extent,
            };
            return 2 * dimension as PortNumber + PortNumber::from(!upwards);
        }
        self.host_port()
    }

    /// Returns the number of routers between two hosts, both of theirs included.
    pub(super) fn switch_hops(&self, from: Host, to: Host) -> u32 {
        let (mut from, mut to) = (from, to);
        let mut links = 0;
        for extent in &self.extents {
            let distance = (from % extent).abs_diff(to % extent);
            links += if self.is_ring(*extent) { distance.min(extent - distance) } else { distance };
            (from, to) = (from / extent, to / extent);
        }
        links + 1
    }
}
