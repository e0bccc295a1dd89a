//! Devices that the OpenCL ICD loader knows, each served by a host of the service `opencl`.

use venice_accel::mailbox;
use venice_accel::opencl::drivers;
use venice_accel::opencl::found::OpenClDevice;
use venice_control::ResourceSpec;
use venice_service::{HostSpec, ServiceSecret};

use super::{Family, check_bytes, check_capabilities, is_on_bus, number_after, numbered, slug};
use crate::devices::class::{Candidate, DeviceClass};
use crate::devices::host::Host;
use crate::devices::identity::Identity;
use crate::devices::offer::Offer;

/// Beginning of their names, and a capability of theirs.
const OPENCL: &str = "opencl";
/// Part of the machine's memory that a processor lends without a size in its offer.
const CPU_MEMORY_PARTS: u64 = 4;
/// Unit of bytes without a size in the offer.
const MIB: u64 = 1 << 20;

/// The family.
pub(super) struct OpenCl;

impl Family for OpenCl {
    fn has(&self, address: &str) -> bool {
        number_after(OPENCL, address).is_some()
    }
}

impl DeviceClass for OpenCl {
    fn form(&self) -> &'static str {
        "opencl[NUMBER][=SIZE]"
    }

    fn check_text(&self, offer: &Offer) -> Result<(), String> {
        check_capabilities(offer, &["cuda", "emulated"])
    }

    fn probe(&self, host: &Host, offer: &Offer) -> Result<(u64, Vec<String>), String> {
        let device = device(host, &offer.address)?;
        let bytes = offer.bytes.unwrap_or_else(|| default_bytes(device));
        check_bytes(bytes, device.bytes)?;
        Ok((bytes, capabilities(device)))
    }

    fn list(&self, host: &Host) -> Vec<Candidate> {
        let devices = host.opencl_devices().unwrap_or_default();
        devices.iter().map(|it| Candidate::unused(format!("{OPENCL}{}", it.index))).collect()
    }

    fn is_there(&self, host: &Host, spec: &ResourceSpec) -> bool {
        // Drivers are not asked again: their hosts find what else is amiss.
        let pci = device(host, &spec.address).ok().and_then(|it| it.pci.as_deref());
        is_on_bus(host, pci)
    }

    fn is_shared(&self, host: &Host, address: &str) -> bool {
        device(host, address).is_ok_and(OpenClDevice::is_cpu)
    }

    fn service(&self, host: &Host, spec: &ResourceSpec, secret: ServiceSecret) -> Option<HostSpec> {
        Some(drivers::host_spec(device(host, &spec.address).ok()?, spec.bytes, secret))
    }

    fn identity(&self, host: &Host, address: &str) -> Identity {
        let device = device(host, address).ok();
        device.map(|it| Identity::of_opencl(it.index, it.pci.as_deref())).unwrap_or_default()
    }
}

/// Returns the device of a name.
///
/// # Errors
/// The reason why there is none, in words that follow the offer.
fn device<'a>(host: &'a Host, address: &str) -> Result<&'a OpenClDevice, String> {
    let devices = host.opencl_devices().map_err(|why| format!("cannot be lent: {why}"))?;
    let named = |it: &OpenClDevice| format!("{OPENCL}{} ({}: {})", it.index, it.platform, it.name);
    numbered(devices, number_after(OPENCL, address), drivers::NO_DRIVER, named)
}

/// Returns the bytes to lend where the offer gives none.
fn default_bytes(device: &OpenClDevice) -> u64 {
    let bytes = match device.is_cpu() {
        // Its memory is the machine's, which has other uses.
        true => device.bytes / CPU_MEMORY_PARTS,
        false => device.bytes,
    };
    bytes - bytes % MIB
}

