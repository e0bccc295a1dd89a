//! What single features use: network namespaces, FUSE, zram, loop devices.

use std::fs::OpenOptions;
use std::path::Path;

use rustix::thread::CapabilitySet;
use venice_ports::udp::UdpOffloads;
use venice_ports::verbs::{Device, VerbsError};

use super::{Finding, kernel};

/// Rows about facilities; none of them stops `venice run`.
pub fn examine() -> Vec<Finding> {
    vec![
        network_namespaces(),
        rdma(),
        datagram_trains(),
        device(
            "FUSE",
            "/dev/fuse",
            "`modprobe fuse` (swap through FUSE is only compared with, in `venice bench fault`)",
        ),
        zram(),
        device(
            "loop devices",
            "/dev/loop-control",
            "`modprobe loop` (swap to a file is only compared with, in the benchmarks)",
        ),
    ]
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

/// The verbs port: rdma-core, and a device with an active port.
fn rdma() -> Finding {
    let what = "RDMA";
    match Device::open(None) {
        Ok(device) => {
            let atomics = if device.has_atomics() { "" } else { ", without atomic operations" };
            Finding::ok(what, format!("device {}{atomics}", device.name()))
        }
        Err(VerbsError::Library { reason }) => Finding::missing(
            what,
            format!("rdma-core cannot be loaded ({reason})"),
            "install libibverbs1 and ibverbs-providers (the verbs port needs them)",
        ),
        Err(VerbsError::NoDevice { .. }) => Finding::missing(
            what,
            "rdma-core is there, but no device with an active port",
            "`rdma link` shows devices; without an RDMA NIC, soft RoCE: `modprobe rdma_rxe && rdma \
             link add rxe0 type rxe netdev eth0`",
        ),
        Err(error) => Finding::warn(what, with_cause(&error), "run as root; see `rdma link`"),
    }
}

fn with_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn datagram_trains() -> Finding {
    let what = "trains of datagrams";
    let mend = "boot a kernel of version 5.0 or later: the udp port works without, slower";
    match UdpOffloads::detect() {
        Ok(UdpOffloads { segmentation: true, coalescing: true }) => {
            Finding::ok(what, "sent and received as one (UDP_SEGMENT, UDP_GRO)")
        }
        Ok(UdpOffloads { segmentation: true, .. }) => {
            Finding::warn(what, "sent as one, received singly (no UDP_GRO)", mend)
        }
        Ok(_) => Finding::warn(what, "sent singly (no UDP_SEGMENT)", mend),
        Err(error) => Finding::warn(what, format!("{error}"), mend),
    }
}

fn device(what: &'static str, path: &str, mend: &str) -> Finding {
    if !Path::new(path).exists() {
        return Finding::missing(what, format!("no {path}"), mend);
    }
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(_) => Finding::ok(what, path),
        Err(error) => Finding::warn(what, format!("{path}: {error}"), "run as root"),
    }
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
