//! A route the sender chose: the port to leave by, switch by switch.

/// The longest route a packet carries, in hops.
pub const MAX_ROUTE_HOPS: usize = 32;

/// One of a switch's ports, by number. Which way it leads is the topology's to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchPort(pub u16);

/// Ports to leave by, the first at the switch where the packet enters the network. Empty: every
/// switch chooses by the packet's destination.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SourceRoute {
    len: u8,
    ports: [SwitchPort; MAX_ROUTE_HOPS],
}

impl SourceRoute {
    /// No route: the switches choose.
    pub const EMPTY: Self = Self { len: 0, ports: [SwitchPort(0); MAX_ROUTE_HOPS] };

    /// The route along `ports`; `None` if they are more than [`MAX_ROUTE_HOPS`].
    pub fn new(ports: &[SwitchPort]) -> Option<Self> {
        let mut route = Self::EMPTY;
        ports.iter().all(|port| route.push(*port)).then_some(route)
    }

    /// Adds a hop at the end; false if there is no room for it.
    #[must_use]
    pub fn push(&mut self, port: SwitchPort) -> bool {
        let Some(last) = self.ports.get_mut(usize::from(self.len)) else { return false };
        *last = port;
        self.len += 1;
        true
    }

    /// The hops, first to last.
    pub fn ports(&self) -> &[SwitchPort] {
        &self.ports[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for SourceRoute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.ports().iter().map(|port| port.0)).finish()
    }
}
