//! The directory of a run with the driver libraries of CUDA, in front of those of the machine.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::Variables;

/// Names under which programs and libraries load the driver and NVML.
const NAMES: [&str; 4] = ["libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so"];
/// Variable of the dynamic linker: directories that come before those of the system.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// Fills an empty directory; returns the variables with which the dynamic linker finds it.
///
/// # Errors
/// Fails if the directory cannot be written.
pub(super) fn install(library: &Path, dir: &Path) -> io::Result<Variables> {
    for name in NAMES {
        symlink(library, dir.join(name))?;
    }
    let others = std::env::var_os(LIBRARY_PATH).filter(|text| !text.is_empty());
    Ok(vec![(LIBRARY_PATH, before(dir, others))])
}

fn before(dir: &Path, others: Option<OsString>) -> OsString {
    let mut path = dir.as_os_str().to_owned();
    if let Some(others) = others {
        path.push(":");
        path.push(others);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_precedes_others() {
        let dir = tempfile::tempdir().unwrap();
        let set = install(Path::new("/opt/venice/libvenice_cuda.so"), dir.path()).unwrap();
        assert!(set[0].1.to_string_lossy().starts_with(&*dir.path().to_string_lossy()));
        let link = std::fs::read_link(dir.path().join("libcuda.so.1")).unwrap();
        assert_eq!(link, Path::new("/opt/venice/libvenice_cuda.so"));
        assert_eq!(before(Path::new("/a"), Some("/b".into())), "/a:/b");
    }
}
