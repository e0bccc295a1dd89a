//! The rings of a network card.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::config::Nic as Config;
use crate::packet::PacketId;
use venice_simkernel::units::BitRate;

/// The state of a network card and its driver.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Nic {
    /// Received packets that the driver has not taken.
    pub received: VecDeque<PacketId>,
    /// The driver polls; interrupts are off (NAPI: Salim et al., "Beyond softnet", 2001).
    pub is_polled: bool,
    /// The next packet comes by an interrupt, which costs.
    pub is_interrupted: bool,
    /// The number of the interrupt that is to come; older ones are void.
    pub interrupt: u32,
    is_interrupt_due: bool,
    interrupted_at: Option<u64>,
    /// The ends of transmissions of the packets that have not been sent.
    sent_at: VecDeque<u64>,
}

impl Nic {
    /// Puts a packet into the ring; `false`: it is full.
    pub fn receive(&mut self, packet: PacketId, config: &Config) -> bool {
        let has_room = self.received.len() < config.receive_ring as usize;
        if has_room {
            self.received.push_back(packet);
        }
        has_room
    }

    /// Returns the time of an interrupt for the packets of the ring, if one is to be made now.
    pub fn next_interrupt(&mut self, now: u64, config: &Config) -> Option<u64> {
        if self.is_polled {
            return None;
        }
        let is_full = self.received.len() == config.interrupt_packets as usize;
        if self.is_interrupt_due && !is_full {
            return None;
        }
        self.is_interrupt_due = true;
        self.interrupt = self.interrupt.wrapping_add(1);
        let delay = if is_full { 0 } else { config.interrupt_delay.0 };
        let earliest = self.interrupted_at.map_or(0, |last| last + config.interrupt_gap.0);
        Some(earliest.max(now + delay))
    }

    /// Begins to poll, by an interrupt.
    pub fn begin_poll(&mut self, now: u64) {
        (self.is_polled, self.is_interrupted) = (true, true);
        self.is_interrupt_due = false;
        self.interrupted_at = Some(now);
    }

    /// Puts a packet of so many bytes into the queue to be sent, from the time `at` on. Returns when its
    /// first bit is sent; `None`: the queue is full.
    pub fn send(&mut self, at: u64, bytes: u32, rate: BitRate, config: &Config) -> Option<u64> {
        while self.sent_at.front().is_some_and(|sent| *sent <= at) {
            self.sent_at.pop_front();
        }
        if self.sent_at.len() >= config.send_queue as usize {
            return None;
        }
        let begins = self.sent_at.back().map_or(at, |last| at.max(*last));
        self.sent_at.push_back(begins + rate.time_of(bytes.into()));
        Some(begins)
    }
}
