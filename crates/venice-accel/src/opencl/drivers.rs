//! Vendors' drivers: what the confined host of a device needs of its machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use venice_service::{
    CacheDir, CacheEntries, CallGroup, HostLimits, HostSpec, Measure, ServiceSecret,
};

use super::found::OpenClDevice;
use super::options::OpenClOptions;
use crate::mailbox::Shape;

/// Directory in which the ICD loader looks for drivers.
pub const VENDORS_DIR: &str = "/etc/OpenCL/vendors";
/// Memory that a driver with its compiler takes beside the device's, in bytes.
const DRIVER_BYTES: u64 = 1 << 30;
/// Bytes of a file of bulk data, each of which takes a descriptor of the host.
const BULK_FILE_BYTES: u64 = 16 << 20;
/// Descriptors of a driver beside those of bulk data, with those of mailboxes.
const DRIVER_FILES: u64 = 512 + 64;
/// Threads and processes of a driver beside one a processor.
const DRIVER_PROCESSES: u32 = 128;
/// Processor time of the host of a device that computes by itself, in percent of one processor.
const FEEDER_CPU_PERCENT: u32 = 200;

/// Advice for a machine without any driver.
pub const NO_DRIVER: &str = "no OpenCL driver with a device is installed (Debian: apt install pocl-opencl-icd, for processors)";

/// Needs of a driver.
struct Driver {
    /// Beginning of the name of its platform.
    platform: &'static str,
    /// Word for the platform, as a capability.
    word: &'static str,
    /// Device nodes; one that ends with `*` stands for all that begin so.
    nodes: &'static [&'static str],
    /// Files and trees that it reads.
    read_paths: &'static [&'static str],
    /// System calls.
    calls: &'static [CallGroup],
}

/// Files and trees of the loader and every driver.
const READ_PATHS: &[&str] = &[
    "/etc/OpenCL",
    "/etc/ld.so.cache",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    // Processors and memory, which hwloc and LLVM look for.
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
];

/// Bytes of what a host may newly compile and keep, of each driver.
pub(crate) const CACHE_BYTES: u64 = 128 << 20;

/// Cache of compiled code that a driver keeps in files.
struct DriverCache {
    /// Variable with its directory.
    variable: &'static str,
    /// Name of that directory.
    dir: &'static str,
    entries: CacheEntries,
    /// Variable with its most bytes, and the unit in which it has them with the unit's letter.
    bound: Option<(&'static str, u64, &'static str)>,
}

/// Caches of all drivers, each with the source of its form. Only PoCL's is tested here.
const CACHES: &[DriverCache] = &[
    // Two letters of the program's hash, the others, then each kernel: lib/CL/pocl_cache.c.
    DriverCache {
        variable: "POCL_CACHE_DIR",
        dir: "pocl",
        entries: CacheEntries::Below(2),
        bound: None,
    },
    // CUDA C++ Programming Guide, "CUDA Environment Variables". It has an index.
    DriverCache {
        variable: "CUDA_CACHE_PATH",
        dir: "cuda",
        entries: CacheEntries::Whole,
        bound: Some(("CUDA_CACHE_MAXSIZE", 1, "")),
    },
    // Mesa's docs/envvars.rst; its size is in an index, or it is one file.
    DriverCache {
        variable: "MESA_SHADER_CACHE_DIR",
        dir: "mesa",
        entries: CacheEntries::Whole,
        bound: Some(("MESA_SHADER_CACHE_MAX_SIZE", 1024, "K")),
    },
    // A file each build: compute-runtime's programmers-guide/COMPILER_CACHE.md.
    DriverCache {
        variable: "NEO_CACHE_DIR",
        dir: "neo",
        entries: CacheEntries::Below(1),
        bound: Some(("NEO_CACHE_MAX_SIZE", 1, "")),
    },
    // A file each build, of LLVM's cache: amd/comgr/README.md.
    DriverCache {
        variable: "AMD_COMGR_CACHE_DIR",
        dir: "comgr",
        entries: CacheEntries::Below(1),
        bound: None,
    },
];

