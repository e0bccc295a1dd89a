//! Emulated accelerators: a service without hardware.

use venice_control::ResourceSpec;
use venice_service::{HostSpec, ServiceSecret, echo};

use super::{Family, number_after};
use crate::devices::class::{Candidate, DeviceClass};
use crate::devices::host::Host;
use crate::devices::identity::Identity;
use crate::devices::offer::Offer;

/// Beginning of their names, and the capability that they have.
const EMULATED: &str = "emulated";
/// Their services; an offer names one of them as a capability.
const SERVICES: &[&str] = &[echo::ENTRY.name];

/// The family.
pub(super) struct Emulated;

impl Family for Emulated {
    fn has(&self, address: &str) -> bool {
        number_after(EMULATED, address).is_some()
    }
}

impl DeviceClass for Emulated {
    fn form(&self) -> &'static str {
        "emulated[NUMBER][=SIZE],SERVICE"
    }

    fn check_text(&self, offer: &Offer) -> Result<(), String> {
        match service_of(&offer.capabilities) {
            Some(_) => Ok(()),
            None => Err(format!(
                "an emulated accelerator needs a service: add ,{}",
                SERVICES.join(" or ,")
            )),
        }
    }

    fn probe(&self, _host: &Host, offer: &Offer) -> Result<(u64, Vec<String>), String> {
        Ok((offer.bytes.unwrap_or(0), vec![EMULATED.to_owned()]))
    }

    fn list(&self, _host: &Host) -> Vec<Candidate> {
        Vec::new()
    }

    fn is_there(&self, _host: &Host, _spec: &ResourceSpec) -> bool {
        true
    }

    fn service(
        &self,
        _host: &Host,
        spec: &ResourceSpec,
        secret: ServiceSecret,
    ) -> Option<HostSpec> {
        Some(HostSpec::new(service_of(&spec.capabilities)?, secret))
    }

    fn identity(&self, _host: &Host, _address: &str) -> Identity {
        Identity::default()
    }
}

/// Returns the service among the capabilities.
fn service_of(capabilities: &[String]) -> Option<&'static str> {
    SERVICES.iter().copied().find(|service| capabilities.iter().any(|it| it == service))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::{examine, service};

    #[test]
    fn emulated_accelerator_names_service() {
        let host = Host::default();
        let offer: Offer = "accelerator:emulated1=1GiB,echo,fast".parse().unwrap();
        assert_eq!(Emulated.probe(&host, &offer).unwrap(), (1 << 30, vec![EMULATED.to_owned()]));
        let spec = examine(&host, &offer).unwrap();
        assert!(Emulated.is_there(&host, &spec));
        let secret = ServiceSecret::from_bytes([1; ServiceSecret::BYTES]);
        assert_eq!(service(&host, &spec, secret).unwrap().service, "echo");
        let real = ResourceSpec { address: "/dev/zero".into(), ..spec };
        assert!(service(&host, &real, secret).is_none());
        let unnamed = "accelerator:emulated".parse::<Offer>().unwrap_err().to_string();
        assert!(unnamed.contains("add ,echo"), "{unnamed}");
    }
}
