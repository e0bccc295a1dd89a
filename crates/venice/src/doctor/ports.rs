//! Facilities of the ports between nodes: UDP offload, encryption, RDMA devices.

use std::time::{Duration, Instant};

use venice_ports::PortError;
use venice_ports::seal::{Sealer, node_key};
use venice_ports::udp::{UDP_BUFFER_BYTES, UdpOffloads, UdpSocket, Xdp};
use venice_ports::verbs::{Device, VerbsError};
use venice_wire::{
    KeyName, MAX_FRAME_BYTES, NodeId, NodeSecret, PortKind, SEAL_OVERHEAD_BYTES,
    SEALED_HEADER_BYTES, SealAlgorithm,
};

use super::Finding;
use venice_cli::terminal;

/// Duration of the encryption speed test.
const MEASURE_FOR: Duration = Duration::from_millis(5);

/// Name of the row about RDMA devices.
pub const RDMA: &str = "RDMA";
/// Name of the row about sockets.
const SOCKETS: &str = "socket buffers";

/// Returns the row without which a port does not work; `None`: it always does.
pub fn need(port: PortKind) -> Option<&'static str> {
    match port {
        PortKind::Shm => None,
        PortKind::Udp => Some(SOCKETS),
        PortKind::Verbs => Some(RDMA),
    }
}

/// Rows about ports; no mode of `venice run` needs them, since shm always works.
pub fn examine() -> Vec<Finding> {
    vec![udp_offload(), past_kernel(), socket_buffers(), encryption(), rdma()]
}

/// Row about the verbs port: rdma-core, and a device with an active port.
fn rdma() -> Finding {
    let what = RDMA;
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

fn udp_offload() -> Finding {
    let what = "UDP offload";
    let remedy = "boot a kernel of version 5.0 or later: the udp port works without it, slower";
    match UdpOffloads::detect() {
        Ok(UdpOffloads { segmentation: true, coalescing: true }) => {
            Finding::ok(what, "segmentation and coalescing (UDP_SEGMENT, UDP_GRO)")
        }
        Ok(UdpOffloads { segmentation: true, .. }) => {
            Finding::warn(what, "segmentation only (no UDP_GRO)", remedy)
        }
        Ok(_) => Finding::warn(what, "none (no UDP_SEGMENT)", remedy),
        Err(error) => Finding::warn(what, format!("{error}"), remedy),
    }
}

/// Row about AF_XDP, which is used only where configured.
fn past_kernel() -> Finding {
    let what = "AF_XDP";
    match Xdp::probe() {
        Ok(()) => Finding::ok(
            what,
            "single packets can bypass the kernel (venice agent --xdp IFACE); in the driver \
             (IFACE:native) if it supports that",
        ),
        Err(error) => Finding::warn(
            what,
            with_cause(&error),
            "run `venice agent --xdp` as root on Linux 6.6 or later; the udp port works without it",
        ),
    }
}

/// Row about the receive buffer. The kernel drops datagrams while it is full, and the links send
/// them again.
fn socket_buffers() -> Finding {
    let bound = UdpSocket::bind(([127, 0, 0, 1], 0).into());
    match bound.and_then(|socket| socket.receive_buffer_bytes()) {
        Ok(bytes) => judge_buffers(bytes),
        Err(error) => {
            let remedy = "the udp port needs it: see the error";
            Finding::missing(SOCKETS, with_cause(&error), remedy)
        }
    }
}

fn judge_buffers(bytes: usize) -> Finding {
    let what = SOCKETS;
    let detail = format!("{} for received UDP datagrams", terminal::bytes(bytes as u64));
    if bytes >= UDP_BUFFER_BYTES {
        return Finding::ok(what, detail);
    }
    let remedy = format!(
        "`sysctl -w net.core.rmem_max={UDP_BUFFER_BYTES} net.core.wmem_max={UDP_BUFFER_BYTES}`, or \
         run as root: else bursts of many recipients are lost and resent"
    );
    Finding::warn(what, detail, remedy)
}

/// Row about the encryption speed of the udp port on one core, sealing whole pages with headers.
fn encryption() -> Finding {
    let what = "encryption";
    match seal_for(MEASURE_FOR) {
        Ok((SealAlgorithm::Aes256Gcm, rate)) => {
            Finding::ok(what, format!("AES-256-GCM, {rate:.1} GB/s a core"))
        }
        Ok((SealAlgorithm::ChaCha20Poly1305, rate)) => Finding::warn(
            what,
            format!("ChaCha20-Poly1305, {rate:.1} GB/s a core: the processor has no AES"),
            "only speed is affected: use a processor (or virtual machine setting) with AES \
             instructions, or `--plain` on an isolated network",
        ),
        Err(error) => {
            let remedy = "the udp port cannot encrypt: see the error";
            Finding::missing(what, with_cause(&error), remedy)
        }
    }
}

/// Returns the algorithm in use and the bytes it seals in a nanosecond.
fn seal_for(time: Duration) -> Result<(SealAlgorithm, f64), PortError> {
    let name = KeyName::Peer(NodeId(0));
    let mut sealer = Sealer::new(name, &node_key(&NodeSecret([0; 32]), name))?;
    let mut buffer = vec![0; MAX_FRAME_BYTES + SEAL_OVERHEAD_BYTES];
    let (started, mut sealed_bytes) = (Instant::now(), 0);
    loop {
        buffer[SEALED_HEADER_BYTES..][..MAX_FRAME_BYTES].fill(0);
        sealer.seal(&mut buffer, MAX_FRAME_BYTES)?;
        sealed_bytes += MAX_FRAME_BYTES;
        let took = started.elapsed();
        if took >= time {
            return Ok((sealer.algorithm(), sealed_bytes as f64 / took.as_nanos() as f64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn small_buffers_name_the_sysctl() {
        assert_eq!(judge_buffers(UDP_BUFFER_BYTES).state, State::Ok);
        let small = judge_buffers(212_992);
        assert_eq!(small.state, State::Warn);
        assert!(small.detail.starts_with("208KiB") && small.remedy.contains("rmem_max=8388608"));
    }

    #[test]
    fn encryption_has_a_speed() {
        let (_, bytes_per_ns) = seal_for(Duration::from_micros(10)).unwrap();
        assert!(bytes_per_ns > 0.0);
    }
}