/// Variables of every host.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("PATH", "/usr/bin:/bin"),
    ("HOME", "/tmp"),
    ("TMPDIR", "/tmp"),
    ("NEO_CACHE_PERSISTENT", "1"),
    ("AMD_COMGR_CACHE", "1"),
];

/// The drivers, each with the source of its needs. Only PoCL's are tested here.
const DRIVERS: &[Driver] = &[
    // PoCL links each kernel by the system's linker: lib/CL/pocl_llvm_build.cc.
    Driver {
        platform: "Portable Computing Language",
        word: "pocl",
        nodes: &[],
        read_paths: &["/usr/share/pocl", "/usr/bin/ld"],
        calls: &[CallGroup::Processes],
    },
    // The nodes and files that nvidia-container-cli gives a container for `compute`.
    Driver {
        platform: "NVIDIA CUDA",
        word: "nvidia",
        nodes: &["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia*"],
        read_paths: &["/proc/driver/nvidia", "/sys/bus/pci", "/sys/devices", "/proc/devices"],
        calls: &[CallGroup::Devices],
    },
    // ROCm: "Running ROCm Docker containers", --device=/dev/kfd --device=/dev/dri.
    Driver {
        platform: "AMD Accelerated Parallel Processing",
        word: "amd",
        nodes: &["/dev/kfd", "/dev/dri/renderD*"],
        read_paths: &["/opt/rocm", "/sys/class/kfd", "/sys/class/drm", "/sys/devices"],
        calls: &[CallGroup::Devices],
    },
];

/// Needs of a driver that is not in the table: those of Mesa's and Intel's.
const OTHER: Driver = Driver {
    platform: "",
    word: "",
    nodes: &["/dev/dri/renderD*"],
    read_paths: &["/usr/share", "/sys/class/drm", "/sys/dev/char", "/sys/bus/pci", "/sys/devices"],
    calls: &[CallGroup::Devices, CallGroup::Processes],
};

/// Returns the word for a platform that the table has: `pocl`.
pub fn word_of(platform: &str) -> Option<&'static str> {
    driver_of(platform).map(|it| it.word)
}

fn driver_of(platform: &str) -> Option<&'static Driver> {
    DRIVERS.iter().find(|it| platform.starts_with(it.platform))
}

/// Returns the host that serves a device of which `bytes` are granted. It has what the device's
/// driver needs and this machine has.
pub fn host_spec(device: &OpenClDevice, bytes: u64, secret: ServiceSecret) -> HostSpec {
    let processors = std::thread::available_parallelism().map_or(1, |it| it.get() as u32);
    let mut spec = spec_for_platform(super::SERVICE, &device.platform, secret);
    spec.limits = HostLimits {
        memory_bytes: bytes.saturating_add(DRIVER_BYTES + Shape::default().region_bytes()),
        cpu_percent: if device.is_cpu() { 100 * processors } else { FEEDER_CPU_PERCENT },
        processes: DRIVER_PROCESSES.saturating_add(processors),
        open_files: u32::try_from(bytes / BULK_FILE_BYTES + DRIVER_FILES).unwrap_or(u32::MAX),
        scratch_bytes: DRIVER_BYTES / 4,
        scratch_files: 1 << 14,
        cache_bytes: CACHE_BYTES,
        connections: 64,
        start_ms: 30_000,
        ..HostLimits::default()
    };
    spec.options = OpenClOptions::new(device, bytes).to_text();
    spec
}

