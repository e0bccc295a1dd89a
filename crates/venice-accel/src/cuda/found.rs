//! CUDA devices of this machine, as an operator can offer them.

use serde::{Deserialize, Serialize};

use super::library::{CudaError, Library, call};

/// Attributes: domain, bus and device on the PCI bus; major and minor compute capability.
const PCI: [i32; 3] = [50, 33, 34];
const CAPABILITY: [i32; 2] = [75, 76];
/// Numbers of attributes that are asked for.
pub(super) const ATTRIBUTES: std::ops::RangeInclusive<i32> = 1..=160;

/// A device that the driver knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaDevice {
    /// Its number: that in `accelerator:cuda0`.
    pub index: usize,
    /// Name.
    pub name: String,
    /// UUID, as the driver has it.
    pub uuid: [u8; 16],
    /// Memory in bytes.
    pub bytes: u64,
    /// Compute capability: major and minor.
    pub capability: (i32, i32),
    /// Version of the driver API, as 12080 for 12.8.
    pub version: i32,
    /// Address on the PCI bus, as `0000:3b:00.0`.
    pub pci: Option<String>,
}

/// Lists the devices.
///
/// # Errors
/// [`CudaError`] if there is no driver, or it fails.
pub fn devices(library: &Library) -> Result<Vec<CudaDevice>, CudaError> {
    let mut count = 0;
    count_devices(library, &mut count)?;
    (0..count).map(|number| describe(library, number)).collect()
}

#[expect(unsafe_code, reason = "calls the vendor's library")]
fn count_devices(library: &Library, count: &mut i32) -> Result<(), CudaError> {
    call!(library, cuDeviceGetCount(&raw mut *count))
}

/// Describes a device by its number.
///
/// # Errors
/// The driver's.
#[expect(unsafe_code, reason = "calls the vendor's library")]
pub(super) fn describe(library: &Library, number: i32) -> Result<CudaDevice, CudaError> {
    let (mut device, mut name, mut uuid, mut bytes) = (0, [0_u8; 256], [0; 16], 0);
    call!(library, cuDeviceGet(&raw mut device, number))?;
    call!(library, cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device))?;
    call!(library, cuDeviceGetUuid_v2(&raw mut uuid, device))?;
    call!(library, cuDeviceTotalMem_v2(&raw mut bytes, device))?;
    let [major, minor] = CAPABILITY.map(|it| attribute(library, it, device).unwrap_or(0));
    let [domain, bus, slot] = PCI.map(|it| attribute(library, it, device).unwrap_or(0));
    // A device without a bus has zeros.
    let has_bus = (domain, bus, slot) != (0, 0, 0);
    let end = name.iter().position(|it| *it == 0).unwrap_or(name.len());
    Ok(CudaDevice {
        index: usize::try_from(number).unwrap_or(0),
        name: String::from_utf8_lossy(&name[..end]).into_owned(),
        uuid,
        bytes: bytes as u64,
        capability: (major, minor),
        version: library.version()?,
        pci: has_bus.then(|| format!("{domain:04x}:{bus:02x}:{slot:02x}.0")),
    })
}

/// Returns an attribute of a device; `None`: the driver does not know it.
#[expect(unsafe_code, reason = "calls the vendor's library")]
pub(super) fn attribute(library: &Library, name: i32, device: i32) -> Option<i32> {
    let mut value = 0;
    call!(library, cuDeviceGetAttribute(&raw mut value, name, device)).ok().map(|()| value)
}
