//! Routes that a packet has with it.

use serde::{Deserialize, Serialize};

use crate::switch::PortNumber;

/// The output ports of a packet at the switches on its way, at most [`SourceRoute::MOST`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceRoute {
    ports: [PortNumber; Self::MOST],
    at: u8,
    len: u8,
}

impl SourceRoute {
    /// The most switches on a way.
    pub const MOST: usize = 15;

    /// Makes a route; `None` if it has too many ports.
    pub fn new(ports: impl IntoIterator<Item = PortNumber>) -> Option<Self> {
        let mut route = Self::default();
        for port in ports {
            *route.ports.get_mut(usize::from(route.len))? = port;
            route.len += 1;
        }
        Some(route)
    }

    /// Removes the port at the next switch; `None` at the end of the way.
    pub fn take(&mut self) -> Option<PortNumber> {
        if self.at == self.len {
            return None;
        }
        self.at += 1;
        Some(self.ports[usize::from(self.at) - 1])
    }

    /// Returns the number of switches still on the way.
    pub fn remaining(&self) -> usize {
        usize::from(self.len - self.at)
    }
}
