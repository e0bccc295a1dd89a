//! Validation of the devices and device reports of nodes.

use super::clipped;
use crate::resource::{MAX_CAPABILITIES, MAX_CAPABILITIES_BYTES, MAX_DEVICES};
use crate::rrt::NodeRecord;
use crate::types::{DeviceReport, MAX_NAME_BYTES, NodeRegistration, ResourceSpec};
use std::collections::BTreeSet;

/// Checks that a node may offer its devices.
pub(in super::super) fn check_offered(node: &NodeRegistration) -> Result<(), String> {
    let devices = || node.resources.iter().filter(|resource| resource.kind.is_device());
    if devices().count() > MAX_DEVICES {
        return Err(format!("offers more than {MAX_DEVICES} devices"));
    }
    let mut seen = BTreeSet::new();
    for spec in devices() {
        let ResourceSpec { kind, address, slab_bytes, .. } = spec;
        check_words(spec).map_err(|why| format!("{kind} {address:?}: {why}"))?;
        if *slab_bytes != kind.spec().unit_bytes {
            let unit = kind.spec().unit_bytes;
            return Err(format!(
                "{kind} {address} comes in units of {slab_bytes} bytes, not {unit}"
            ));
        }
        if !seen.insert((kind, address)) {
            return Err(format!("offers {kind} {address} twice"));
        }
    }
    Ok(())
}

fn check_words(spec: &ResourceSpec) -> Result<(), String> {
    let ResourceSpec { address, capabilities, .. } = spec;
    let is_name = |name: &String| {
        (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.contains(char::is_control)
    };
    if !capabilities.iter().chain([address]).all(is_name) {
        return Err(format!("names and capabilities have 1 to {MAX_NAME_BYTES} printable bytes"));
    }
    let bytes: usize = capabilities.iter().map(String::len).sum();
    if capabilities.len() > MAX_CAPABILITIES || bytes > MAX_CAPABILITIES_BYTES {
        return Err(format!(
            "a device has up to {MAX_CAPABILITIES} capabilities, of {MAX_CAPABILITIES_BYTES} bytes \
             together"
        ));
    }
    Ok(())
}

/// Returns the health of the devices a node offers, in printable words.
pub(in super::super) fn reports_of(
    record: &NodeRecord,
    reports: &[DeviceReport],
) -> Vec<DeviceReport> {
    let shown = |fault: &str| {
        clipped(fault.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
    };
    let devices = record.resources.iter().filter(|spec| spec.kind.is_device());
    let reports = devices.filter_map(|spec| {
        let is_its = |it: &&DeviceReport| it.kind == spec.kind && it.address == spec.address;
        let DeviceReport { kind, address, fault } = reports.iter().find(is_its)?;
        Some(DeviceReport { kind: *kind, address: address.clone(), fault: shown(fault) })
    });
    reports.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ResourceKind;

    #[test]
    fn device_words_are_bounded_and_printable() {
        let spec = |address: &str, capabilities: Vec<String>| ResourceSpec {
            kind: ResourceKind::Nic,
            address: address.into(),
            bytes: 0,
            slab_bytes: 0,
            capabilities,
        };
        check_words(&spec("eth1", vec!["25Gbps".into(); MAX_CAPABILITIES])).unwrap();
        for (wrong, said) in [
            (spec("", vec![]), "printable"),
            (spec("eth\x1b[2J", vec![]), "printable"),
            (spec("eth1", vec!["\n".into()]), "printable"),
            (spec("eth1", vec!["x".into(); MAX_CAPABILITIES + 1]), "up to 32"),
            (spec("eth1", vec!["x".repeat(255); 5]), "1024 bytes"),
        ] {
            let why = check_words(&wrong).unwrap_err();
            assert!(why.contains(said), "{why}");
        }
    }
}
