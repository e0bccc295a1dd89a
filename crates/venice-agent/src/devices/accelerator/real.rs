//! Accelerators that are named by their device nodes. They are reserved; no service serves them.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use venice_control::ResourceSpec;

use super::Family;
use crate::devices::class::{Candidate, DeviceClass};
use crate::devices::host::Host;
use crate::devices::identity::Identity;
use crate::devices::offer::Offer;

/// The family.
pub(super) struct Real;

impl Family for Real {
    fn has(&self, address: &str) -> bool {
        address.starts_with('/')
    }
}

impl DeviceClass for Real {
    fn form(&self) -> &'static str {
        "PATH[=SIZE]"
    }

    fn check_text(&self, offer: &Offer) -> Result<(), String> {
        offer.check_path()
    }

    fn probe(&self, host: &Host, offer: &Offer) -> Result<(u64, Vec<String>), String> {
        let path = host.path(&offer.address);
        let metadata = fs::metadata(&path).map_err(|error| format!("cannot be lent: {error}"))?;
        if !metadata.file_type().is_char_device() {
            return Err("cannot be lent: an accelerator is a character device".to_owned());
        }
        let (bytes, capabilities) = said_of(host, &offer.address);
        Ok((offer.bytes.or(bytes).unwrap_or(0), capabilities))
    }

    fn list(&self, host: &Host) -> Vec<Candidate> {
        addresses(host).into_iter().map(Candidate::unused).collect()
    }

    fn is_there(&self, host: &Host, spec: &ResourceSpec) -> bool {
        let metadata = fs::metadata(host.path(&spec.address));
        metadata.is_ok_and(|it| it.file_type().is_char_device())
    }

    fn identity(&self, host: &Host, address: &str) -> Identity {
        Identity::of_path(host, address)
    }
}

/// Returns the devices that are accelerators by their names.
fn addresses(host: &Host) -> Vec<String> {
    let in_dir = |dir: &str, stem: &str| {
        let names = host.names(dir).into_iter();
        let numbered = names.filter(|name| number(name, stem).is_some());
        numbered.map(|name| format!("{dir}/{name}")).collect::<Vec<_>>()
    };
    let nvidia = in_dir("/dev", "nvidia");
    // NVIDIA's own driver has render nodes too: use one name per device.
    let is_new =
        |address: &String| nvidia.is_empty() || !driver_of_render(host, address).contains("nvidia");
    let mut all = nvidia.clone();
    all.extend(in_dir("/dev/dri", "renderD").into_iter().filter(is_new));
    all.extend(in_dir("/dev/accel", "accel"));
    all
}

fn driver_of_render(host: &Host, address: &str) -> String {
    let name = address.rsplit('/').next().unwrap_or_default();
    host.link_name(format!("/sys/class/drm/{name}/device/driver")).unwrap_or_default()
}

/// Returns the memory in bytes and the capabilities that the kernel reports.
fn said_of(host: &Host, address: &str) -> (Option<u64>, Vec<String>) {
    let name = address.rsplit('/').next().unwrap_or_default();
    let dir = Path::new(address).parent().and_then(Path::to_str).unwrap_or_default();
    let owned = |words: &[&str]| words.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
    match dir {
        "/dev" if let Some(minor) = number(name, "nvidia") => {
            let mut capabilities = owned(&["gpu", "cuda", "nvidia"]);
            capabilities.extend(nvidia_model(host, minor));
            (None, capabilities)
        }
        "/dev/dri" => {
            let device = format!("/sys/class/drm/{name}/device");
            let mut capabilities = owned(&["gpu"]);
            capabilities.extend(host.link_name(format!("{device}/driver")));
            let bytes = host.text(format!("{device}/mem_info_vram_total"));
            (bytes.and_then(|text| text.parse().ok()), capabilities)
        }
        "/dev/accel" => {
            let driver = host.link_name(format!("/sys/class/accel/{name}/device/driver"));
            (None, driver.into_iter().collect())
        }
        "/dev/vfio" => (None, owned(&["vfio"])),
        _ => (None, Vec::new()),
    }
}

