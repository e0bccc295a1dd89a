//! OpenCL on this machine: the devices that its drivers have, which `venice agent --offer
//! accelerator:opencl` lends.

use std::path::Path;

use venice_accel::opencl::drivers::NO_DRIVER;
use venice_accel::opencl::found::OpenClDevice;
use venice_accel::opencl::listing::{ListingError, devices_by};

use super::Finding;

/// Row about the drivers.
pub fn examine() -> Vec<Finding> {
    vec![finding(devices_by(Path::new("/proc/self/exe")))]
}

fn finding(listed: Result<Vec<OpenClDevice>, ListingError>) -> Finding {
    let what = "OpenCL";
    let devices = match listed {
        Ok(devices) => devices,
        Err(ListingError::NoLoader(why)) => {
            let remedy = "apt install ocl-icd-libopencl1 (only OpenCL programs and accelerator:opencl need it)";
            return Finding::missing(what, why, remedy);
        }
        Err(error) => {
            let remedy = "update the driver, or move its file away from /etc/OpenCL/vendors";
            return Finding::missing(what, error.to_string(), remedy);
        }
    };
    if devices.is_empty() {
        let remedy = "apt install pocl-opencl-icd lends processors; the drivers of GPUs are their vendors' \
                      (only accelerator:opencl needs one)";
        return Finding::missing(what, NO_DRIVER, remedy);
    }
    let said = devices
        .iter()
        .map(|it| format!("opencl{}: {}, {}, {}", it.index, it.name, it.platform, it.driver));
    Finding::ok(what, said.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_driver_has_package() {
        assert!(finding(Ok(Vec::new())).remedy.contains("pocl-opencl-icd"));
        let no_loader = finding(Err(ListingError::NoLoader("libOpenCL.so.1: not found".into())));
        assert!(no_loader.remedy.contains("ocl-icd-libopencl1"));
        assert!(!finding(Err(ListingError::Timeout)).remedy.is_empty());
    }
}
