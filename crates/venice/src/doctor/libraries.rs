//! Shared libraries that programs load.

use super::{Finding, Mode};
use crate::library::{CUDA, Library, OPENCL, SHIM};

/// Rows about the shim library and the OpenCL client driver.
pub fn examine() -> Vec<Finding> {
    vec![finding(&SHIM).needed_by(&[Mode::Paged, Mode::Window]), finding(&OPENCL), finding(&CUDA)]
}

fn finding(library: &Library) -> Finding {
    match library.find() {
        Ok(path) => Finding::ok(library.name, path.display().to_string()),
        Err(error) => Finding::missing(library.name, error.to_string(), library.remedy()),
    }
}