/// Returns a spec with what the driver of a platform needs of this machine, without limits.
pub(crate) fn spec_for_platform(service: &str, platform: &str, secret: ServiceSecret) -> HostSpec {
    let driver = driver_of(platform).unwrap_or(&OTHER);
    let mut spec = HostSpec::new(service, secret);
    spec.devices = [&["/dev/null"], driver.nodes].concat().into_iter().flat_map(nodes).collect();
    spec.devices.sort_unstable();
    spec.devices.dedup();
    spec.read_paths = read_paths(driver.read_paths);
    spec.executable_scratch = true;
    let places = CACHES.iter().map(|it| (it.variable, format!("/cache/{}", it.dir)));
    let plain = ENVIRONMENT.iter().map(|(name, value)| (*name, (*value).to_owned()));
    spec.environment = plain.chain(places).map(|(name, value)| (name.to_owned(), value)).collect();
    let cache = |it: &DriverCache| CacheDir { name: it.dir.to_owned(), entries: it.entries };
    spec.caches = CACHES.iter().map(cache).collect();
    bound_caches(&mut spec, CACHE_BYTES);
    spec.calls = driver.calls.to_vec();
    // Its environment names places of the empty root; what recipients compile must stay in there.
    spec.require = vec![Measure::EmptyRoot];
    spec
}

/// Has a host begin with what earlier hosts of the owner have compiled, at most `bytes`, and keeps
/// what it compiles. The host may use as much memory more.
pub fn keep_caches(spec: &mut HostSpec, owner: String, bytes: u64) {
    spec.cache_owner = Some(owner);
    let limits = &mut spec.limits;
    limits.cache_bytes = limits.cache_bytes.saturating_add(bytes);
    limits.memory_bytes = limits.memory_bytes.saturating_add(bytes);
    bound_caches(spec, bytes);
}

/// Has the drivers themselves bound their caches, if they can.
fn bound_caches(spec: &mut HostSpec, bytes: u64) {
    for (name, unit, letter) in CACHES.iter().filter_map(|it| it.bound) {
        // Below what a store takes of an entry: directories count too.
        let bound = format!("{}{letter}", bytes / 4 * 3 / unit);
        spec.environment.insert(name.to_owned(), bound);
    }
}

/// Returns the device nodes of a pattern that are there, all of them character devices.
fn nodes(pattern: &str) -> Vec<PathBuf> {
    use std::os::unix::fs::FileTypeExt;
    let is_node =
        |path: &PathBuf| fs::metadata(path).is_ok_and(|it| it.file_type().is_char_device());
    let Some(begin) = pattern.strip_suffix('*') else {
        return [PathBuf::from(pattern)].into_iter().filter(is_node).collect();
    };
    let dir = Path::new(begin).parent().unwrap_or(Path::new("/dev"));
    let all = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    all.filter(|path| path.to_string_lossy().starts_with(begin)).filter(is_node).collect()
}

/// Returns the paths that are there, without those below another one, and the trees of drivers that
/// are installed elsewhere.
fn read_paths(of_driver: &[&str]) -> Vec<PathBuf> {
    let named = READ_PATHS.iter().chain(of_driver).map(PathBuf::from);
    let elsewhere = driver_libraries(Path::new(VENDORS_DIR)).into_iter().map(|it| tree_of(&it));
    let all: BTreeSet<PathBuf> = named.chain(elsewhere).filter(|path| path.exists()).collect();
    let is_below = |path: &&PathBuf| path.ancestors().skip(1).any(|above| all.contains(above));
    all.iter().filter(|path| !is_below(path)).cloned().collect()
}

/// Returns the drivers that are named by their paths, in a directory of `.icd` files: a line each.
pub fn driver_libraries(vendors: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(vendors).into_iter().flatten().flatten().map(|entry| entry.path());
    let icds = files.filter(|path| path.extension().is_some_and(|it| it == "icd"));
    let libraries = icds.filter_map(|path| {
        let text = fs::read_to_string(path).ok()?;
        Some(PathBuf::from(text.lines().next()?.trim()))
    });
    let is_plain = |path: &PathBuf| {
        let mut parts = path.components();
        parts.next() == Some(Component::RootDir)
            && parts.all(|part| matches!(part, Component::Normal(_)))
    };
    libraries.filter(is_plain).collect()
}

