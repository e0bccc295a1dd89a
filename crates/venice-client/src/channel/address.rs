//! Addresses that a user can type.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use venice_recipient::PortKind;
use venice_wire::PortCapabilities;

use super::Error;

/// Address of a listener or of registered memory: a port, and a place on it.
///
/// Its text is `shm:PATH` (a unix socket's path, at most 107 bytes), `udp:HOST:PORT` or
/// `verbs:HOST:PORT` (a TCP port, through which the devices are introduced). HOST is a name, an
/// IPv4 address, or an IPv6 address in brackets. A listener may give port 0:
/// [`super::Listener::address`] then returns the chosen one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    port: PortKind,
    place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Path(PathBuf),
    Host(String),
}

impl Address {
    /// Returns the address of a unix socket's path, for programs of one host.
    pub fn shm(path: impl Into<PathBuf>) -> Self {
        Self { port: PortKind::Shm, place: Place::Path(path.into()) }
    }

    /// Returns a UDP address.
    pub fn udp(address: SocketAddr) -> Self {
        Self { port: PortKind::Udp, place: Place::Host(address.to_string()) }
    }

    /// Returns the address of an RDMA device's TCP port.
    pub fn verbs(address: SocketAddr) -> Self {
        Self { port: PortKind::Verbs, place: Place::Host(address.to_string()) }
    }

    /// Returns the port.
    pub fn port(&self) -> PortKind {
        self.port
    }

    /// Returns what can be done over its port.
    pub fn capabilities(&self) -> PortCapabilities {
        self.port.capabilities()
    }

    /// Returns the same port's address at a socket address.
    pub(super) fn at(&self, address: SocketAddr) -> Self {
        Self { port: self.port, place: Place::Host(address.to_string()) }
    }

    pub(super) fn path(&self) -> Option<&Path> {
        match &self.place {
            Place::Path(path) => Some(path),
            Place::Host(_) => None,
        }
    }

    /// Resolves the host's name; blocks meanwhile.
    pub(super) fn resolve(&self) -> Result<SocketAddr, Error> {
        let invalid = |why: String| Error::Address { text: self.to_string(), why };
        let Place::Host(host) = &self.place else { return Err(invalid("not a host".into())) };
        let mut found = host.to_socket_addrs().map_err(|error| invalid(error.to_string()))?;
        found.next().ok_or_else(|| invalid("the host has no address".into()))
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = |why: &str| Error::Address { text: text.into(), why: why.into() };
        let (port, place) = text.split_once(':').ok_or_else(|| invalid("no port is named"))?;
        let port: PortKind = port.parse().map_err(|_| invalid("unknown port"))?;
        let place = if !port.capabilities().leaves_machine {
            if place.is_empty() {
                return Err(invalid("no path"));
            }
            Place::Path(place.into())
        } else {
            let number = place.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            let (host, number) = number.ok_or_else(|| invalid("no host and port number"))?;
            if number.parse::<u16>().is_err() {
                return Err(invalid("the port number is not 0 to 65535"));
            }
            if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
                return Err(invalid("an IPv6 address stands in brackets"));
            }
            Place::Host(place.into())
        };
        Ok(Self { port, place })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Path(path) => write!(f, "{}:{}", self.port, path.display()),
            Place::Host(host) => write!(f, "{}:{host}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["shm:/run/talk.sock", "shm:talk:7", "udp:host.example:7000", "udp:[::1]:0"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let verbs: Address = "verbs:10.0.0.7:7471".parse().unwrap();
        assert_eq!(verbs.resolve().unwrap().port(), 7471);
        assert!(!verbs.capabilities().messages && verbs.capabilities().memory);
    }

    #[test]
    fn invalid_addresses_name_remedy() {
        for text in
            ["", "shm:", "talk.sock", "tcp:h:1", "udp:h", "udp::1", "udp:h:70000", "udp:::1:7"]
        {
            let said = text.parse::<Address>().unwrap_err().to_string();
            assert!(said.contains("udp:HOST:PORT"), "{said}");
        }
    }

    proptest! {
        #[test]
        fn parser_never_panics(text in "\\PC{0,40}") {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
            }
        }
    }
}
