//! What the confined host of a CUDA device needs of its machine.

use std::path::{Path, PathBuf};

use venice_service::{HostLimits, HostSpec, ServiceSecret};

use super::found::CudaDevice;
use super::library::{VARIABLE, named};
use super::options::CudaOptions;
use crate::opencl::drivers::{CACHE_BYTES, spec_for_platform};

/// Platform of the driver in the table of drivers' needs.
const PLATFORM: &str = "NVIDIA CUDA";
/// Bytes of the region through which copies go.
pub(super) const REGION_BYTES: u64 = 256 << 20;
/// Memory that the driver with its compiler takes beside the region, in bytes.
const DRIVER_BYTES: u64 = 2 << 30;
/// Descriptors of the driver beside those of the region.
const DRIVER_FILES: u32 = 1024;
/// Threads of the driver, and of the service.
const DRIVER_PROCESSES: u32 = 192;
/// Processor time of the host, in percent of one processor.
const CPU_PERCENT: u32 = 200;

/// Advice for a machine without a driver.
pub const NO_DRIVER: &str =
    "no CUDA device is there: install NVIDIA's driver, version 550 or newer";

/// Returns the host that serves a device of which `bytes` are granted. It has what the driver needs
/// and this machine has.
pub fn host_spec(device: &CudaDevice, bytes: u64, secret: ServiceSecret) -> HostSpec {
    let mut spec = spec_for_platform(super::SERVICE, PLATFORM, secret);
    let mut memory_bytes = DRIVER_BYTES + REGION_BYTES;
    if let Some(library) = named() {
        // A stand-in keeps the memory of its device in that of the host.
        memory_bytes = memory_bytes.saturating_add(bytes);
        let path = PathBuf::from(&library);
        if !spec.read_paths.iter().any(|above| path.starts_with(above)) {
            spec.read_paths.push(path.clone());
        }
        spec.environment.insert(VARIABLE.to_owned(), path.to_string_lossy().into_owned());
    }
    spec.limits = HostLimits {
        memory_bytes,
        cpu_percent: CPU_PERCENT,
        processes: DRIVER_PROCESSES,
        open_files: DRIVER_FILES,
        scratch_bytes: DRIVER_BYTES / 8,
        scratch_files: 1 << 14,
        cache_bytes: CACHE_BYTES,
        connections: 16,
        start_ms: 30_000,
        ..HostLimits::default()
    };
    spec.options = CudaOptions { uuid: device.uuid, bytes }.to_text();
    spec
}

/// Checks that hosts of devices can have the library that the variable names, if it names one.
///
/// # Errors
/// The reason, with what to do.
pub fn check_library() -> Result<(), String> {
    named().map_or(Ok(()), |library| check_path(Path::new(&library)))
}

fn check_path(library: &Path) -> Result<(), String> {
    let spec = HostSpec::new(super::SERVICE, ServiceSecret::from_bytes([0; ServiceSecret::BYTES]));
    let spec = HostSpec { read_paths: vec![library.to_owned()], ..spec };
    spec.check().map_err(|_| {
        let library = library.display();
        format!(
            "{VARIABLE}={library}: service hosts have a /tmp of their own and need an absolute \
             path: move the library out of /tmp"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_below_tmp_is_refused() {
        assert_eq!(check_path(Path::new("/opt/libcuda.so")), Ok(()));
        for path in ["/tmp/x/libcuda.so", "libcuda.so", "/opt/../tmp/libcuda.so"] {
            let why = check_path(Path::new(path)).unwrap_err();
            assert!(why.contains(path) && why.contains("move the library"), "{why}");
        }
    }

    #[test]
    fn spec_is_valid() {
        let device = CudaDevice {
            index: 0,
            name: "device".into(),
            uuid: [3; 16],
            bytes: 1 << 34,
            capability: (9, 0),
            version: 12080,
            pci: None,
        };
        let spec = host_spec(&device, 1 << 33, ServiceSecret::from_bytes([7; 32]));
        assert_eq!(spec.check(), Ok(()));
        let options = CudaOptions::parse(&spec.options).unwrap();
        assert_eq!(options, CudaOptions { uuid: [3; 16], bytes: 1 << 33 });
    }
}
