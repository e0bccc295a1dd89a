//! The ports by which far memory is reached.

/// The port of a run: the way to far memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PortKind {
    /// The donors' slabs are mapped.
    Shm = 1,
    /// Frames over UDP.
    Udp = 2,
    /// Requests of an RDMA device.
    Verbs = 3,
}

impl std::fmt::Display for PortKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PortKind::Shm => "shm",
            PortKind::Udp => "udp",
            PortKind::Verbs => "verbs",
        })
    }
}

impl std::str::FromStr for PortKind {
    type Err = String;

    fn from_str(text: &str) -> Result<PortKind, String> {
        let all = [PortKind::Shm, PortKind::Udp, PortKind::Verbs];
        let named = all.into_iter().find(|port| port.to_string() == text);
        named.ok_or_else(|| format!("unknown port {text:?}: use shm, udp or verbs"))
    }
}
