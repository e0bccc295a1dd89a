//! The network on Linux: a namespace for each host, and one with a bridge as the switch.
//!
//! Each host is joined to the bridge by a veth pair. Token buckets (tc-tbf(8)) limit both ends of each
//! link: at a host its sending, at the bridge the switch's output with its buffer, a queue of bytes.
//! Offloads are off (one segment a packet), as the others who reproduced incast this way had them off.
//! Nothing else drops packets.

use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Deserialize;
use venice_measure::child::{find_program, run_tool};
use venice_measure::scratch;
use venice_simkernel::units::{BitRate, Bytes};

/// Folder of `ip` with the names of namespaces.
const NAMES: &str = "/run/netns";
/// Kind in the names of namespaces.
const KIND: &str = "incast";
/// The interface of each host.
const INTERFACE: &str = "eth0";
/// Address of the network: namespaces of their own, so it collides with no other.
const NETWORK: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 0);
/// Bytes of the wire beyond what the kernel counts: checksum, preamble and gap (IEEE 802.3).
const WIRE_BYTES: u32 = 4 + 8 + 12;
/// Least bytes of a frame on the wire.
const LEAST_BYTES: u32 = 64 + 8 + 12;
/// Bytes of the longest frame on the wire.
const FRAME_BYTES: u64 = 1500 + 14 + WIRE_BYTES as u64;
/// A timer of the kernel may be so late: without so much more in the bucket the line would lose that
/// time, and be slower than its rate.
const LATE: Duration = Duration::from_micros(200);
/// Room of a host's own queue; TCP keeps far less in it (`tcp_limit_output_bytes`).
const HOST_QUEUE_BYTES: u64 = 16 << 20;

/// The links of the network.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    /// Rate of each link.
    pub rate: BitRate,
    /// Room of each output of the switch, beside the packet that is sent.
    pub buffer: Bytes,
}

impl Links {
    /// Returns the tokens of a full bucket, in bytes.
    pub fn burst(&self) -> u64 {
        let late = u128::from(self.rate.0) * LATE.as_nanos() / 8 / 1_000_000_000;
        FRAME_BYTES + late as u64
    }

    /// Returns the queue's limit: a full bucket takes packets like a buffer of its size, and a line
    /// takes one, so that both lose the same packets.
    ///
    /// # Errors
    /// The buffer is smaller than what the bucket takes.
    pub fn limit(&self) -> Result<u64> {
        let beyond = self.burst() - FRAME_BYTES;
        match self.buffer.0.checked_sub(beyond) {
            Some(limit) if limit >= FRAME_BYTES => Ok(limit),
            _ => bail!(
                "a token bucket at {} takes {}: choose a buffer of {} at least",
                self.rate,
                Bytes(beyond),
                Bytes(beyond + FRAME_BYTES)
            ),
        }
    }
}

/// The namespaces. Dropping it removes them, with their links.
#[derive(Debug)]
pub(super) struct Network {
    prefix: String,
    hosts: u32,
}

