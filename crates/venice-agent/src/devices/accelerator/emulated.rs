//! Emulated accelerators: a service without hardware.

use venice_accel::mailbox::{self, BuiltIn, EmulatedModel};
use venice_control::ResourceSpec;
use venice_service::{HostSpec, ServiceSecret, echo};

use super::{Family, number_after};
use crate::devices::class::{Candidate, DeviceClass};
use crate::devices::host::Host;
use crate::devices::identity::Identity;
use crate::devices::offer::Offer;

/// Beginning of their names, and the capability that they have.
const EMULATED: &str = "emulated";
/// Services without a model; an offer names one of them as a capability.
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
        "emulated[NUMBER]=FUNCTION@RATE or accelerator:emulated[NUMBER][=SIZE],SERVICE"
    }

    fn check_text(&self, offer: &Offer) -> Result<(), String> {
        if let Some(model) = model_of(&offer.capabilities) {
            return model.parse::<EmulatedModel>().map(|_| ());
        }
        match service_of(&offer.capabilities) {
            Some(_) => Ok(()),
            None => Err(format!(
                "an emulated accelerator needs a model or a service: add =fft@64MB/s or ,{}",
                SERVICES.join(" or ,")
            )),
        }
    }

    fn probe(&self, _host: &Host, offer: &Offer) -> Result<(u64, Vec<String>), String> {
        let mut capabilities = vec![EMULATED.to_owned()];
        if let Some(model) = model_of(&offer.capabilities) {
            let model: EmulatedModel = model.parse()?;
            capabilities.push(mailbox::NAME.to_owned());
            capabilities.extend(model.functions.iter().map(BuiltIn::to_string));
        }
        Ok((offer.bytes.unwrap_or(0), capabilities))
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
        let Some(model) = model_of(&spec.capabilities) else {
            return Some(HostSpec::new(service_of(&spec.capabilities)?, secret));
        };
        Some(HostSpec { options: model.to_owned(), ..HostSpec::new(mailbox::NAME, secret) })
    }

    fn identity(&self, _host: &Host, _address: &str) -> Identity {
        Identity::default()
    }
}

/// Returns the model among the capabilities: [`EmulatedModel`].
fn model_of(capabilities: &[String]) -> Option<&str> {
    capabilities.iter().map(String::as_str).find(|it| it.contains('@'))
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
        let modelled: Offer = "accelerator:emulated=fft+sum@64MB/s".parse().unwrap();
        let spec = examine(&host, &modelled).unwrap();
        for capability in ["emulated", "mailbox", "fft", "sum", "fft+sum@64MB/s"] {
            assert!(spec.capabilities.iter().any(|it| it == capability), "{capability}");
        }
        let served = service(&host, &spec, secret).unwrap();
        assert_eq!((&*served.service, &*served.options), ("mailbox", "fft+sum@64MB/s"));
        for wrong in ["fft+fft@64MB/s", "fft@64MB", "@64MB/s", "crypto@64MB/s", "fft@0B/s"] {
            let offer = format!("accelerator:emulated={wrong}").parse::<Offer>();
            assert!(offer.is_err(), "{wrong}");
        }
        let unnamed = "accelerator:emulated".parse::<Offer>().unwrap_err().to_string();
        assert!(unnamed.contains("or ,echo"), "{unnamed}");
    }
}
