//! OpenCL devices of this machine, as an operator can offer them.

use opencl_sys::{
    CL_DEVICE_DOUBLE_FP_CONFIG, CL_DEVICE_EXTENSIONS, CL_DEVICE_GLOBAL_MEM_SIZE,
    CL_DEVICE_IMAGE_SUPPORT, CL_DEVICE_NAME, CL_DEVICE_TYPE, CL_DEVICE_TYPE_ACCELERATOR,
    CL_DEVICE_TYPE_CPU, CL_DEVICE_TYPE_GPU, CL_DEVICE_VERSION, CL_DRIVER_VERSION, CL_PLATFORM_NAME,
    cl_device_id, cl_device_info, cl_platform_id,
};
use serde::{Deserialize, Serialize};

use super::library::{Library, OpenClError, number, text};

/// A device that the ICD loader knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenClDevice {
    /// Place among all devices of all platforms, from 0: the number in `accelerator:opencl0`.
    pub index: usize,
    /// Name of its platform.
    pub platform: String,
    /// Place among the devices of platforms of this name, from 0.
    pub place: usize,
    /// Name of the device.
    pub name: String,
    /// `cpu`, `gpu`, `accelerator` or `custom`.
    pub class: String,
    /// Version of OpenCL, as `OpenCL 3.0 ...`.
    pub version: String,
    /// Version of the driver.
    pub driver: String,
    /// Memory in bytes.
    pub bytes: u64,
    /// Abilities: `fp64`, `images`.
    pub abilities: Vec<String>,
    /// Address on the PCI bus, as `0000:3b:00.0`; `None`: it has none, or the driver does not tell.
    pub pci: Option<String>,
}

impl OpenClDevice {
    /// True for the processors of the machine, which share its memory.
    pub fn is_cpu(&self) -> bool {
        self.class == "cpu"
    }
}

/// Lists the devices of all platforms but Venice's own.
///
/// # Errors
/// [`OpenClError`] if there is no loader, or a driver fails.
pub fn devices(library: &Library) -> Result<Vec<OpenClDevice>, OpenClError> {
    let mut all: Vec<OpenClDevice> = Vec::new();
    for (platform, device) in handles(library)? {
        let mut described = describe(library, all.len(), platform, device)?;
        described.place = all.iter().filter(|it| it.platform == described.platform).count();
        all.push(described);
    }
    Ok(all)
}

/// Returns the handles of the device at a place among those of platforms of a name; `None`: there
/// is none.
///
/// # Errors
/// The errors of [`devices`].
pub fn device_at(
    library: &Library,
    platform_name: &str,
    place: usize,
) -> Result<Option<(cl_platform_id, cl_device_id)>, OpenClError> {
    let mut named = Vec::new();
    for (platform, device) in handles(library)? {
        if text(&library.platform_info(platform, CL_PLATFORM_NAME)?) == platform_name {
            named.push((platform, device));
        }
    }
    Ok(named.get(place).copied())
}

/// Returns the handles of the devices, in the order of [`devices`].
pub(crate) fn handles(
    library: &Library,
) -> Result<Vec<(cl_platform_id, cl_device_id)>, OpenClError> {
    let mut all = Vec::new();
    for platform in library.platforms()? {
        let name = text(&library.platform_info(platform, CL_PLATFORM_NAME)?);
        if name != super::PLATFORM_NAME {
            all.extend(library.devices(platform)?.into_iter().map(|device| (platform, device)));
        }
    }
    Ok(all)
}

