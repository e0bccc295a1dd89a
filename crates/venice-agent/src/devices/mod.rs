//! Devices that the agent lends besides memory: those its operator has offered.
//!
//! [`Offer`] is the operator's text; [`examine`] checks the machine for it; [`found`] lists
//! possible offers; [`DeviceWatch`] reports vanished devices to the Monitor Node. What differs by
//! kind is a [`class::DeviceClass`], in a file of its own. A device's data is the matter of its
//! service, if it has one ([`service`]); else a grant does not cover it.

mod accelerator;
mod class;
mod found;
mod host;
mod identity;
mod in_use;
mod nic;
mod offer;
mod storage;
mod watch;

pub use found::{FoundDevice, found};
pub use identity::offered_twice;
pub use offer::{BadOffer, Offer};

pub(crate) use host::Host;
pub(crate) use watch::DeviceWatch;

use class::class_of;
use venice_control::ResourceSpec;
use venice_service::{HostSpec, ServiceSecret};
use venice_wire::ByteSize;

/// Checks this machine for an offer.
///
/// # Errors
/// The reason why it cannot be lent, in words that follow the offer.
pub(crate) fn examine(host: &Host, offer: &Offer) -> Result<ResourceSpec, String> {
    let class = class_of(offer.kind).ok_or("is not a device")?;
    let (bytes, mut capabilities) = class.probe(host, offer)?;
    let news = offer.capabilities.iter();
    let news: Vec<String> = news.filter(|it| !capabilities.contains(it)).cloned().collect();
    capabilities.extend(news);
    let slab_bytes = offer.kind.spec().unit_bytes;
    // Only whole units can be lent.
    let bytes = bytes.checked_rem(slab_bytes).map_or(bytes, |rest| bytes - rest);
    if slab_bytes > 0 && bytes == 0 {
        return Err(format!("is smaller than the minimum of {}", ByteSize(slab_bytes)));
    }
    let (kind, address) = (offer.kind, offer.address.clone());
    Ok(ResourceSpec { kind, address, bytes, slab_bytes, capabilities })
}

/// Returns the host of a device's service under a secret; `None`: it is used without a service.
pub(crate) fn service(host: &Host, spec: &ResourceSpec, secret: ServiceSecret) -> Option<HostSpec> {
    class_of(spec.kind)?.service(host, spec, secret)
}

/// Describes the fault of a device that was fine before; empty without one.
pub(crate) fn fault(host: &Host, spec: &ResourceSpec) -> String {
    let is_there = class_of(spec.kind).is_none_or(|class| class.is_there(host, spec));
    if is_there { String::new() } else { "it is no longer there".to_owned() }
}

/// Describes the local use of a device that is not granted, which prevents lending it; empty if
/// unused.
pub(crate) fn foreign_use(host: &Host, spec: &ResourceSpec) -> String {
    let class = class_of(spec.kind);
    class.and_then(|class| class.local_use(host, spec)).unwrap_or_default()
}
