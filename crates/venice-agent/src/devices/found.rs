//! Devices of this machine that its operator could offer.

use venice_control::{ResourceKind, ResourceSpec};

use super::host::Host;
use super::{Offer, accelerator, examine, nic, storage};

/// A device that could be lent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundDevice {
    /// The offer, as for `venice agent --offer`.
    pub offer: String,
    /// Resource as the agent would register it.
    pub spec: ResourceSpec,
    /// True if this machine uses it, so that lending it may be unwise.
    pub is_in_use: bool,
}

/// Finds the GPUs and other accelerators, the network cards and the unused block devices of this
/// machine. None is lent without an offer.
pub fn found() -> Vec<FoundDevice> {
    found_on(&Host::default())
}

fn found_on(host: &Host) -> Vec<FoundDevice> {
    let of = |kind, address: String, is_in_use| {
        let offer = Offer { kind, address, bytes: None, capabilities: Vec::new() };
        let spec = examine(host, &offer).ok()?;
        Some(FoundDevice { offer: offer.to_string(), spec, is_in_use })
    };
    let accelerators = accelerator::addresses(host).into_iter();
    let accelerators = accelerators.filter_map(|it| of(ResourceKind::Accelerator, it, false));
    let cards = nic::names(host).into_iter().filter_map(|name| {
        let is_up = nic::is_up(host, &name);
        of(ResourceKind::Nic, name, is_up)
    });
    let disks = storage::unused(host).into_iter();
    let disks = disks.filter_map(|it| of(ResourceKind::Storage, format!("/dev/{it}"), false));
    accelerators.chain(cards).chain(disks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_devices_can_be_offered() {
        for FoundDevice { offer, spec, .. } in found() {
            let again = examine(&Host::default(), &offer.parse().unwrap());
            assert_eq!(again.as_ref(), Ok(&spec), "{offer}");
        }
        let dir = tempfile::tempdir().unwrap();
        let host = Host::in_folder(
            dir.path(),
            &[
                ("/sys/class/net/eth1/device/vendor", ""),
                ("/sys/class/net/eth1/operstate", "up"),
                ("/sys/class/net/veth0/operstate", "up"),
            ],
        );
        let found: Vec<_> =
            found_on(&host).into_iter().map(|it| (it.offer, it.is_in_use)).collect();
        assert_eq!(found, [("nic:eth1".to_owned(), true)]);
    }
}