/// Returns the PCI addresses behind a device without one in sysfs: of NVIDIA's driver, or of a vfio
/// group.
pub(in crate::devices) fn pci_addresses(host: &Host, path: &Path) -> Vec<String> {
    let name = path.file_name().and_then(|it| it.to_str()).unwrap_or_default();
    match path.strip_prefix(host.path("/")).ok().and_then(Path::parent).and_then(Path::to_str) {
        Some("dev") if let Some(minor) = number(name, "nvidia") => {
            let gpu = nvidia_gpu(host, minor);
            gpu.map(|(address, _)| address.to_lowercase()).into_iter().collect()
        }
        Some("dev/vfio") => host.names(format!("/sys/kernel/iommu_groups/{name}/devices")),
        _ => Vec::new(),
    }
}

/// Returns the model of an NVIDIA device as a word: `nvidia-h200`.
fn nvidia_model(host: &Host, minor: u32) -> Option<String> {
    let (_, text) = nvidia_gpu(host, minor)?;
    let model = field(&text, "Model")?;
    Some(model.to_lowercase().split_whitespace().collect::<Vec<_>>().join("-"))
}

/// Returns the PCI address of an NVIDIA device, and its driver's description.
fn nvidia_gpu(host: &Host, minor: u32) -> Option<(String, String)> {
    const GPUS: &str = "/proc/driver/nvidia/gpus";
    let said = host.names(GPUS).into_iter();
    let mut said = said.filter_map(|gpu| {
        let text = host.text(format!("{GPUS}/{gpu}/information"))?;
        Some((gpu, text))
    });
    let of_minor = minor.to_string();
    said.find(|(_, text)| field(text, "Device Minor").as_deref() == Some(&*of_minor))
}

fn field(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}

/// Parses the number in a device name: `nvidia7` for `nvidia`; `nvidiactl` has none.
fn number(name: &str, stem: &str) -> Option<u32> {
    name.strip_prefix(stem)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_capabilities_come_from_driver() {
        let dir = tempfile::tempdir().unwrap();
        let information = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 5\nDevice Minor: \t 1\n";
        let host = Host::in_folder(
            dir.path(),
            &[
                ("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Device Minor: 0\n"),
                ("/proc/driver/nvidia/gpus/0000:02:00.0/information", information),
                ("/dev/nvidia1", ""),
                ("/dev/nvidiactl", ""),
                ("/dev/dri/renderD128", ""),
                ("/dev/dri/card0", ""),
                ("/sys/class/drm/renderD128/device/mem_info_vram_total", "17163091968\n"),
            ],
        );
        let driver = dir.path().join("sys/class/drm/renderD128/device/driver");
        std::os::unix::fs::symlink("../../bus/pci/drivers/amdgpu", driver).unwrap();
        assert_eq!(addresses(&host), ["/dev/nvidia1", "/dev/dri/renderD128"]);
        let (bytes, capabilities) = said_of(&host, "/dev/nvidia1");
        assert_eq!((bytes, capabilities.join(" ")), (None, "gpu cuda nvidia nvidia-h200".into()));
        let (bytes, capabilities) = said_of(&host, "/dev/dri/renderD128");
        assert_eq!((bytes, capabilities.join(" ")), (Some(17_163_091_968), "gpu amdgpu".into()));
    }

    #[test]
    fn accelerator_must_be_character_device() {
        let offer = |text: &str| text.parse::<Offer>().unwrap();
        let host = Host::default();
        let zero = offer("accelerator:/dev/zero=1GiB");
        assert_eq!(Real.probe(&host, &zero).unwrap().0, 1 << 30);
        let missing = Real.probe(&host, &offer("accelerator:/dev/nvidia77")).unwrap_err();
        assert!(missing.contains("No such file"), "{missing}");
        let no_device = Real.probe(&host, &offer("accelerator:/etc/hostname")).unwrap_err();
        assert!(no_device.contains("character device"), "{no_device}");
    }
}
