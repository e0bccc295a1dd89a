//! The vendor directory of a run: the drivers that the ICD loader of a program finds, Venice's first.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use venice_accel::opencl::drivers::VENDORS_DIR;

use super::Variables;

/// Variable of all loaders: a directory of `.icd` files, or one such file, or a driver (libOpenCL(7)).
const VENDORS: &str = "OCL_ICD_VENDORS";
/// Older name of a directory of `.icd` files.
const VENDOR_PATH: &str = "OPENCL_VENDOR_PATH";
/// Variable of Khronos' loader: drivers that come before those of the directory.
const FILENAMES: &str = "OCL_ICD_FILENAMES";
/// Variable of ocl-icd: `none` keeps the order of the directory.
const PLATFORM_SORT: &str = "OCL_ICD_PLATFORM_SORT";
/// Names to try for the file that must be the first of its directory.
const NAMES: u32 = 64;

/// Fills an empty directory with the drivers of this machine and Venice's; returns the variables
/// with which loaders find them.
///
/// # Errors
/// Fails if the directory cannot be written.
pub(super) fn install(library: &Path, dir: &Path) -> io::Result<Variables> {
    install_beside(library, dir, |name| std::env::var_os(name).filter(|text| !text.is_empty()))
}

fn install_beside(
    library: &Path,
    dir: &Path,
    variable: impl Fn(&str) -> Option<OsString>,
) -> io::Result<Variables> {
    for (name, driver) in local_drivers(&variable) {
        // The run may be a part of another one.
        if Path::new(&driver) != library {
            write(&dir.join(name), &line(&driver))?;
        }
    }
    put_first(dir, &line(library.as_os_str()))?;
    let mut filenames = library.as_os_str().to_owned();
    if let Some(others) = variable(FILENAMES) {
        filenames.push(":");
        filenames.push(others);
    }
    let sort = variable(PLATFORM_SORT).unwrap_or_else(|| "none".into());
    Ok(vec![
        (VENDORS, dir.into()),
        (VENDOR_PATH, dir.into()),
        (FILENAMES, filenames),
        (PLATFORM_SORT, sort),
    ])
}

/// Returns the drivers that a loader would find with these variables, by names of files.
fn local_drivers(variable: &impl Fn(&str) -> Option<OsString>) -> BTreeMap<OsString, OsString> {
    let vendors = variable(VENDOR_PATH).map_or_else(|| PathBuf::from(VENDORS_DIR), PathBuf::from);
    let Some(named) = variable(VENDORS).map(PathBuf::from) else { return drivers_in(&vendors) };
    if named.is_dir() {
        return drivers_in(&named);
    }
    if !is_icd(&named) {
        return BTreeMap::from([("local.icd".into(), named.into_os_string())]);
    }
    let is_name = named.components().count() == 1;
    let there = Some(vendors.join(&named)).filter(|path| is_name && path.is_file());
    driver_of(&there.unwrap_or(named)).into_iter().collect()
}

fn drivers_in(dir: &Path) -> BTreeMap<OsString, OsString> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| is_icd(path))
        .filter_map(|it| driver_of(&it))
        .collect()
}

/// Returns the name of an `.icd` file with the driver in its first line.
fn driver_of(icd: &Path) -> Option<(OsString, OsString)> {
    let text = fs::read_to_string(icd).ok()?;
    let driver = text.lines().next()?.trim();
    (!driver.is_empty()).then(|| Some((icd.file_name()?.to_owned(), driver.into())))?
}

fn is_icd(path: &Path) -> bool {
    path.extension().is_some_and(|it| it == "icd")
}

fn line(driver: &OsStr) -> Vec<u8> {
    let mut line = driver.as_encoded_bytes().to_vec();
    line.push(b'\n');
    line
}

/// Writes a file that nobody else writes to, whatever the umask is: loaders load what it names.
fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    file.write_all(text)
}

/// Writes a file that a reader of the directory meets before the others. The order depends on the
/// file system, so that names are tried; if none is the first, the last one stays.
fn put_first(dir: &Path, text: &[u8]) -> io::Result<()> {
    for number in 0..NAMES {
        let path = dir.join(format!("venice{number}.icd"));
        write(&path, text)?;
        let first = fs::read_dir(dir)?.next().transpose()?;
        if first.is_some_and(|it| it.path() == path) || number + 1 == NAMES {
            break;
        }
        fs::remove_file(&path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBRARY: &str = "/opt/venice/libvenice_opencl.so";

    /// Installs beside what the variables name; returns the drivers in the directory's order.
    fn installed(variables: &[(&str, &Path)]) -> (Vec<String>, Variables) {
        let dir = tempfile::tempdir().unwrap();
        let variable = |name: &str| {
            let found = variables.iter().find(|(it, _)| *it == name);
            found.map(|(_, value)| value.as_os_str().to_owned())
        };
        let set = install_beside(Path::new(LIBRARY), dir.path(), variable).unwrap();
        let files = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let text = files.map(|path| fs::read_to_string(path).unwrap().trim().to_owned());
        (text.collect(), set)
    }

    fn vendors() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("pocl.icd", "libpocl.so.2\n"),
            ("gpu.icd", "/opt/gpu/libgpu.so\nignored"),
            ("outer.icd", LIBRARY),
            ("empty.icd", "\n"),
            ("README", "libno.so"),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn venice_comes_before_local_drivers() {
        let vendors = vendors();
        for variable in [VENDORS, VENDOR_PATH] {
            let (mut drivers, set) = installed(&[(variable, vendors.path())]);
            assert_eq!(drivers[0], LIBRARY);
            drivers.sort_unstable();
            assert_eq!(drivers, ["/opt/gpu/libgpu.so", LIBRARY, "libpocl.so.2"]);
            let value = |name| set.iter().find(|(it, _)| *it == name).unwrap().1.clone();
            assert_eq!((value(FILENAMES), value(PLATFORM_SORT)), (LIBRARY.into(), "none".into()));
        }
    }

    #[test]
    fn single_driver_stays_beside() {
        let vendors = vendors();
        let dir = (VENDOR_PATH, vendors.path());
        let (drivers, _) = installed(&[dir, (VENDORS, Path::new("pocl.icd"))]);
        assert_eq!(drivers, [LIBRARY, "libpocl.so.2"]);
        let path = vendors.path().join("gpu.icd");
        let (drivers, _) = installed(&[(VENDORS, &path)]);
        assert_eq!(drivers, [LIBRARY, "/opt/gpu/libgpu.so"]);
        let (drivers, _) = installed(&[(VENDORS, Path::new("libother.so"))]);
        assert_eq!(drivers, [LIBRARY, "libother.so"]);
        let (drivers, _) = installed(&[(VENDORS, Path::new("missing.icd")), dir]);
        assert_eq!(drivers, [LIBRARY]);
    }

    #[test]
    fn own_choices_of_user_stay() {
        let vendors = vendors();
        let (_, set) = installed(&[
            (VENDORS, vendors.path()),
            (FILENAMES, Path::new("/opt/a.so")),
            (PLATFORM_SORT, Path::new("devices")),
        ]);
        assert!(set.contains(&(FILENAMES, format!("{LIBRARY}:/opt/a.so").into())));
        assert!(set.contains(&(PLATFORM_SORT, "devices".into())));
    }
}
