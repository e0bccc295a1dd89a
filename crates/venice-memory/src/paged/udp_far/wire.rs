//! What a thread's links to its donors run over: UDP, and in tests links in virtual time.

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

/// How long one wait for frames takes at most.
const WAIT_NS: u64 = 5_000_000;

/// An initiator, and what carries its frames.
pub enum Wire {
    /// Datagrams.
    Udp(Box<UdpDriver>),
    /// Links of the simulator.
    #[cfg(test)]
    Simulated(Box<SimulatedWire>),
}

impl Wire {
    /// Where the links end here.
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

    /// What time it is, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        match self {
            Wire::Udp(_) => sys::monotonic_ns(),
            #[cfg(test)]
            Wire::Simulated(wire) => wire.now_ns(),
        }
    }

    /// Takes in what came and sends what is to be sent.
    pub fn pump(&mut self) {
        match self {
            Wire::Udp(driver) => drop(driver.pump(sys::monotonic_ns())),
            #[cfg(test)]
            Wire::Simulated(wire) => wire.pump(),
        }
    }

    /// The same, and waits a little for something to come.
    pub fn turn(&mut self) {
        match self {
            Wire::Udp(driver) => {
                if driver.turn(WAIT_NS).is_err() {
                    // The links find out what it means; not in a hurry.
                    let _ = driver.wait(sys::monotonic_ns(), WAIT_NS);
                }
            }
            #[cfg(test)]
            Wire::Simulated(wire) => wire.turn(WAIT_NS),
        }
    }

    /// Does nothing for a while.
    pub fn rest(&mut self, time: Duration) {
        match self {
            Wire::Udp(_) => std::thread::sleep(time),
            #[cfg(test)]
            Wire::Simulated(wire) => wire.rest(time),
        }
    }

    /// To poll for arrivals.
    pub fn fd(&self) -> i32 {
        match self {
            Wire::Udp(driver) => driver.fd().as_raw_fd(),
            #[cfg(test)]
            Wire::Simulated(_) => -1,
        }
    }

    /// Sets the timer for when the links want to run again, and returns what to poll for it.
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
