//! Kernel facilities of single features: network namespaces, zram.

use std::path::Path;

use rustix::thread::CapabilitySet;

use super::{Finding, kernel};

/// Rows about facilities; no mode of `venice run` needs them.
pub fn examine() -> Vec<Finding> {
    vec![network_namespaces(), zram()]
}

fn network_namespaces() -> Finding {
    let what = "network namespaces";
    if !Path::new("/proc/self/ns/net").exists() {
        return Finding::missing(what, "not in this kernel", "boot a kernel with CONFIG_NET_NS=y");
    }
    if on_path("ip").is_none() {
        let remedy = "install iproute2 (`venice up --netns` needs its `ip`)";
        return Finding::missing(what, "in the kernel, but there is no `ip` command", remedy);
    }
    if !kernel::has_capability(CapabilitySet::NET_ADMIN)
        || !kernel::has_capability(CapabilitySet::SYS_ADMIN)
    {
        let remedy = "run `venice up --netns` as root";
        return Finding::warn(what, "present, but this user may not create any", remedy);
    }
    Finding::ok(what, "usable (venice up --netns)")
}

fn zram() -> Finding {
    let there = Path::new("/sys/class/zram-control").exists() || Path::new("/dev/zram0").exists();
    if there {
        return Finding::ok("zram", "present, for comparisons");
    }
    let remedy = "`modprobe zram` (only for comparison in `venice bench fault`)";
    Finding::missing("zram", "no zram device", remedy)
}

/// Finds `program` on the PATH or in the usual directories of system programs.
pub fn on_path(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(std::path::PathBuf::from);
    std::env::split_paths(&path).chain(usual).map(|dir| dir.join(program)).find(|p| p.is_file())
}
