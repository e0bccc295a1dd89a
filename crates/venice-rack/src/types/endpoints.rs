//! Places at which a recipient reaches what was granted.

use serde::{Deserialize, Serialize};
use std::fmt;
use venice_wire::{GrantId, PortId, SealKey};

/// A place at which a recipient reaches what was granted: one port of a donor, or of a service.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The port.
    #[serde(with = "port_name")]
    pub port: PortId,
    /// Its address: `host:port` for udp and verbs, the path of a unix socket for shm and ring.
    pub address: String,
    /// Bytes that the port needs beside the address. udp: the 32 bytes of the key that seals
    /// datagrams, none in a rack without protection. ring: the boot id of the machine on which the
    /// path is, as text. shm, verbs: none.
    #[serde(with = "hex", default, skip_serializing_if = "Vec::is_empty")]
    pub extra: Vec<u8>,
}

impl Endpoint {
    /// Returns an endpoint without extra bytes.
    pub fn new(port: PortId, address: impl Into<String>) -> Self {
        Self { port, address: address.into(), extra: Vec::new() }
    }
}

impl Endpoint {
    /// Returns a donor's endpoints for memory. An empty address is that of a port it does not have.
    pub fn of_memory(udp_addr: &str, seal_key: Option<SealKey>, shm_socket: &str) -> Vec<Self> {
        let extra = seal_key.map_or_else(Vec::new, |key| key.0.to_vec());
        let udp = Self { extra, ..Self::new(PortId::Udp, udp_addr) };
        let mut all = vec![udp, Self::new(PortId::Shm, shm_socket)];
        all.retain(|endpoint| !endpoint.address.is_empty());
        all
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.port, self.address)
    }
}

// Extra bytes may be a key.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

/// The way to the service of a granted device.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceAccess {
    /// The grant.
    pub grant: GrantId,
    /// The service's name.
    pub service: String,
    /// The secret of the grant, shown in the hello to the service.
    #[serde(with = "hex_secret")]
    pub secret: [u8; 32],
    /// Places at which it listens, the preferred first.
    pub endpoints: Vec<Endpoint>,
}

// Without the secret.
impl fmt::Debug for ServiceAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceAccess({} {:?})", self.service, self.endpoints)
    }
}

/// The state of a grant's service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceState {
    /// The grant has none: its device is used without one.
    None,
    /// It is being started.
    Starting,
    /// It listens.
    Serving(ServiceAccess),
    /// It has ended, and its grant with it, for the reason given.
    Ended(String),
}

mod port_name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use venice_wire::PortId;

    pub(super) fn serialize<S: Serializer>(port: &PortId, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(port.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PortId, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        let digit = |byte: &u8| (*byte as char).to_digit(16).map(|digit| digit as u8);
        let pair = |pair: &[u8]| Some(digit(pair.first()?)? << 4 | digit(pair.get(1)?)?);
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(pair).collect();
        bytes.ok_or_else(|| D::Error::custom("expected pairs of hexadecimal digits"))
    }
}

mod hex_secret {
    use serde::{Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(secret: &[u8; 32], to: S) -> Result<S::Ok, S::Error> {
        super::hex::serialize(secret, to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[u8; 32], D::Error> {
        let bytes = super::hex::deserialize(from)?;
        bytes.try_into().map_err(|_| D::Error::custom("expected 32 bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_roundtrips_as_json() {
        let udp = Endpoint { extra: vec![0, 0xab], ..Endpoint::new(PortId::Udp, "10.0.0.1:7") };
        let access = ServiceAccess {
            grant: GrantId(7),
            service: "echo".into(),
            secret: [0x5c; 32],
            endpoints: vec![udp, Endpoint::new(PortId::Ring, "/run/a b")],
        };
        let text = serde_json::to_string(&access).unwrap();
        assert_eq!(serde_json::from_str::<ServiceAccess>(&text).unwrap(), access);
        assert!(text.contains(r#"{"port":"udp","address":"10.0.0.1:7","extra":"00ab"}"#), "{text}");
        let shown = format!("{access:?}");
        assert!(!shown.contains("5c") && !shown.contains("ab}"), "{shown}");
        for wrong in ["5", "5g", "é"] {
            let text = text.replace("00ab", wrong);
            assert!(serde_json::from_str::<ServiceAccess>(&text).is_err(), "{wrong}");
        }
    }
}