/// Returns the tree that a library is installed in, `/opt/pocl` for `/opt/pocl/lib/libpocl.so`; its
/// directory where that would be a top-level one.
fn tree_of(library: &Path) -> PathBuf {
    let dir = library.parent().unwrap_or(library);
    let is_lib = |path: &&Path| path.ends_with("lib") || path.ends_with("lib64");
    let prefix = library.ancestors().find(is_lib).and_then(Path::parent);
    let deep = |path: &&Path| path.components().count() > 2;
    prefix.filter(deep).unwrap_or(dir).to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(platform: &str, class: &str) -> OpenClDevice {
        OpenClDevice {
            index: 3,
            platform: platform.into(),
            place: 1,
            name: "device".into(),
            class: class.into(),
            version: String::new(),
            driver: String::new(),
            bytes: 1 << 30,
            abilities: Vec::new(),
            pci: None,
        }
    }

    const SECRET: ServiceSecret = ServiceSecret::from_bytes([7; 32]);

    #[test]
    fn specs_are_valid() {
        for platform in DRIVERS.iter().map(|it| it.platform).chain(["rusticl"]) {
            let spec = host_spec(&device(platform, "gpu"), 1 << 34, SECRET);
            assert_eq!(spec.check(), Ok(()), "{platform}");
            let options = OpenClOptions::parse(&spec.options).unwrap();
            assert_eq!(
                options,
                OpenClOptions { platform: platform.into(), place: 1, bytes: 1 << 34 }
            );
            assert!(spec.devices.contains(&"/dev/null".into()));
            assert!(spec.limits.open_files >= 1024 + 512);
        }
    }

    #[test]
    fn kept_caches_are_bounded() {
        let mut spec = host_spec(&device("NVIDIA CUDA", "gpu"), 1 << 30, SECRET);
        let before = spec.limits.clone();
        keep_caches(&mut spec, "bob@n1".into(), 64 << 20);
        assert_eq!(spec.check(), Ok(()));
        assert_eq!(spec.limits.cache_bytes, CACHE_BYTES + (64 << 20));
        assert_eq!(spec.limits.memory_bytes, before.memory_bytes + (64 << 20));
        let value = |name: &str| spec.environment[name].as_str();
        assert_eq!(value("CUDA_CACHE_MAXSIZE"), (48 << 20).to_string());
        assert_eq!(value("MESA_SHADER_CACHE_MAX_SIZE"), format!("{}K", 48 << 10));
        assert_eq!(value("POCL_CACHE_DIR"), "/cache/pocl");
        assert!(spec.caches.iter().any(|it| it.name == "pocl"));
    }

    #[test]
    fn pocl_gets_no_device_calls() {
        let spec = host_spec(&device("Portable Computing Language", "cpu"), 1 << 30, SECRET);
        assert_eq!(
            (spec.calls, spec.devices),
            (vec![CallGroup::Processes], vec!["/dev/null".into()])
        );
    }

    #[test]
    fn drivers_elsewhere_are_found() {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("a.icd", "/opt/pocl/lib/x86_64-linux-gnu/libpocl.so.2\n"),
            ("b.icd", "libnvidia-opencl.so.1"),
            ("c.icd", "/opt/../etc/libx.so"),
            ("d.txt", "/opt/y/liby.so"),
        ] {
            fs::write(dir.path().join(file), text).unwrap();
        }
        let found = driver_libraries(dir.path());
        assert_eq!(found, [PathBuf::from("/opt/pocl/lib/x86_64-linux-gnu/libpocl.so.2")]);
        assert_eq!(tree_of(&found[0]), Path::new("/opt/pocl"));
        assert_eq!(tree_of(Path::new("/usr/lib/libx.so")), Path::new("/usr/lib"));
        assert_eq!(tree_of(Path::new("/opt/libx.so")), Path::new("/opt"));
    }
}
