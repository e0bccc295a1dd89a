//! The ready file: reports the addresses of a daemon started by `venice up`.

use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// Addresses of a daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    /// Monitor Node: its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addr: Option<String>,
    /// Agent: its control-plane address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_addr: Option<String>,
    /// Agent: its address for fabric packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp_addr: Option<String>,
    /// Its metrics, if it serves any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_addr: Option<String>,
    /// Agent: its relay's address, in a network of relays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay_addr: Option<String>,
}

impl Ready {
    /// Writes the file atomically.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let temporary = path.with_extension("json.new");
        let write = || -> anyhow::Result<()> {
            fs::write(&temporary, serde_json::to_string(self)?)?;
            fs::rename(&temporary, path)?;
            Ok(())
        };
        write().with_context(|| format!("writing {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_file_roundtrips() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("ready.json");
        let ready = Ready { addr: Some("127.0.0.1:1".into()), ..Ready::default() };
        ready.write(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(serde_json::from_str::<Ready>(&text).unwrap(), ready);
    }
}
