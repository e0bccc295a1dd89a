//! A route chosen by the sender: the port by which to leave each switch.

/// The longest route a packet carries, in hops.
pub const MAX_ROUTE_HOPS: usize = 32;

/// The number of one of a switch's ports. The topology defines where it leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchPort(pub u16);

/// The ports by which to leave, beginning at the switch where the packet enters the network. Empty:
/// every switch chooses by the packet's destination.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SourceRoute {
    len: u8,
    ports: [SwitchPort; MAX_ROUTE_HOPS],
}

impl SourceRoute {
    /// The empty route: the switches choose.
    pub const EMPTY: Self = Self { len: 0, ports: [SwitchPort(0); MAX_ROUTE_HOPS] };

    /// Returns the route along `ports`; `None` if they are more than [`MAX_ROUTE_HOPS`].
    pub fn new(ports: &[SwitchPort]) -> Option<Self> {
        let mut route = Self::EMPTY;
        ports.iter().all(|port| route.push(*port)).then_some(route)
    }

    /// Adds a hop at the end; returns false if there is no room for it.
    #[must_use]
    pub fn push(&mut self, port: SwitchPort) -> bool {
        let Some(last) = self.ports.get_mut(usize::from(self.len)) else { return false };
        *last = port;
        self.len += 1;
        true
    }

    /// Returns the hops, first to last.
    pub fn ports(&self) -> &[SwitchPort] {
        &self.ports[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for SourceRoute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.ports().iter().map(|port| port.0)).finish()
    }
}
