//! The machine whose devices are examined.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use venice_accel::cuda;
use venice_accel::cuda::found::CudaDevice;
use venice_accel::opencl::found::OpenClDevice;
use venice_accel::opencl::listing;

/// Program that lists OpenCL devices by its hidden subcommand: this one.
const LISTING_PROGRAM: &str = "/proc/self/exe";

/// Root of the machine's file systems; tests use a directory of their own.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    pub(super) root: PathBuf,
    /// OpenCL devices, once they were listed, or the reason why they cannot be.
    opencl: Arc<OnceLock<Result<Vec<OpenClDevice>, String>>>,
    /// CUDA devices, likewise.
    cuda: Arc<OnceLock<Result<Vec<CudaDevice>, String>>>,
}

impl Default for Host {
    fn default() -> Self {
        Self { root: PathBuf::from("/"), opencl: Arc::default(), cuda: Arc::default() }
    }
}

impl Host {
    /// Returns an absolute path on the machine.
    pub(super) fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let path = absolute.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Reads a short file, trimmed; `None` if it is unreadable.
    pub(super) fn text(&self, absolute: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.path(absolute)).ok().map(|text| text.trim().to_owned())
    }

    /// Returns the names in a directory, in order; none without the directory.
    pub(super) fn names(&self, absolute: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(absolute)).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort_by_cached_key(|name| (name.len(), name.clone()));
        names
    }

    /// Returns the OpenCL devices, by their numbers. The first call asks the drivers, by way of a
    /// child process.
    ///
    /// # Errors
    /// The reason why they cannot be listed.
    pub(super) fn opencl_devices(&self) -> Result<&[OpenClDevice], String> {
        let list =
            || listing::devices_by(Path::new(LISTING_PROGRAM)).map_err(|error| error.to_string());
        self.opencl.get_or_init(list).as_deref().map_err(Clone::clone)
    }

    /// Returns the CUDA devices, by their numbers, as [`Host::opencl_devices`] does.
    ///
    /// # Errors
    /// The reason why they cannot be listed.
    pub(super) fn cuda_devices(&self) -> Result<&[CudaDevice], String> {
        let list = || {
            cuda::listing::devices_by(Path::new(LISTING_PROGRAM)).map_err(|error| error.to_string())
        };
        self.cuda.get_or_init(list).as_deref().map_err(Clone::clone)
    }

    /// Returns the last component of a link's target.
    pub(super) fn link_name(&self, absolute: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.path(absolute)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }
}

#[cfg(test)]
impl Host {
    /// Creates a machine in a directory, with these files.
    pub(super) fn in_folder(root: &Path, files: &[(&str, &str)]) -> Self {
        let host = Self { root: root.to_path_buf(), ..Self::default() };
        for (path, text) in files {
            let path = host.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        host
    }

    /// Gives it CUDA devices, or a reason why they cannot be listed.
    pub(super) fn with_cuda(self, devices: Result<Vec<CudaDevice>, String>) -> Self {
        Self { cuda: Arc::new(OnceLock::from(devices)), ..self }
    }

    /// Gives it OpenCL devices, or a reason why they cannot be listed.
    pub(super) fn with_opencl(self, devices: Result<Vec<OpenClDevice>, String>) -> Self {
        Self { opencl: Arc::new(OnceLock::from(devices)), ..self }
    }
}
