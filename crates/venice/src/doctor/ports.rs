//! What the ports between nodes find here: datagrams, their protection, RDMA devices.

use std::time::{Duration, Instant};

use venice_ports::PortError;
use venice_ports::seal::{Sealer, node_key};
use venice_ports::udp::{UDP_BUFFER_BYTES, UdpOffloads, UdpSocket, Xdp};
use venice_ports::verbs::{Device, VerbsError};
use venice_wire::{
    KeyName, MAX_FRAME_BYTES, NodeId, NodeSecret, SEAL_OVERHEAD_BYTES, SEALED_HEADER_BYTES,
    SealAlgorithm,
};

use super::Finding;
use venice_cli::terminal;

/// How long the speed of the encryption is looked at.
const MEASURE_FOR: Duration = Duration::from_millis(5);

/// Rows about ports; none of them stops `venice run`, which takes shm by itself.
pub fn examine() -> Vec<Finding> {
    vec![datagram_trains(), past_kernel(), socket_buffers(), encryption(), rdma()]
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

/// AF_XDP, which nothing needs that is not told to use it.
fn past_kernel() -> Finding {
    let what = "AF_XDP";
    match Xdp::probe() {
        Ok(()) => Finding::ok(
            what,
            "single packets can pass the kernel by (venice agent --xdp IFACE); in the driver \
             (IFACE:native) where that can do it",
        ),
        Err(error) => Finding::warn(
            what,
            with_cause(&error),
            "run `venice agent --xdp` as root on Linux 6.6 or later; the udp port works without it",
        ),
    }
}

/// The kernel drops what comes while a socket's buffer is full, and the links send it again.
fn socket_buffers() -> Finding {
    let bound = UdpSocket::bind(([127, 0, 0, 1], 0).into());
    match bound.and_then(|socket| socket.receive_buffer_bytes()) {
        Ok(bytes) => judge_buffers(bytes),
        Err(error) => {
            let mend = "the udp port cannot work without: see what the error says";
            Finding::missing("socket buffers", with_cause(&error), mend)
        }
    }
}

fn judge_buffers(bytes: usize) -> Finding {
    let what = "socket buffers";
    let detail = format!("{} for what comes in by UDP", terminal::bytes(bytes as u64));
    if bytes >= UDP_BUFFER_BYTES {
        return Finding::ok(what, detail);
    }
    let mend = format!(
        "`sysctl -w net.core.rmem_max={UDP_BUFFER_BYTES} net.core.wmem_max={UDP_BUFFER_BYTES}`, or \
         run as root: over udp, bursts of many recipients are lost and sent again"
    );
    Finding::warn(what, detail, mend)
}

/// What the protection of the udp port costs a core, whole pages and their headers sealed.
fn encryption() -> Finding {
    let what = "encryption";
    match seal_for(MEASURE_FOR) {
        Ok((SealAlgorithm::Aes256Gcm, rate)) => {
            Finding::ok(what, format!("AES-256-GCM, {rate:.1} GB/s a core"))
        }
        Ok((SealAlgorithm::ChaCha20Poly1305, rate)) => Finding::warn(
            what,
            format!("ChaCha20-Poly1305, {rate:.1} GB/s a core: the processor has no AES"),
            "this is only about speed: a processor (or a virtual machine's setting) with AES \
             instructions, or `--plain` on a network that nobody else can reach",
        ),
        Err(error) => {
            let mend = "the udp port cannot protect what it sends: see what the error says";
            Finding::missing(what, with_cause(&error), mend)
        }
    }
}

/// The algorithm used here, and how many bytes it seals in a nanosecond.
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
    fn small_buffers_come_with_the_setting_that_mends_them() {
        assert_eq!(judge_buffers(UDP_BUFFER_BYTES).state, State::Ok);
        let small = judge_buffers(212_992);
        assert_eq!(small.state, State::Warn);
        assert!(small.detail.starts_with("208KiB") && small.mend.contains("rmem_max=8388608"));
    }

    #[test]
    fn the_encryption_has_a_speed() {
        let (_, bytes_per_ns) = seal_for(Duration::from_micros(10)).unwrap();
        assert!(bytes_per_ns > 0.0);
    }
}
