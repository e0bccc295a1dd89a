//! What single features use: network namespaces, zram.

use std::path::Path;

use rustix::thread::CapabilitySet;

use super::{Finding, kernel};

/// Rows about facilities; none of them stops `venice run`.
pub fn examine() -> Vec<Finding> {
    vec![network_namespaces(), zram()]
}

fn network_namespaces() -> Finding {
    let what = "network namespaces";
    if !Path::new("/proc/self/ns/net").exists() {
        return Finding::missing(what, "not in this kernel", "boot a kernel with CONFIG_NET_NS=y");
    }
    if on_path("ip").is_none() {
        let mend = "install iproute2 (`venice up --netns` needs its `ip`)";
        return Finding::missing(what, "in the kernel, but there is no `ip` command", mend);
    }
    if !kernel::has_capability(CapabilitySet::NET_ADMIN)
        || !kernel::has_capability(CapabilitySet::SYS_ADMIN)
    {
        let mend = "run `venice up --netns` as root";
        return Finding::warn(what, "there, but this user may not make any", mend);
    }
    Finding::ok(what, "can be made (venice up --netns)")
}

fn zram() -> Finding {
    let there = Path::new("/sys/class/zram-control").exists() || Path::new("/dev/zram0").exists();
    if there {
        return Finding::ok("zram", "there, to compare with");
    }
    let mend = "`modprobe zram` (only compared with, in `venice bench fault`)";
    Finding::missing("zram", "no zram device", mend)
}

/// Where `program` is on the PATH, or in the usual places of administrators' programs.
pub fn on_path(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(std::path::PathBuf::from);
    std::env::split_paths(&path).chain(usual).map(|dir| dir.join(program)).find(|p| p.is_file())
}
