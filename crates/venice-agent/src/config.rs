//! How an agent is set up.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};
use venice_wire::{ByteSize, SLAB_BYTES};

use crate::{AgentError, OnReady};

/// The configuration; a TOML file has the same keys, and any other key in it is an error.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentConfig {
    /// The node's name, unique in the rack and the same at every start. It has no default.
    pub name: String,
    /// `host:port` of the Monitor Node.
    pub monitor: String,
    /// How much memory to lend, in whole slabs; in a file a number of bytes or a text as
    /// `"4GiB"`. It has no default.
    #[serde(deserialize_with = "size")]
    pub lend: ByteSize,
    /// `ip:port` to answer the control plane on; port 0 lets the system choose.
    pub listen: String,
    /// `ip:port` to answer fabric packets on; port 0 lets the system choose. The default is the
    /// address of `listen`, port 0.
    pub udp_listen: Option<String>,
    /// Path of the unix socket that hands memory to recipients on this host; none by default.
    pub shm_socket: Option<PathBuf>,
    /// The address of this machine that others reach it at. Needed when `listen` is a wildcard
    /// (`0.0.0.0`), which says nothing to others.
    pub advertise: Option<IpAddr>,
    /// Seconds that memory stays set aside for a grant which the Monitor Node does not complete.
    pub prepare_timeout_s: f64,
    /// Called when the agent listens.
    #[serde(skip)]
    pub on_ready: OnReady,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            monitor: "127.0.0.1:7470".into(),
            lend: ByteSize(0),
            listen: "127.0.0.1:0".into(),
            udp_listen: None,
            shm_socket: None,
            advertise: None,
            prepare_timeout_s: 10.0,
            on_ready: OnReady::default(),
        }
    }
}

/// The configuration's addresses, read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) control: SocketAddr,
    pub(crate) udp: SocketAddr,
}

impl AgentConfig {
    /// Checks everything that can be checked without touching the machine.
    pub(crate) fn validate(&self) -> Result<Addresses, AgentError> {
        let wrong = |text: String| Err(AgentError::Config(text));
        if self.name.trim().is_empty() {
            return wrong("a node needs a name".into());
        }
        if self.lend.0 < SLAB_BYTES {
            let (lend, slab) = (self.lend, ByteSize(SLAB_BYTES));
            return wrong(format!("lend is {lend}: a donor lends at least one slab, {slab}"));
        }
        // A day: longer times are taken for mistakes.
        if !(0.001..=86_400.0).contains(&self.prepare_timeout_s) {
            return wrong(format!(
                "prepare_timeout_s is {}: it has to be between 0.001 and 86400 seconds",
                self.prepare_timeout_s
            ));
        }
        let control = address("listen", &self.listen)?;
        let udp = match &self.udp_listen {
            Some(text) => address("udp_listen", text)?,
            None => SocketAddr::new(control.ip(), 0),
        };
        for (key, address) in [("listen", control), ("udp_listen", udp)] {
            if address.ip().is_unspecified() && self.advertise.is_none() {
                return wrong(format!(
                    "{key} is {address}, which others cannot call: set advertise to this \
                     machine's address"
                ));
            }
        }
        Ok(Addresses { control, udp })
    }

    /// What others are told to call: a bound address, its wildcard replaced.
    pub(crate) fn advertised(&self, bound: SocketAddr) -> String {
        let ip = self.advertise.unwrap_or_else(|| bound.ip());
        SocketAddr::new(ip, bound.port()).to_string()
    }
}

fn address(key: &str, text: &str) -> Result<SocketAddr, AgentError> {
    text.parse().map_err(|_| {
        AgentError::Config(format!("{key} is {text:?}: write it IP:PORT, as in 127.0.0.1:0"))
    })
}

/// A size as a text (`"4GiB"`) or a number of bytes.
fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ByteSize, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Bytes(u64),
        Text(String),
    }
    match Written::deserialize(deserializer)? {
        Written::Bytes(bytes) => Ok(ByteSize(bytes)),
        Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> AgentConfig {
        toml::from_str(&format!("name = \"n\"\nlend = \"64MiB\"\n{text}")).unwrap()
    }

    fn complaint(text: &str) -> String {
        config(text).validate().unwrap_err().to_string()
    }

    #[test]
    fn a_file_may_leave_keys_out_but_not_make_them_up() {
        let config = config("");
        assert_eq!((config.lend, config.monitor.as_str()), (ByteSize::mib(64), "127.0.0.1:7470"));
        let addresses = config.validate().unwrap();
        assert_eq!(addresses.udp, "127.0.0.1:0".parse().unwrap());
        let error = toml::from_str::<AgentConfig>("lent = 5").unwrap_err();
        assert!(error.to_string().contains("lent"), "{error}");
        assert_eq!(toml::from_str::<AgentConfig>("lend = 5").unwrap().lend, ByteSize(5));
        assert!(toml::from_str::<AgentConfig>("lend = \"5 apples\"").is_err());
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        assert!(AgentConfig::default().validate().unwrap_err().to_string().contains("name"));
        assert!(complaint("listen = \"here\"").contains("listen"));
        assert!(complaint("udp_listen = \"1.2.3.4\"").contains("udp_listen"));
        assert!(complaint("listen = \"0.0.0.0:1\"").contains("advertise"));
        assert!(complaint("prepare_timeout_s = -1").contains("prepare_timeout_s"));
        let small = AgentConfig { name: "n".into(), lend: ByteSize(9), ..AgentConfig::default() };
        assert!(small.validate().unwrap_err().to_string().contains("lend"));
    }

    #[test]
    fn a_wildcard_is_replaced_for_others() {
        let config = config("listen = \"0.0.0.0:0\"\nadvertise = \"10.0.0.9\"");
        config.validate().unwrap();
        assert_eq!(config.advertised("0.0.0.0:77".parse().unwrap()), "10.0.0.9:77");
    }
}
