//! Classes of devices: what the agent knows about the devices of one kind.

use venice_control::{ResourceKind, ResourceSpec};
use venice_service::{HostSpec, ServiceSecret};

use super::host::Host;
use super::identity::Identity;
use super::offer::Offer;

/// The devices of one kind on a machine.
pub(super) trait DeviceClass: Sync {
    /// Returns the form of a device in an offer, after the kind and a colon: `PATH[=SIZE]`.
    fn form(&self) -> &'static str;

    /// Checks the text of an offer, without a look at the machine.
    ///
    /// # Errors
    /// The mistake, in words that follow the offer.
    fn check_text(&self, offer: &Offer) -> Result<(), String>;

    /// Checks an offer that depends on the type of a file, before the agent starts.
    ///
    /// # Errors
    /// The mistake, in words that follow the offer.
    fn check_size(&self, _offer: &Offer) -> Result<(), String> {
        Ok(())
    }

    /// Examines an offered device: returns its bytes, 0 if it has no size or it is unknown, and the
    /// capabilities that the machine reports.
    ///
    /// # Errors
    /// The reason why it cannot be lent, in words that follow the offer.
    fn probe(&self, host: &Host, offer: &Offer) -> Result<(u64, Vec<String>), String>;

    /// Lists the devices that an operator could offer.
    fn list(&self, host: &Host) -> Vec<Candidate>;

    /// True if a device that was examined is still there.
    fn is_there(&self, host: &Host, spec: &ResourceSpec) -> bool;

    /// Describes the use of a device by this machine itself, which prevents lending it; `None` if it
    /// is unused.
    fn local_use(&self, _host: &Host, _spec: &ResourceSpec) -> Option<String> {
        None
    }

    /// Returns the host that serves a granted device, under the secret of its recipient. `None`: the
    /// device is used without a service.
    fn service(
        &self,
        _host: &Host,
        _spec: &ResourceSpec,
        _secret: ServiceSecret,
    ) -> Option<HostSpec> {
        None
    }

    /// True if several nodes that run on this machine may lend it, each to a recipient of its own.
    fn is_shared(&self, _host: &Host, _address: &str) -> bool {
        false
    }

    /// Returns the objects of the machine that the device is, and is a part of: two offers must not
    /// meet in one.
    fn identity(&self, host: &Host, address: &str) -> Identity;
}

/// A device that could be offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) address: String,
    /// True if this machine uses it, so that lending it may be unwise.
    pub(super) is_in_use: bool,
}

impl Candidate {
    pub(super) fn unused(address: String) -> Self {
        Self { address, is_in_use: false }
    }
}

macro_rules! define_classes {
    ($( $(#[$doc:meta])* $kind:ident $(($class:ident))? { $($row:tt)* } )*) => {
        /// Returns the class of a kind; `None`: it is not lent device by device.
        pub(super) fn class_of(kind: ResourceKind) -> Option<&'static dyn DeviceClass> {
            match kind {
                $( ResourceKind::$kind => define_classes!(@class $($class)?), )*
            }
        }
    };
    (@class) => { None };
    (@class $class:ident) => { Some(&super::$class::Class) };
}

venice_rack::resource_kinds!(define_classes);

/// Iterates over the kinds of devices, with their classes.
pub(super) fn classes() -> impl Iterator<Item = (ResourceKind, &'static dyn DeviceClass)> {
    ResourceKind::devices().filter_map(|kind| Some((kind, class_of(kind)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_device_kinds_have_classes() {
        for kind in ResourceKind::ALL {
            assert_eq!(class_of(kind).is_some(), kind.is_device(), "{kind}");
        }
    }
}