fn describe(
    library: &Library,
    index: usize,
    platform: cl_platform_id,
    device: cl_device_id,
) -> Result<OpenClDevice, OpenClError> {
    let value = |parameter| library.device_info(device, parameter);
    let words = |parameter| value(parameter).map(|value| text(&value));
    let class = match number(&value(CL_DEVICE_TYPE)?) {
        class if class & CL_DEVICE_TYPE_GPU != 0 => "gpu",
        class if class & CL_DEVICE_TYPE_CPU != 0 => "cpu",
        class if class & CL_DEVICE_TYPE_ACCELERATOR != 0 => "accelerator",
        _ => "custom",
    };
    let extensions = words(CL_DEVICE_EXTENSIONS)?;
    let has_fp64 = value(CL_DEVICE_DOUBLE_FP_CONFIG).is_ok_and(|value| number(&value) != 0)
        || extensions.split_whitespace().any(|it| it == "cl_khr_fp64");
    let has_images = number(&value(CL_DEVICE_IMAGE_SUPPORT)?) != 0;
    let abilities = [("fp64", has_fp64), ("images", has_images)];
    Ok(OpenClDevice {
        index,
        place: 0,
        platform: text(&library.platform_info(platform, CL_PLATFORM_NAME)?),
        name: words(CL_DEVICE_NAME)?,
        class: class.to_owned(),
        version: words(CL_DEVICE_VERSION)?,
        driver: words(CL_DRIVER_VERSION)?,
        bytes: number(&value(CL_DEVICE_GLOBAL_MEM_SIZE)?),
        abilities: abilities
            .iter()
            .filter(|(_, has)| *has)
            .map(|(name, _)| (*name).to_owned())
            .collect(),
        pci: pci_address(&extensions, |parameter| value(parameter).ok()),
    })
}

/// Returns the PCI address by the extensions `cl_khr_pci_bus_info` and
/// `cl_nv_device_attribute_query`.
fn pci_address(
    extensions: &str,
    value: impl Fn(cl_device_info) -> Option<Vec<u8>>,
) -> Option<String> {
    const PCI_BUS_INFO_KHR: cl_device_info = 0x410f;
    const PCI_BUS_ID_NV: cl_device_info = 0x4008;
    const PCI_SLOT_ID_NV: cl_device_info = 0x4009;
    const PCI_DOMAIN_ID_NV: cl_device_info = 0x400a;
    let has = |name: &str| extensions.split_whitespace().any(|it| it == name);
    let word = |bytes: &[u8], at: usize| bytes.get(4 * at..4 * at + 4).map(number);
    let (domain, bus, device, function) = if has("cl_khr_pci_bus_info") {
        let info = value(PCI_BUS_INFO_KHR)?;
        (word(&info, 0)?, word(&info, 1)?, word(&info, 2)?, word(&info, 3)?)
    } else if has("cl_nv_device_attribute_query") {
        // Older drivers do not know the domain, which then is 0. The slot has the function in it.
        let domain = value(PCI_DOMAIN_ID_NV).map_or(0, |it| number(&it));
        let (bus, slot) = (number(&value(PCI_BUS_ID_NV)?), number(&value(PCI_SLOT_ID_NV)?));
        (domain, bus, slot >> 3, slot & 7)
    } else {
        return None;
    };
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_tell_pci_address() {
        let words = |words: [u32; 4]| Some(words.into_iter().flat_map(u32::to_le_bytes).collect());
        let khr = |parameter| if parameter == 0x410f { words([0, 0x3b, 0x1f, 2]) } else { None };
        let address = pci_address("cl_khr_fp64 cl_khr_pci_bus_info", khr);
        assert_eq!(address.as_deref(), Some("0000:3b:1f.2"));
        let nvidia = |parameter: u32| match parameter {
            0x4008 => Some(vec![0x3b, 0, 0, 0]),
            0x4009 => Some(vec![0x09, 0, 0, 0]),
            _ => None,
        };
        let address = pci_address("cl_nv_device_attribute_query", nvidia);
        assert_eq!(address.as_deref(), Some("0000:3b:01.1"));
        assert_eq!(pci_address("cl_khr_fp64", nvidia), None);
        assert_eq!(pci_address("cl_khr_pci_bus_info", |_| Some(vec![0; 4])), None);
    }
}
