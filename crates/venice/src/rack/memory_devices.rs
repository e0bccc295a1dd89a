//! Memory devices (DAX) that nodes of a local rack lend instead of this machine's memory.

use std::str::FromStr;

use venice_memory::hotplug::{BadDaxName, DaxBus, dax_name};
use venice_wire::SLAB_BYTES;

use super::up::UpArgs;
use venice_cli::failure::Usage;

/// A memory device and the node that lends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDax {
    node: Option<String>,
    device: String,
}

impl FromStr for NodeDax {
    type Err = BadDaxName;

    fn from_str(text: &str) -> Result<Self, BadDaxName> {
        let (node, device) = match text.split_once('/') {
            Some((node, device)) if !node.is_empty() => (Some(node.to_owned()), device),
            _ => (None, text),
        };
        // After a node's name, a path has lost its first slash.
        let device = dax_name(device.strip_prefix("dev/").unwrap_or(device))?.to_owned();
        Ok(Self { node, device })
    }
}

impl NodeDax {
    fn node(&self) -> &str {
        self.node.as_deref().unwrap_or("node1")
    }
}

/// Returns the devices that a node lends.
pub fn devices_of(args: &UpArgs, node: &str) -> Vec<String> {
    let its = args.lend_dax.iter().filter(|it| it.node() == node);
    its.map(|it| it.device.clone()).collect()
}

/// Returns the bytes that a node lends of its devices.
pub fn lent_bytes(devices: &[String]) -> anyhow::Result<u64> {
    let bytes = devices.iter().map(|name| {
        let device = DaxBus::default().device(name);
        let device = device.map_err(|error| Usage(format!("--lend-dax: {error}")))?;
        Ok(device.bytes / SLAB_BYTES * SLAB_BYTES)
    });
    bytes.sum()
}

/// Checks that every named node exists and every device belongs to one node.
pub fn check_devices(args: &UpArgs, nodes: u32) -> anyhow::Result<()> {
    for (at, named) in args.lend_dax.iter().enumerate() {
        let (node, device) = (named.node(), &named.device);
        let said = if !(1..=nodes).any(|number| node == format!("node{number}")) {
            format!("--lend-dax {node}/{device}: there are node1 to node{nodes}")
        } else if args.lend_dax[..at].iter().any(|other| other.device == *device) {
            format!("--lend-dax {device} is named twice")
        } else {
            continue;
        };
        return Err(Usage(said).into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dax_spec_may_name_node() {
        let parsed = |text: &str| {
            let NodeDax { node, device } = text.parse()?;
            Ok::<_, BadDaxName>((node, device))
        };
        let first = (None, "dax0.0".to_owned());
        assert_eq!(parsed("dax0.0").unwrap(), first);
        assert_eq!(parsed("/dev/dax0.0").unwrap(), first);
        let second = (Some("node2".to_owned()), "dax1.0".to_owned());
        assert_eq!(parsed("node2/dax1.0").unwrap(), second);
        assert_eq!(parsed("node2//dev/dax1.0").unwrap(), second);
        for wrong in ["", "sda", "/dev/sda", "node1/", "a/b/dax0.0", "node1/sda"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