/// Returns the capabilities: `opencl`, `mailbox`, class, abilities, platform, model.
fn capabilities(device: &OpenClDevice) -> Vec<String> {
    let mut all = vec![OPENCL.to_owned(), mailbox::NAME.to_owned(), device.class.clone()];
    all.extend(device.abilities.iter().cloned());
    all.push(
        drivers::word_of(&device.platform).map_or_else(|| slug(&device.platform), str::to_owned),
    );
    all.push(slug(&device.name));
    all.dedup();
    all.retain(|it| !it.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::devices::identity::twice_on;
    use crate::devices::{examine, service};

    const GIB: u64 = 1 << 30;

    fn opencl_device(index: usize, class: &str, pci: Option<&str>) -> OpenClDevice {
        OpenClDevice {
            index,
            platform: "Portable Computing Language".into(),
            place: index,
            name: "pthread-haswell-AMD EPYC (tm), 7".into(),
            class: class.into(),
            version: "OpenCL 3.0".into(),
            driver: "3.1".into(),
            bytes: 8 * GIB,
            abilities: vec!["fp64".into()],
            pci: pci.map(str::to_owned),
        }
    }

    fn host(root: &Path) -> Host {
        let devices =
            vec![opencl_device(0, "cpu", None), opencl_device(1, "gpu", Some("0000:3b:00.0"))];
        Host::in_folder(root, &[]).with_opencl(Ok(devices))
    }

    fn offer(text: &str) -> Offer {
        text.parse().unwrap()
    }

    #[test]
    fn opencl_device_is_described() {
        let dir = tempfile::tempdir().unwrap();
        let host = host(dir.path());
        let spec = examine(&host, &offer("accelerator:opencl,mine")).unwrap();
        let words = "opencl mailbox cpu fp64 pocl pthread-haswell-amd-epyc-tm-7 mine";
        assert_eq!((spec.bytes, spec.capabilities.join(" ")), (2 * GIB, words.to_owned()));
        assert_eq!(examine(&host, &offer("accelerator:opencl1")).unwrap().bytes, 8 * GIB);
        assert_eq!(examine(&host, &offer("accelerator:opencl1=1GiB")).unwrap().bytes, GIB);
        let large = examine(&host, &offer("accelerator:opencl1=9GiB")).unwrap_err();
        assert!(large.contains("the device has 8"), "{large}");
        let small = examine(&host, &offer("accelerator:opencl=1")).unwrap_err();
        assert!(small.contains("at least 1MiB"), "{small}");
        let other = "accelerator:opencl=1GiB,cuda".parse::<Offer>().unwrap_err().to_string();
        assert!(other.contains("opencl has no capability \"cuda\""), "{other}");
        let names: Vec<String> = OpenCl.list(&host).into_iter().map(|it| it.address).collect();
        assert_eq!(names, ["opencl0", "opencl1"]);
    }

    #[test]
    fn missing_device_names_others() {
        let dir = tempfile::tempdir().unwrap();
        let missing = examine(&host(dir.path()), &offer("accelerator:opencl7")).unwrap_err();
        assert!(missing.contains("this machine has opencl0 (Portable"), "{missing}");
        let none = Host::in_folder(dir.path(), &[]).with_opencl(Ok(Vec::new()));
        let missing = examine(&none, &offer("accelerator:opencl")).unwrap_err();
        assert!(missing.contains("pocl-opencl-icd"), "{missing}");
        let broken = Host::in_folder(dir.path(), &[]).with_opencl(Err("a driver crashed".into()));
        let missing = examine(&broken, &offer("accelerator:opencl")).unwrap_err();
        assert_eq!(missing, "cannot be lent: a driver crashed");
        assert!(OpenCl.list(&broken).is_empty());
    }

    #[test]
    fn host_serves_granted_device() {
        let dir = tempfile::tempdir().unwrap();
        let host = host(dir.path());
        let spec = examine(&host, &offer("accelerator:opencl1=1GiB")).unwrap();
        let secret = ServiceSecret::from_bytes([1; ServiceSecret::BYTES]);
        let of_host = service(&host, &spec, secret).unwrap();
        assert_eq!(of_host.service, "opencl");
        assert!(of_host.options.contains("\"place\":1"), "{}", of_host.options);
        assert!(!OpenCl.is_there(&host, &spec), "its PCI device is gone");
        std::fs::create_dir_all(host.path("/sys/bus/pci/devices/0000:3b:00.0")).unwrap();
        assert!(OpenCl.is_there(&host, &spec));
    }

    #[test]
    fn one_device_is_offered_once() {
        let dir = tempfile::tempdir().unwrap();
        let host = host(dir.path());
        let said = |offers: [&str; 2]| twice_on(&host, &offers.map(offer)).map(|(_, why)| why);
        let why = said(["accelerator:opencl", "accelerator:opencl0"]).unwrap();
        assert!(why.contains("both are OpenCL device 0"), "{why}");
        assert_eq!(said(["accelerator:opencl0", "accelerator:opencl1"]), None);
        assert!(OpenCl.is_shared(&host, "opencl") && !OpenCl.is_shared(&host, "opencl1"));
    }
}
