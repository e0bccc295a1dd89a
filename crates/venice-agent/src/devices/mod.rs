//! Devices that the agent lends besides memory: what its operator named, and no other.
//!
//! [`Offer`] is what the operator wrote; [`examine`] looks at the machine for it; [`found`] lists
//! what could be written; [`DeviceWatch`] sees to it that the Monitor Node hears of a device that
//! has vanished. How their bytes get to another machine is no business of the grant.

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

/// Looks at this machine for what is offered.
///
/// # Errors
/// Why it cannot be lent, in words that follow the offer.
pub(crate) fn examine(host: &Host, offer: &Offer) -> Result<ResourceSpec, String> {
    let (bytes, mut capabilities) = match offer.kind {
        ResourceKind::Accelerator => accelerator::examine(host, offer)?,
        ResourceKind::Nic => nic::examine(host, offer)?,
        _ => storage::examine(host, offer)?,
    };
    let news = offer.capabilities.iter();
    let news: Vec<String> = news.filter(|it| !capabilities.contains(it)).cloned().collect();
    capabilities.extend(news);
    let slab_bytes = offer.kind.device_unit_bytes();
    // Units of no size cannot be lent.
    let bytes = bytes.checked_rem(slab_bytes).map_or(bytes, |rest| bytes - rest);
    if slab_bytes > 0 && bytes == 0 {
        return Err("has not the 1 MiB that is the least to be lent".to_owned());
    }
    let (kind, address) = (offer.kind, offer.address.clone());
    Ok(ResourceSpec { kind, address, bytes, slab_bytes, capabilities })
}

/// What is wrong with a device that was well; empty: nothing.
pub(crate) fn fault(host: &Host, spec: &ResourceSpec) -> String {
    let is_there = match spec.kind {
        ResourceKind::Accelerator => accelerator::is_there(host, &spec.address),
        ResourceKind::Nic => nic::is_there(host, &spec.address),
        _ => storage::is_there(host, spec),
    };
    if is_there { String::new() } else { "it is there no longer".to_owned() }
}

/// Who uses storage that nobody has borrowed, so that it cannot be lent; empty: nobody.
pub(crate) fn foreign_use(host: &Host, spec: &ResourceSpec) -> String {
    match spec.kind {
        ResourceKind::Storage => storage::use_of(host, &spec.address).unwrap_or_default(),
        _ => String::new(),
    }
}
