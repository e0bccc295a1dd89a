//! OpenCL devices of this machine, as an operator can offer them.

use opencl_sys::{
    CL_DEVICE_DOUBLE_FP_CONFIG, CL_DEVICE_EXTENSIONS, CL_DEVICE_GLOBAL_MEM_SIZE,
    CL_DEVICE_IMAGE_SUPPORT, CL_DEVICE_NAME, CL_DEVICE_TYPE, CL_DEVICE_TYPE_ACCELERATOR,
    CL_DEVICE_TYPE_CPU, CL_DEVICE_TYPE_GPU, CL_DEVICE_VERSION, CL_DRIVER_VERSION, CL_PLATFORM_NAME,
    cl_device_id, cl_platform_id,
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
}

/// Lists the devices of all platforms but Venice's own.
///
/// # Errors
/// [`OpenClError`] if there is no loader, or a driver fails.
pub fn devices(library: &Library) -> Result<Vec<OpenClDevice>, OpenClError> {
    let handles = handles(library)?;
    let described = handles.into_iter().enumerate();
    described
        .map(|(index, (platform, device))| describe(library, index, platform, device))
        .collect()
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
    })
}