impl Network {
    /// Creates so many hosts. Removes what a killed run has left.
    ///
    /// # Errors
    /// Without root, or when the kernel lacks namespaces, bridges, veth or token buckets.
    pub fn new(hosts: u32, links: &Links) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            bail!("network namespaces need root: run it with sudo");
        }
        find_program("tc").context("install iproute2")?;
        for stale in scratch::left_in(Path::new(NAMES), KIND) {
            if let Some(name) = stale.file_name().and_then(|name| name.to_str()) {
                // Another run may remove it too.
                let _ = run_tool("ip", &["netns", "del", name]);
            }
        }
        let limit = links.limit()?;
        let made = Self { prefix: scratch::name(KIND), hosts };
        let names: String =
            (0..hosts).map(|host| format!("netns add {}\n", made.host(host))).collect();
        batch("ip", &[], &format!("netns add {}\n{names}", made.hub()))?;
        made.join()?;
        made.limit(links, limit)?;
        Ok(made)
    }

    fn join(&self) -> Result<()> {
        let mut hub =
            "link set lo up\nlink add br0 type bridge mcast_snooping 0\nlink set br0 up\n"
                .to_owned();
        for host in 0..self.hosts {
            let name = self.host(host);
            hub += &format!(
                "link add p{host} type veth peer name {INTERFACE} netns {name}\n\
                 link set p{host} master br0 up\n"
            );
        }
        batch("ip", &["-n", &self.hub()], &hub)?;
        for host in 0..self.hosts {
            // Without offloads a packet is a segment, as on the wire.
            let commands = format!(
                "link set lo up\naddr add {}/24 dev {INTERFACE}\n\
                 link set {INTERFACE} gso_max_segs 1 up\n",
                address(host)
            );
            batch("ip", &["-n", &self.host(host)], &commands)?;
        }
        Ok(())
    }

    /// Limits the links.
    fn limit(&self, links: &Links, limit: u64) -> Result<()> {
        let shaper = |device: &str, limit: u64| {
            format!(
                "qdisc add dev {device} root stab overhead {WIRE_BYTES} mpu {LEAST_BYTES} linklayer \
                 ethernet tbf rate {}bit burst {} limit {limit}\n",
                links.rate.0,
                links.burst()
            )
        };
        let outputs: String =
            (0..self.hosts).map(|host| shaper(&format!("p{host}"), limit)).collect();
        batch("tc", &["-n", &self.hub()], &outputs)?;
        for host in 0..self.hosts {
            let own = shaper(INTERFACE, HOST_QUEUE_BYTES);
            batch("tc", &["-n", &self.host(host)], &own)?;
        }
        Ok(())
    }

    /// Sets the minimum retransmission time-out of all hosts.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn set_rto_min(&self, minimum: Duration) -> Result<()> {
        for host in 0..self.hosts {
            let command = format!(
                "route change {NETWORK}/24 dev {INTERFACE} proto kernel scope link src {} rto_min {}ms\n",
                address(host),
                minimum.as_millis()
            );
            batch("ip", &["-n", &self.host(host)], &command)?;
        }
        Ok(())
    }

    /// Returns the packets that the switch's output to a host has dropped so far.
    ///
    /// # Errors
    /// When `tc` fails.
    pub fn drops_to(&self, host: u32) -> Result<u64> {
        #[derive(Deserialize)]
        struct Queue {
            drops: u64,
        }
        let device = format!("p{host}");
        let hub = self.hub();
        let shown = run_tool("tc", &["-n", &hub, "-s", "-j", "qdisc", "show", "dev", &device])?;
        let queues: Vec<Queue> =
            serde_json::from_str(&shown).context("cannot read tc's figures")?;
        // The queue inside the bucket counts its drops, and the bucket counts them too.
        queues.iter().map(|queue| queue.drops).max().context("the output has no queue")
    }

    fn hub(&self) -> String {
        format!("{}-hub", self.prefix)
    }

    fn host(&self, host: u32) -> String {
        format!("{}-{host}", self.prefix)
    }

    /// Returns a way into a host's namespace.
    ///
    /// # Errors
    /// When it is gone.
    pub fn door(&self, host: u32) -> Result<Door> {
        let path: PathBuf = Path::new(NAMES).join(self.host(host));
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Door(file))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Some may be missing after a failed creation. Links go with their namespaces.
        for name in (0..self.hosts).map(|host| self.host(host)).chain([self.hub()]) {
            let _ = run_tool("ip", &["netns", "del", &name]);
        }
    }
}

/// A way into a namespace.
#[derive(Debug)]
pub(super) struct Door(File);

impl Door {
    /// Moves the calling thread into the namespace for good, and lets connections there begin without
    /// what earlier ones learned.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn enter(&self) -> Result<()> {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
            .context("cannot enter the network namespace")?;
        std::fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1")
            .context("cannot set tcp_no_metrics_save")
    }
}

/// Returns the address of a host.
pub(super) fn address(host: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(NETWORK) + 1 + host)
}

/// Runs commands by `ip` or `tc`.
fn batch(program: &str, options: &[&str], commands: &str) -> Result<()> {
    let mut child = Command::new(find_program(program)?)
        .args(options)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    let mut input = child.stdin.take().with_context(|| format!("{program} has no input"))?;
    // It may end before it has read everything; its error output has the reason.
    let _ = input.write_all(commands.as_bytes());
    drop(input);
    let output = child.wait_with_output().with_context(|| format!("cannot wait for {program}"))?;
    if !output.status.success() {
        bail!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_and_queue_make_the_buffer() {
        let links = Links { rate: BitRate(100_000_000), buffer: Bytes(32 << 10) };
        assert_eq!(links.burst(), 1538 + 2500);
        assert_eq!(links.limit().unwrap() + links.burst(), (32 << 10) + 1538);
        let small = Links { rate: BitRate(1_000_000_000), ..links };
        let error = Links { buffer: Bytes(4 << 10), ..small }.limit().unwrap_err().to_string();
        assert!(error.contains("choose a buffer of"), "{error}");
    }
}
