//! `--netns`: one network namespace for each node, joined to a bridge by a veth pair, so that
//! packets between nodes cross a real (virtual) wire.
//!
//! The first rack of a machine has the bridge `venice0` and the namespaces `venice-node1`, ...; a
//! second one at the same time has `venice1` and `venice1-node1`, and so on. The alias of a bridge
//! is its rack's run directory: this identifies a bridge left behind by a crash.

use std::fs::{self, File};
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};

use super::process;
use super::run_dir::RunDir;
use super::subnet::Subnet;
use crate::doctor::on_path;

/// Large enough for a page and its header in one packet.
const MTU: u32 = 9000;
/// The interface of a node in its namespace.
pub const INTERFACE: &str = "eth0";
const INTERFACES: &str = "/sys/class/net";
const NAMESPACES: &str = "/run/netns";
const ALIAS_PREFIX: &str = "venice rack ";
/// More racks with namespaces than this on one machine are a mistake.
const MAX_RACKS: u32 = 64;

/// The network of one rack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    number: u32,
    subnet: Subnet,
}

impl Network {
    /// Creates the bridge of a new rack in `dir`, after removing what dead racks left.
    pub fn create(dir: &RunDir) -> anyhow::Result<Network> {
        let _lock = lock_interfaces()?;
        remove_stale(dir)?;
        for number in 0..MAX_RACKS {
            if !interface_exists(&bridge_name(number)) {
                let network = Network { number, subnet: Subnet::free()? };
                network.make_bridge(dir)?;
                return Ok(network);
            }
        }
        bail!("{MAX_RACKS} bridges venice0, venice1, ... exist already: remove some by `ip link`")
    }

    /// Returns the network of the rack in `dir`. Missing parts of its bridge are created again
    /// (after a restart of the network, or an administrator's `ip link del`).
    pub fn restore(dir: &RunDir, subnet: Subnet) -> anyhow::Result<Network> {
        let _lock = lock_interfaces()?;
        if let Some(number) = numbers_of(dir).first() {
            return Ok(Network { number: *number, subnet });
        }
        let free = (0..MAX_RACKS).find(|number| !interface_exists(&bridge_name(*number)));
        let number = free.context("too many bridges named venice0, venice1, ...")?;
        let network = Network { number, subnet };
        network.make_bridge(dir)?;
        Ok(network)
    }

    /// True if the rack in `dir` has a network, or left one behind.
    pub fn exists(dir: &RunDir) -> bool {
        !numbers_of(dir).is_empty()
    }

    /// Removes the network of the rack in `dir`: bridge, veth pairs, namespaces. Succeeds if there
    /// is none.
    pub fn remove(dir: &RunDir) -> anyhow::Result<()> {
        if !Network::exists(dir) {
            return Ok(());
        }
        let _lock = lock_interfaces()?;
        for number in numbers_of(dir) {
            remove_number(number)?;
        }
        Ok(())
    }

    /// Returns the network's subnet.
    pub fn subnet(&self) -> Subnet {
        self.subnet
    }

    /// Creates the namespace of the node with this index (0 is node1), with its veth pair and
    /// address, unless it exists. Returns its name and the node's address.
    pub fn ensure_node(&self, index: usize) -> anyhow::Result<(String, Ipv4Addr)> {
        let name = self.namespace_name(index);
        let address = self.subnet.node_address(index);
        let wire = self.wire_name(index);
        if namespace_path(&name).exists() && interface_exists(&wire) {
            return Ok((name, address));
        }
        self.remove_node(&name, &wire);
        let bridge = bridge_name(self.number);
        ip(&["netns", "add", &name])?;
        let inside = format!(
            "link set lo up\naddr add {address}/24 dev {INTERFACE}\nlink set {INTERFACE} mtu {MTU}\n\
             link set {INTERFACE} up\n"
        );
        ip(&["link", "add", &wire, "type", "veth", "peer", "name", INTERFACE, "netns", &name])?;
        ip(&["link", "set", &wire, "mtu", &MTU.to_string(), "master", &bridge, "up"])?;
        ip_batch(&name, &inside)?;
        Ok((name, address))
    }

