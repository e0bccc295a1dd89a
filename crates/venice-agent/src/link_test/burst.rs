//! Bandwidth of a link: a burst of writes to a grant that does not exist.
//!
//! The bytes take the path of pages, sealed likewise, and are refused at its end. Only the second
//! half of the time counts: by then shapers have spent their burst allowance, and the queues on the
//! path are full. The result is one program's share of the link; on a fast link this machine's
//! processors limit it.

use std::net::SocketAddr;

use venice_fabric::{AccessError, FabricError, InitiatorConfig, PeerIndex};
use venice_ports::seal::SealedAs;
use venice_ports::udp::UdpDriver;
use venice_ports::{PortError, monotonic_ns};
use venice_wire::NodeId;

use super::{connected, to_nowhere};

/// Most bytes of a burst: a gigabit link takes 34 ms.
const BURST_BYTES: u64 = 4 << 20;
/// Longest burst in nanoseconds, which limits it on slow links.
const BURST_NS: u64 = 50_000_000;
/// Timeout for connecting, and for the answers, in nanoseconds.
const PATIENCE_NS: u64 = 300_000_000;
const WRITE_BYTES: usize = 4096;
/// Outstanding writes.
const DEPTH: u16 = 64;
/// Fewest arrivals in the second half for a result.
const FEWEST: usize = 4;

/// Measures the bandwidth to `to` in megabits a second; `None` if too few writes arrived.
pub(super) fn measure(
    own: NodeId,
    to: NodeId,
    address: SocketAddr,
    named: Option<SealedAs>,
) -> Result<Option<f64>, PortError> {
    let mut config = InitiatorConfig::new(own, venice_ports::random_u64().unwrap_or(1));
    (config.crma_depth, config.rdma_depth) = (DEPTH, 1);
    let (mut driver, peer) = to_nowhere(config, to, address, named)?;
    let deadline_ns = monotonic_ns() + PATIENCE_NS;
    let arrivals = match connected(&mut driver, peer, deadline_ns)? {
        true => burst(&mut driver)?,
        false => Vec::new(),
    };
    close(&mut driver, peer)?;
    Ok(rate_mbps(&arrivals))
}

/// Sends the burst; returns the arrival times of the answers, in order.
fn burst(driver: &mut UdpDriver) -> Result<Vec<u64>, PortError> {
    let data = [0u8; WRITE_BYTES];
    let most = BURST_BYTES / WRITE_BYTES as u64;
    let began_ns = monotonic_ns();
    let (mut sent, mut arrivals) = (0, Vec::with_capacity(most as usize));
    loop {
        let now_ns = monotonic_ns();
        let is_over = now_ns >= began_ns + BURST_NS;
        while !is_over && sent < most {
            match driver.initiator().write(now_ns, sent, 0, &data) {
                Ok(()) => sent += 1,
                Err(FabricError::WouldBlock) => break,
                Err(_) => return Ok(arrivals),
            }
        }
        driver.pump(now_ns)?;
        let before = arrivals.len();
        while let Some(completion) = driver.initiator().poll_completion() {
            if !matches!(completion.result, Ok(()) | Err(AccessError::Refused(_))) {
                return Ok(arrivals);
            }
            arrivals.push(monotonic_ns());
        }
        if arrivals.len() as u64 == most || is_over {
            return Ok(arrivals);
        }
        if arrivals.len() == before {
            driver.wait(now_ns, (began_ns + BURST_NS).saturating_sub(now_ns))?;
        }
    }
}

fn close(driver: &mut UdpDriver, peer: PeerIndex) -> Result<(), PortError> {
    driver.initiator().close_peer(peer);
    driver.pump(monotonic_ns())?;
    Ok(())
}

/// Returns the rate of the second half, in megabits a second.
fn rate_mbps(arrivals_ns: &[u64]) -> Option<f64> {
    let (first, last) = (*arrivals_ns.first()?, *arrivals_ns.last()?);
    let half_ns = first + (last - first) / 2;
    let earlier = arrivals_ns.partition_point(|at_ns| *at_ns <= half_ns);
    let (since_ns, later) = (arrivals_ns[earlier.checked_sub(1)?], arrivals_ns.len() - earlier);
    if later < FEWEST {
        return None;
    }
    let bits = (later * WRITE_BYTES * 8) as f64;
    Some(bits * 1000.0 / (last - since_ns) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shaper_burst_is_excluded() {
        // 32 at once, then one a millisecond: 4096 bytes a millisecond are 32.8 Mb/s.
        let steady = (1..=40).map(|ms| ms * 1_000_000);
        let arrivals: Vec<u64> = std::iter::repeat_n(1, 32).chain(steady).collect();
        let mbps = rate_mbps(&arrivals).unwrap();
        assert!((mbps - 32.768).abs() < 0.01, "{mbps}");
    }

    #[test]
    fn too_few_arrivals_give_none() {
        assert_eq!(rate_mbps(&[]), None);
        assert_eq!(rate_mbps(&[5; 100]), None);
        assert_eq!(rate_mbps(&[1, 2, 3, 4, 5]), None);
    }
}
