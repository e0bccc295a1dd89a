//! A virtual wire, of the kind that joins the nodes of a rack in network namespaces.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use venice_measure::child::{find_program, run_tool};

/// MTU, the same as on the wires of a rack: a page and its header fit in one packet.
const MTU: &str = "9000";

/// The network device at the far end.
pub(crate) const FAR_DEVICE: &str = "eth0";

/// A bridge in this namespace, a second network namespace and a veth pair between them. Dropping it
/// removes all.
#[derive(Debug)]
pub(crate) struct Wire {
    bridge: String,
    namespace: String,
    /// The address at this end.
    pub(crate) near: Ipv4Addr,
    /// The address at the far end.
    pub(crate) far: Ipv4Addr,
}

impl Wire {
    /// Lays the wire.
    ///
    /// # Errors
    /// Without root, or when the kernel has no namespaces, bridges or veth.
    pub(crate) fn lay() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            bail!("network namespaces need root");
        }
        let pid = std::process::id();
        // Interface names have at most 15 characters.
        let (near, far) = addresses(pid);
        let wire = Self {
            bridge: format!("vbn{pid}"),
            namespace: format!("venice-bench-{pid}"),
            near,
            far,
        };
        let (bridge, namespace) = (wire.bridge.as_str(), wire.namespace.as_str());
        let port = format!("vbw{pid}");
        let ip = |arguments: &[&str]| run_tool("ip", arguments);
        ip(&["netns", "add", namespace])?;
        ip(&["link", "add", bridge, "type", "bridge"])?;
        ip(&["link", "set", bridge, "mtu", MTU])?;
        ip(&["addr", "add", &format!("{near}/30"), "dev", bridge])?;
        ip(&["link", "set", bridge, "up"])?;
        let pair = ["type", "veth", "peer", "name", FAR_DEVICE, "netns", namespace];
        ip(&[&["link", "add", &port], &pair[..]].concat())?;
        ip(&["link", "set", &port, "mtu", MTU, "master", bridge, "up"])?;
        ip(&["-n", namespace, "addr", "add", &format!("{far}/30"), "dev", FAR_DEVICE])?;
        ip(&["-n", namespace, "link", "set", FAR_DEVICE, "mtu", MTU, "up"])?;
        ip(&["-n", namespace, "link", "set", "lo", "up"])?;
        Ok(wire)
    }

    /// Returns the network device at this end.
    pub(crate) fn near_device(&self) -> &str {
        &self.bridge
    }

    /// Builds a command that starts `program` at the far end.
    ///
    /// # Errors
    /// When `ip` is not installed.
    pub(crate) fn far_command(&self, program: &Path) -> Result<Command> {
        let mut command = Command::new(find_program("ip")?);
        command.args(["netns", "exec", &self.namespace]).arg(program);
        Ok(command)
    }

    /// Opens the namespace, to enter it.
    ///
    /// # Errors
    /// When it is gone.
    pub(crate) fn namespace_file(&self) -> Result<File> {
        let path = Path::new("/run/netns").join(&self.namespace);
        File::open(&path).with_context(|| format!("cannot open {}", path.display()))
    }
}

/// Returns the two addresses of a private /30 network, so that two runs at a time do not collide:
/// out of
/// 198.18.0.0/15, which RFC 2544 sets aside for benchmarks.
fn addresses(pid: u32) -> (Ipv4Addr, Ipv4Addr) {
    let network = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + pid % (1 << 15) * 4;
    (Ipv4Addr::from(network + 1), Ipv4Addr::from(network + 2))
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Either may be missing after a failed start. The veth pair goes with the namespace.
        let _ = run_tool("ip", &["netns", "del", &self.namespace]);
        let _ = run_tool("ip", &["link", "del", &self.bridge]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_stay_in_the_benchmark_range() {
        assert_eq!(addresses(1).0, Ipv4Addr::new(198, 18, 0, 5));
        assert_eq!(addresses((1 << 15) - 1).1, Ipv4Addr::new(198, 19, 255, 254));
        assert_eq!(addresses(u32::MAX), addresses((1 << 15) - 1));
    }
}