    fn make_bridge(&self, dir: &RunDir) -> anyhow::Result<()> {
        let bridge = bridge_name(self.number);
        let address = format!("{}/24", self.subnet.bridge_address());
        // With a fixed MAC address. A bridge without one takes the lowest of its ports', and so a
        // new one with every new port: neighbours with the old address cached would lose contact
        // until they ask again.
        let mac = format!("02:76:65:6e:00:{:02x}", self.number);
        ip(&["link", "add", &bridge, "address", &mac, "type", "bridge"])?;
        let rest = || -> anyhow::Result<()> {
            ip(&["link", "set", &bridge, "alias", &alias_of(dir)])?;
            ip(&["link", "set", &bridge, "mtu", &MTU.to_string()])?;
            ip(&["addr", "add", &address, "dev", &bridge])?;
            ip(&["link", "set", &bridge, "up"])
        };
        rest().inspect_err(|_| {
            // The first error is reported.
            let _ = ip(&["link", "del", &bridge]);
        })
    }

    /// Removes half a node, left by an `up` that was killed: either part may be missing.
    fn remove_node(&self, namespace: &str, wire: &str) {
        if interface_exists(wire) {
            let _ = ip(&["link", "del", wire]);
        }
        if namespace_path(namespace).exists() {
            let _ = ip(&["netns", "del", namespace]);
        }
    }

    fn namespace_name(&self, index: usize) -> String {
        format!("{}{}", namespace_prefix(self.number), index + 1)
    }

    fn wire_name(&self, index: usize) -> String {
        format!("{}{}", wire_prefix(self.number), index + 1)
    }
}

/// Returns the path at which the namespace `name` can be entered.
pub fn namespace_path(name: &str) -> PathBuf {
    Path::new(NAMESPACES).join(name)
}

/// Checks that namespaces can be created here.
pub fn check_possible() -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("--netns needs root: run `sudo venice up --netns`, or omit --netns");
    }
    if on_path("ip").is_none() {
        bail!("--netns needs the `ip` command: install iproute2");
    }
    Ok(())
}

fn bridge_name(number: u32) -> String {
    format!("venice{number}")
}

fn namespace_prefix(number: u32) -> String {
    if number == 0 { "venice-node".to_string() } else { format!("venice{number}-node") }
}

/// Interface names have at most 15 characters: `venice63-n250` fits.
fn wire_prefix(number: u32) -> String {
    format!("venice{number}-n")
}

/// The kernel keeps at most 255 bytes of an alias.
fn alias_of(dir: &RunDir) -> String {
    let mut alias = format!("{ALIAS_PREFIX}{}", dir.path().display());
    while alias.len() > 255 {
        alias.pop();
    }
    alias
}

fn alias(bridge: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new(INTERFACES).join(bridge).join("ifalias")).ok()?;
    Some(text.trim_end_matches('\n').to_string())
}

fn numbers_of(dir: &RunDir) -> Vec<u32> {
    let wanted = alias_of(dir);
    (0..MAX_RACKS).filter(|n| alias(&bridge_name(*n)).is_some_and(|a| a == wanted)).collect()
}

/// Removes the networks of racks without living processes, and that of this run directory.
fn remove_stale(dir: &RunDir) -> anyhow::Result<()> {
    for number in 0..MAX_RACKS {
        let Some(alias) = alias(&bridge_name(number)) else { continue };
        let Some(owner) = alias.strip_prefix(ALIAS_PREFIX) else { continue };
        let owner = RunDir::at(Path::new(owner));
        let own = owner.path() == dir.path();
        if own || (!owner.record_path().exists() && process::find_all(&owner).is_empty()) {
            remove_number(number)?;
        }
    }
    Ok(())
}

fn remove_number(number: u32) -> anyhow::Result<()> {
    for wire in names_in(INTERFACES, &wire_prefix(number)) {
        ip(&["link", "del", &wire])?;
    }
    for namespace in names_in(NAMESPACES, &namespace_prefix(number)) {
        ip(&["netns", "del", &namespace])?;
    }
    if interface_exists(&bridge_name(number)) {
        ip(&["link", "del", &bridge_name(number)])?;
    }
    Ok(())
}

/// Returns the entries of `folder` that are `prefix` and a number.
fn names_in(folder: &str, prefix: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.strip_prefix(prefix).is_some_and(|n| n.parse::<u32>().is_ok()))
        .collect()
}

fn interface_exists(name: &str) -> bool {
    Path::new(INTERFACES).join(name).exists()
}

