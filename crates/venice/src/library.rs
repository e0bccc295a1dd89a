//! Shared libraries of Venice that programs load, and where they are.

use std::path::{Path, PathBuf};

use anyhow::Context;
use venice_cli::variables::variable;

/// A shared library.
#[derive(Debug)]
pub struct Library {
    /// Name in messages.
    pub name: &'static str,
    file: &'static str,
    /// Environment variable with its path, which comes before all places.
    variable: &'static str,
}

/// The shim, which `venice run` loads into programs.
pub const SHIM: Library =
    Library { name: "shim library", file: "libvenice_preload.so", variable: "VENICE_SHIM" };
/// The OpenCL client driver, which the ICD loaders of programs load.
pub const OPENCL: Library = Library {
    name: "OpenCL client driver",
    file: "libvenice_opencl.so",
    variable: "VENICE_OPENCL",
};

/// The CUDA client driver, which programs load as `libcuda.so.1` and `libnvidia-ml.so.1`.
pub const CUDA: Library =
    Library { name: "CUDA client driver", file: "libvenice_cuda.so", variable: "VENICE_CUDA" };

impl Library {
    /// Returns the candidate paths: the one in the environment, else those beside the binary.
    fn places(&self) -> Vec<PathBuf> {
        if let Some(named) = variable(self.variable) {
            return vec![PathBuf::from(named)];
        }
        let exe = std::env::current_exe().ok();
        let bin = exe.as_deref().and_then(Path::parent).unwrap_or(Path::new("/usr/bin"));
        ["", "../lib/venice", "../lib"].map(|dir| bin.join(dir).join(self.file)).to_vec()
    }

    /// Finds it.
    ///
    /// # Errors
    /// Names the places that do not have it.
    pub fn find(&self) -> anyhow::Result<PathBuf> {
        let places = self.places();
        let found = places.iter().find(|place| place.is_file());
        let found = found.with_context(|| {
            let list: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
            let (name, list, variable) = (self.name, list.join(", "), self.variable);
            format!("{name} not found in {list}: install it, or set {variable}")
        })?;
        // The program may change its working directory before it loads it.
        found.canonicalize().with_context(|| format!("resolving {}", found.display()))
    }

    /// Returns what to do without it.
    pub fn remedy(&self) -> String {
        format!("install it beside the venice binary, or set {}", self.variable)
    }
}
