//! CUDA on this machine: the devices that its driver has, which `venice agent --offer
//! accelerator:cuda` lends.

use std::path::Path;

use venice_accel::cuda::drivers::{NO_DRIVER, check_library};
use venice_accel::cuda::found::CudaDevice;
use venice_accel::cuda::listing::{CudaListingError, devices_by};

use super::Finding;

/// Row about the driver.
pub fn examine() -> Vec<Finding> {
    vec![finding(devices_by(Path::new("/proc/self/exe")), check_library())]
}

fn finding(
    listed: Result<Vec<CudaDevice>, CudaListingError>,
    library: Result<(), String>,
) -> Finding {
    let what = "CUDA";
    if let Err(why) = library {
        return Finding::missing(what, why, "move it (only accelerator:cuda needs it)");
    }
    let remedy = "install NVIDIA's driver, version 550 or newer (only accelerator:cuda needs it)";
    match listed {
        Ok(devices) if devices.is_empty() => Finding::missing(what, NO_DRIVER, remedy),
        Ok(devices) => {
            let said = devices.iter().map(|it| {
                let (major, minor) = it.capability;
                format!("cuda{}: {}, sm_{major}{minor}", it.index, it.name)
            });
            Finding::ok(what, said.collect::<Vec<_>>().join("; "))
        }
        Err(error) => Finding::missing(what, error.to_string(), remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_driver_has_remedy() {
        assert!(finding(Ok(Vec::new()), Ok(())).remedy.contains("550"));
        assert!(!finding(Err(CudaListingError::Timeout), Ok(())).remedy.is_empty());
        let found = finding(Ok(Vec::new()), Err("below /tmp".into()));
        assert!(found.remedy.contains("move it"));
    }
}
