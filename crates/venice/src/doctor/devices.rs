//! Devices that this machine could lend.

use venice_agent::{FoundDevice, found};

use super::Finding;
use venice_cli::terminal;

/// Row about the devices that `venice agent --offer` could name.
pub fn examine() -> Vec<Finding> {
    vec![devices(&found())]
}

fn devices(found: &[FoundDevice]) -> Finding {
    let what = "devices to lend";
    if found.is_empty() {
        let remedy = "add an accelerator, a network card or an unused disk; files and directories can be \
                    lent as storage (only `venice agent --offer` uses them)";
        return Finding::missing(what, "none found", remedy);
    }
    let said = found.iter().map(|FoundDevice { offer, spec, is_in_use }| {
        let size = (spec.bytes > 0).then(|| terminal::bytes(spec.bytes));
        let in_use = is_in_use.then(|| "in use here".to_owned());
        let words: Vec<String> =
            spec.capabilities.iter().cloned().chain(size).chain(in_use).collect();
        if words.is_empty() { offer.clone() } else { format!("{offer} ({})", words.join(", ")) }
    });
    Finding::ok(what, said.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use venice_control::{ResourceKind, ResourceSpec};

    use super::*;

    #[test]
    fn devices_are_listed_as_offers() {
        let spec = ResourceSpec {
            kind: ResourceKind::Nic,
            address: "eth1".into(),
            bytes: 0,
            slab_bytes: 0,
            capabilities: vec!["25Gbps".into()],
        };
        let card = FoundDevice { offer: "nic:eth1".into(), spec, is_in_use: true };
        assert_eq!(devices(&[card]).detail, "nic:eth1 (25Gbps, in use here)");
        assert!(!devices(&[]).remedy.is_empty());
    }
}
