//! Devices that the agent lends besides memory: those its operator has offered.
//!
//! [`Offer`] is the operator's text; [`examine`] checks the machine for it; [`found`] lists
//! possible offers; [`DeviceWatch`] reports vanished devices to the Monitor Node. A grant does not
//! cover the transport of a device's data.

mod accelerator;
mod found;
mod host;
mod in_use;
mod nic;
mod offer;
mod same;
mod storage;
mod watch;

pub use found::{FoundDevice, found};
pub use offer::{BadOffer, Offer};
pub use same::offered_twice;

pub(crate) use host::Host;
pub(crate) use watch::DeviceWatch;

use venice_control::{ResourceKind, ResourceSpec};

/// Checks this machine for an offer.
///
/// # Errors
/// The reason why it cannot be lent, in words that follow the offer.
pub(crate) fn examine(host: &Host, offer: &Offer) -> Result<ResourceSpec, String> {
    let (bytes, mut capabilities) = match offer.kind {
        ResourceKind::Accelerator => accelerator::examine(host, offer)?,
        ResourceKind::Nic => nic::examine(host, offer)?,
        ResourceKind::Storage => storage::examine(host, offer)?,
        ResourceKind::Memory | ResourceKind::Window => return Err("is not a device".to_owned()),
    };
    let news = offer.capabilities.iter();
    let news: Vec<String> = news.filter(|it| !capabilities.contains(it)).cloned().collect();
    capabilities.extend(news);
    let slab_bytes = offer.kind.device_unit_bytes();
    // Only whole units can be lent.
    let bytes = bytes.checked_rem(slab_bytes).map_or(bytes, |rest| bytes - rest);
    if slab_bytes > 0 && bytes == 0 {
        return Err("is smaller than the minimum of 1 MiB".to_owned());
    }
    let (kind, address) = (offer.kind, offer.address.clone());
    Ok(ResourceSpec { kind, address, bytes, slab_bytes, capabilities })
}

/// Describes the fault of a device that was fine before; empty without one.
pub(crate) fn fault(host: &Host, spec: &ResourceSpec) -> String {
    let is_there = match spec.kind {
        ResourceKind::Accelerator => accelerator::is_there(host, &spec.address),
        ResourceKind::Nic => nic::is_there(host, &spec.address),
        ResourceKind::Storage => storage::is_there(host, spec),
        // Not watched as devices.
        ResourceKind::Memory | ResourceKind::Window => true,
    };
    if is_there { String::new() } else { "it is no longer there".to_owned() }
}

/// Describes the local use of storage that is not granted, which prevents lending it; empty if
/// unused.
pub(crate) fn foreign_use(host: &Host, spec: &ResourceSpec) -> String {
    match spec.kind {
        ResourceKind::Storage => storage::use_of(host, &spec.address).unwrap_or_default(),
        ResourceKind::Accelerator
        | ResourceKind::Nic
        | ResourceKind::Memory
        | ResourceKind::Window => String::new(),
    }
}
