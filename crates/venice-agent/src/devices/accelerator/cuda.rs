//! Devices that the CUDA driver knows, each served by a host of the service `cuda`.

use venice_accel::cuda::drivers;
use venice_accel::cuda::found::CudaDevice;
use venice_control::ResourceSpec;
use venice_service::{HostSpec, ServiceSecret};

use super::{Family, check_bytes, check_capabilities, is_on_bus, number_after, numbered, slug};
use crate::devices::class::{Candidate, DeviceClass};
use crate::devices::host::Host;
use crate::devices::identity::Identity;
use crate::devices::offer::Offer;

/// Beginning of their names, and a capability of theirs.
const CUDA: &str = "cuda";
/// Unit of bytes without a size in the offer.
const MIB: u64 = 1 << 20;

/// The family.
pub(super) struct Cuda;

impl Family for Cuda {
    fn has(&self, address: &str) -> bool {
        number_after(CUDA, address).is_some()
    }
}

impl DeviceClass for Cuda {
    fn form(&self) -> &'static str {
        "cuda[NUMBER][=SIZE]"
    }

    fn check_text(&self, offer: &Offer) -> Result<(), String> {
        check_capabilities(offer, &["opencl", "mailbox", "emulated"])
    }

    fn probe(&self, host: &Host, offer: &Offer) -> Result<(u64, Vec<String>), String> {
        let device = device(host, &offer.address)?;
        let bytes = offer.bytes.unwrap_or(device.bytes - device.bytes % MIB);
        check_bytes(bytes, device.bytes)?;
        drivers::check_library().map_err(|why| format!("cannot be lent: {why}"))?;
        Ok((bytes, capabilities(device)))
    }

    fn list(&self, host: &Host) -> Vec<Candidate> {
        let devices = host.cuda_devices().unwrap_or_default();
        devices.iter().map(|it| Candidate::unused(format!("{CUDA}{}", it.index))).collect()
    }

    fn is_there(&self, host: &Host, spec: &ResourceSpec) -> bool {
        let pci = device(host, &spec.address).ok().and_then(|it| it.pci.as_deref());
        is_on_bus(host, pci)
    }

    fn is_shared(&self, _host: &Host, _address: &str) -> bool {
        false
    }

    fn service(&self, host: &Host, spec: &ResourceSpec, secret: ServiceSecret) -> Option<HostSpec> {
        Some(drivers::host_spec(device(host, &spec.address).ok()?, spec.bytes, secret))
    }

    fn identity(&self, host: &Host, address: &str) -> Identity {
        let device = device(host, address).ok();
        device.map(|it| Identity::of_cuda(it.index, it.pci.as_deref())).unwrap_or_default()
    }
}

/// Returns the device of a name.
///
/// # Errors
/// The reason why there is none, in words that follow the offer.
fn device<'a>(host: &'a Host, address: &str) -> Result<&'a CudaDevice, String> {
    let devices = host.cuda_devices().map_err(|why| format!("cannot be lent: {why}"))?;
    let named = |it: &CudaDevice| format!("{CUDA}{} ({})", it.index, it.name);
    numbered(devices, number_after(CUDA, address), drivers::NO_DRIVER, named)
}

/// Returns the capabilities: `cuda`, `gpu`, compute capability, model.
fn capabilities(device: &CudaDevice) -> Vec<String> {
    let (major, minor) = device.capability;
    let mut all = vec![CUDA.to_owned(), "gpu".to_owned(), format!("sm_{major}{minor}")];
    all.push(slug(&device.name));
    all.retain(|it| !it.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::{examine, service};

    const GIB: u64 = 1 << 30;

    fn cuda_device() -> CudaDevice {
        CudaDevice {
            index: 0,
            name: "NVIDIA H100 PCIe".into(),
            uuid: [5; 16],
            bytes: 80 * GIB,
            capability: (9, 0),
            version: 12080,
            pci: Some("0000:3b:00.0".into()),
        }
    }

    #[test]
    fn cuda_device_is_described() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::in_folder(dir.path(), &[]).with_cuda(Ok(vec![cuda_device()]));
        let spec = examine(&host, &"accelerator:cuda,mine".parse().unwrap()).unwrap();
        assert_eq!(spec.capabilities.join(" "), "cuda gpu sm_90 nvidia-h100-pcie mine");
        assert_eq!(spec.bytes, 80 * GIB);
        let large = examine(&host, &"accelerator:cuda0=81GiB".parse().unwrap()).unwrap_err();
        assert!(large.contains("the device has 80"), "{large}");
        let missing = examine(&host, &"accelerator:cuda1".parse().unwrap()).unwrap_err();
        assert!(missing.contains("this machine has cuda0 (NVIDIA"), "{missing}");
        let secret = ServiceSecret::from_bytes([1; ServiceSecret::BYTES]);
        assert_eq!(service(&host, &spec, secret).unwrap().service, "cuda");
    }

    #[test]
    fn missing_driver_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::in_folder(dir.path(), &[]).with_cuda(Ok(Vec::new()));
        let missing = examine(&host, &"accelerator:cuda".parse().unwrap()).unwrap_err();
        assert!(missing.contains("no CUDA device"), "{missing}");
    }
}