/// Keeps racks with different run directories from choosing the same names and addresses. The lock
/// is on a directory that always exists, so it leaves no file behind.
fn lock_interfaces() -> anyhow::Result<File> {
    let folder = File::open(INTERFACES).with_context(|| format!("opening {INTERFACES}"))?;
    flock(&folder, FlockOperation::LockExclusive)
        .with_context(|| format!("locking {INTERFACES}"))?;
    Ok(folder)
}

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    run_ip(arguments, "")
}

fn ip_batch(namespace: &str, commands: &str) -> anyhow::Result<()> {
    run_ip(&["-n", namespace, "-batch", "-"], commands)
}

fn run_ip(arguments: &[&str], input: &str) -> anyhow::Result<()> {
    let said = format!("ip {}", arguments.join(" "));
    let program = on_path("ip").context("there is no `ip` command: install iproute2")?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting `{said}`"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).with_context(|| format!("feeding `{said}`"))?;
    }
    let output = child.wait_with_output().with_context(|| format!("waiting for `{said}`"))?;
    if output.status.success() {
        return Ok(());
    }
    bail!("`{said}` failed: {}", String::from_utf8_lossy(&output.stderr).trim())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn interface_names_fit_kernel_limit() {
        assert!(format!("{}250", wire_prefix(MAX_RACKS - 1)).len() <= 15);
        assert_eq!(namespace_prefix(0), "venice-node");
        assert_eq!(namespace_prefix(1), "venice1-node");
        assert_eq!(bridge_name(0), "venice0");
    }

    #[test]
    fn long_run_directory_alias_is_cut() {
        let dir = RunDir::at(Path::new(&format!("/tmp/{}", "x".repeat(400))));
        assert_eq!(alias_of(&dir).len(), 255);
    }

    /// Opens a UDP socket inside a namespace. The thread that enters it is gone afterwards.
    fn socket_inside(namespace: String, address: Ipv4Addr) -> UdpSocket {
        let open = move || {
            let file = File::open(namespace_path(&namespace)).unwrap();
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(file.as_fd(), kind).unwrap();
            UdpSocket::bind((address, 0)).unwrap()
        };
        std::thread::spawn(open).join().unwrap()
    }

    #[test]
    fn namespaces_connect_and_clean_up() {
        if let Err(error) = check_possible() {
            println!("SKIPPED namespaces_connect_and_clean_up: {error}");
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let dir = RunDir::at(temp.path());
        fs::write(dir.record_path(), "").unwrap();
        let network = Network::create(&dir).unwrap();
        let bridge = Path::new(INTERFACES).join(bridge_name(network.number)).join("address");
        let mac = fs::read_to_string(&bridge).unwrap();
        let (name1, address1) = network.ensure_node(0).unwrap();
        let (name2, address2) = network.ensure_node(1).unwrap();
        assert_eq!(network.ensure_node(1).unwrap(), (name2.clone(), address2), "made only once");
        assert_eq!(fs::read_to_string(&bridge).unwrap(), mac, "a new port gave it a new address");
        let one = socket_inside(name1.clone(), address1);
        let two = socket_inside(name2.clone(), address2);
        two.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        // Larger than an ordinary MTU: the whole path takes large frames.
        one.send_to(&[7; 8000], two.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 9000];
        let (len, from) = two.recv_from(&mut buffer).unwrap();
        assert_eq!((len, from.ip()), (8000, address1.into()));
        drop((one, two));
        let again = Network::restore(&dir, network.subnet()).unwrap();
        assert_eq!(again, network);
        Network::remove(&dir).unwrap();
        assert!(!Network::exists(&dir));
        assert!(!namespace_path(&name1).exists() && !namespace_path(&name2).exists());
        assert!(!interface_exists(&network.wire_name(0)));
    }

    #[test]
    fn next_rack_removes_stale_network() {
        if let Err(error) = check_possible() {
            println!("SKIPPED next_rack_removes_stale_network: {error}");
            return;
        }
        let crashed = tempfile::tempdir().unwrap();
        let crashed = RunDir::at(crashed.path());
        fs::write(crashed.record_path(), "").unwrap();
        let old = Network::create(&crashed).unwrap();
        old.ensure_node(0).unwrap();
        fs::remove_file(crashed.record_path()).unwrap();
        let temp = tempfile::tempdir().unwrap();
        let dir = RunDir::at(temp.path());
        let _ = Network::create(&dir).unwrap();
        assert!(!Network::exists(&crashed), "no process is left in that run directory");
        Network::remove(&dir).unwrap();
        assert!(!Network::exists(&dir));
    }
}
