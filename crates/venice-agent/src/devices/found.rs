//! Devices of this machine that its operator could offer.

use venice_control::ResourceSpec;

use super::class::{Candidate, classes};
use super::host::Host;
use super::{Offer, examine};

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

/// Finds the devices of this machine, of every kind. None is lent without an offer.
pub fn found() -> Vec<FoundDevice> {
    found_on(&Host::default())
}

fn found_on(host: &Host) -> Vec<FoundDevice> {
    let found = |kind, Candidate { address, is_in_use }| {
        let offer = Offer { kind, address, bytes: None, capabilities: Vec::new() };
        let spec = examine(host, &offer).ok()?;
        Some(FoundDevice { offer: offer.to_string(), spec, is_in_use })
    };
    let candidates = classes().flat_map(|(kind, class)| {
        class.list(host).into_iter().map(move |candidate| (kind, candidate))
    });
    candidates.filter_map(|(kind, candidate)| found(kind, candidate)).collect()
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
