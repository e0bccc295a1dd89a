//! A network namespace for each node and one in the middle, joined by veth and a bridge.

use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

/// MTU, the same as on the wires of a rack: a page and its header fit in one packet.
const MTU: &str = "9000";

/// Folder of `ip` with the names of namespaces.
const NAMES: &str = "/run/netns";
/// Prefix of racks' namespaces; the process that made them follows.
const PREFIX: &str = "venice-rack-";
/// The interface of each node.
pub const INTERFACE: &str = "eth0";

/// Address of the forwarder.
pub const HUB_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

/// Returns the address of a node. All are in namespaces of their own, so these addresses collide
/// with no others.
pub fn node_address(node: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(HUB_ADDRESS) + 1 + u32::from(node))
}

/// The namespaces of one rack. Dropping it removes them.
#[derive(Debug)]
pub struct Namespaces {
    prefix: String,
    nodes: u16,
}

impl Namespaces {
    /// Creates them.
    ///
    /// # Errors
    /// Without root, or when the kernel has no namespaces, bridges or veth.
    pub fn new(nodes: u16) -> Result<Self> {
        static RACKS: AtomicU32 = AtomicU32::new(0);
        static TIDIED: Once = Once::new();
        TIDIED.call_once(remove_stale);
        let number = RACKS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("{PREFIX}{}-{number}", std::process::id());
        let made = Self { prefix, nodes };
        let names: String =
            (0..nodes).map(|node| format!("netns add {}\n", made.node(node))).collect();
        ip(&[], &format!("netns add {}\n{names}", made.hub()))?;
        let mut hub = format!(
            "link set lo up\nlink add br0 type bridge\nlink set br0 mtu {MTU}\n\
             addr add {HUB_ADDRESS}/24 dev br0\nlink set br0 up\n"
        );
        for node in 0..nodes {
            hub += &format!(
                "link add p{node} type veth peer name {INTERFACE} netns {}\n\
                 link set p{node} mtu {MTU} master br0 up\n",
                made.node(node)
            );
        }
        ip(&["-n", &made.hub()], &hub)?;
        for node in 0..nodes {
            let address = node_address(node);
            let commands = format!(
                "link set lo up\naddr add {address}/24 dev {INTERFACE}\nlink set {INTERFACE} mtu {MTU} up\n"
            );
            ip(&["-n", &made.node(node)], &commands)?;
        }
        Ok(made)
    }

    /// Returns the namespace in the middle.
    pub fn hub(&self) -> String {
        format!("{}-hub", self.prefix)
    }

    /// Returns the namespace of a node.
    pub fn node(&self, node: u16) -> String {
        format!("{}-{node}", self.prefix)
    }

    /// Sets the interface of a node up or down.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn set_link(&self, node: u16, is_up: bool) -> Result<()> {
        let state = if is_up { "up" } else { "down" };
        ip(&["-n", &self.hub()], &format!("link set p{node} {state}\n"))
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        // Some may be missing after a failed creation.
        for name in (0..self.nodes).map(|node| self.node(node)).chain([self.hub()]) {
            let _ = ip(&[], &format!("netns del {name}\n"));
        }
    }
}

/// Removes namespaces of racks whose parent was killed.
fn remove_stale() {
    // The folder is missing until the first namespace exists.
    let Ok(entries) = std::fs::read_dir(NAMES) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if owner(name).is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            // Another rack may have removed it already.
            let _ = ip(&[], &format!("netns del {name}\n"));
        }
    }
}

/// Returns the process that made a rack's namespace; `None` for others.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

/// Runs commands by `ip`.
fn ip(options: &[&str], commands: &str) -> Result<()> {
    let mut child = Command::new("ip")
        .args(options)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start ip")?;
    let mut input = child.stdin.take().context("ip has no input")?;
    // It may end before it has read everything; its error output has the reason.
    let _ = input.write_all(commands.as_bytes());
    drop(input);
    let output = child.wait_with_output().context("cannot wait for ip")?;
    if !output.status.success() {
        bail!("ip: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dead_owners_namespaces_are_removed() {
        if !rustix::process::geteuid().is_root() {
            return println!("SKIPPED: only_dead_owners_namespaces_are_removed: needs root");
        }
        let mut dead = Command::new("true").spawn().unwrap();
        dead.wait().unwrap();
        let stale = format!("{PREFIX}{}-0-1", dead.id());
        let own = format!("{PREFIX}{}-own", std::process::id());
        let other = format!("venice-other-{}", dead.id());
        for name in [&stale, &own, &other] {
            ip(&[], &format!("netns add {name}\n")).unwrap();
        }
        remove_stale();
        let is_there = |name: &String| Path::new(NAMES).join(name).exists();
        assert_eq!([&stale, &own, &other].map(is_there), [false, true, true]);
        for name in [own, other] {
            ip(&[], &format!("netns del {name}\n")).unwrap();
        }
    }
}
