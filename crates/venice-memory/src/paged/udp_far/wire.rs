//! The carrier of a thread's links to its donors: UDP, or in tests links in virtual time.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::Duration;

use venice_fabric::{Initiator, PeerIndex};
use venice_ports::seal::SealedAs;
use venice_ports::udp::UdpDriver;
use venice_wire::{KeyName, NodeId};

use crate::paged::run_block::Donor;
#[cfg(test)]
use crate::paged::survival::SimulatedWire;
use crate::paged::sys;

/// Longest wait for frames, nanoseconds.
const WAIT_NS: u64 = 5_000_000;

/// An initiator with the carrier of its frames.
pub enum Wire {
    /// Datagrams.
    Udp(Box<UdpDriver>),
    /// Links of the simulator.
    #[cfg(test)]
    Simulated(Box<SimulatedWire>),
}

impl Wire {
    /// The initiator at this end of the links.
    pub fn initiator(&mut self) -> &mut Initiator {
        match self {
            Wire::Udp(driver) => driver.initiator(),
            #[cfg(test)]
            Wire::Simulated(wire) => wire.initiator(),
        }
    }

    /// Begins a link to a donor.
    pub fn add_peer(&mut self, donor: &Donor) -> Option<PeerIndex> {
        match self {
            Wire::Udp(driver) => add_udp_peer(driver, donor),
            #[cfg(test)]
            Wire::Simulated(wire) => Some(wire.add_peer(donor)),
        }
    }

    /// The time, nanoseconds.
    pub fn now_ns(&self) -> u64 {
        match self {
            Wire::Udp(_) => sys::monotonic_ns(),
            #[cfg(test)]
            Wire::Simulated(wire) => wire.now_ns(),
        }
    }

    /// Processes received frames and sends pending ones.
    pub fn pump(&mut self) {
        match self {
            Wire::Udp(driver) => drop(driver.pump(sys::monotonic_ns())),
            #[cfg(test)]
            Wire::Simulated(wire) => wire.pump(),
        }
    }

    /// Pumps, and waits a short time for a frame.
    pub fn turn(&mut self) {
        match self {
            Wire::Udp(driver) => {
                if driver.turn(WAIT_NS).is_err() {
                    // The links find out about the error themselves; the wait avoids a busy loop.
                    let _ = driver.wait(sys::monotonic_ns(), WAIT_NS);
                }
            }
            #[cfg(test)]
            Wire::Simulated(wire) => wire.turn(WAIT_NS),
        }
    }

    /// Sleeps for `time`.
    pub fn rest(&mut self, time: Duration) {
        match self {
            Wire::Udp(_) => std::thread::sleep(time),
            #[cfg(test)]
            Wire::Simulated(wire) => wire.rest(time),
        }
    }

    /// The descriptor to poll for arrivals.
    pub fn fd(&self) -> i32 {
        match self {
            Wire::Udp(driver) => driver.fd().as_raw_fd(),
            #[cfg(test)]
            Wire::Simulated(_) => -1,
        }
    }

    /// Sets the timer for the links' next time-out, and returns the descriptor to poll for it.
    pub fn arm_timer(&mut self) -> i32 {
        match self {
            Wire::Udp(driver) => {
                driver.arm(sys::monotonic_ns());
                driver.timer_fd().as_raw_fd()
            }
            #[cfg(test)]
            Wire::Simulated(_) => -1,
        }
    }
}

fn add_udp_peer(driver: &mut UdpDriver, donor: &Donor) -> Option<PeerIndex> {
    let now_ns = sys::monotonic_ns();
    let address: SocketAddr = donor.udp_address().parse().ok()?;
    let node = NodeId(donor.node.load(std::sync::atomic::Ordering::Relaxed));
    let named = donor.seal().map(|(grant, key)| SealedAs { name: KeyName::Grant(grant), key });
    let added = match (donor.is_via(), named) {
        (true, named) => driver.add_peer_via(now_ns, node, address, named),
        (false, None) => driver.add_peer(now_ns, node, address),
        (false, Some(named)) => driver.add_sealed_peer(now_ns, node, address, named),
    };
    added.ok()
}
