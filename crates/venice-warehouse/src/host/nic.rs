//! The rings of a network card.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::config::Nic as Config;
use crate::packet::PacketId;
use venice_simkernel::random::Stream;
use venice_simkernel::units::BitRate;

/// The state of a network card and its driver.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// Draws by how much packets are late.
    random: Stream,
    /// The time at which the last packet has left.
    left_at: u64,
}

impl Nic {
    /// A card whose lateness draws from `random`.
    pub fn new(random: Stream) -> Self {
        Self {
            received: VecDeque::new(),
            is_polled: false,
            is_interrupted: false,
            interrupt: 0,
            is_interrupt_due: false,
            interrupted_at: None,
            sent_at: VecDeque::new(),
            random,
            left_at: 0,
        }
    }

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
        if config.jitter.0 == 0 {
            return Some(begins);
        }
        let late = self.random.below(config.jitter.0);
        self.left_at = self.left_at.max(begins + late);
        Some(self.left_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use venice_simkernel::units::Picos;

    #[test]
    fn late_packets_catch_up() {
        let rate = BitRate(1_000_000_000);
        let most = 5 * Picos::MICRO;
        let config = Config { jitter: Picos(most), ..Config::default() };
        let exact = Config::default();
        let (mut late, mut card) = (Nic::new(Stream::new(1)), Nic::new(Stream::new(1)));
        let (mut last, mut times) = (0, Vec::new());
        for number in 0..200 {
            let at = number * 3 * Picos::MICRO;
            let ideal = card.send(at, 1538, rate, &exact).unwrap();
            let left = late.send(at, 1538, rate, &config).unwrap();
            assert!(left >= last && (ideal..ideal + most).contains(&left), "{left} at {ideal}");
            (last, times) = (left, [times, vec![left - ideal]].concat());
        }
        let mean = times.iter().sum::<u64>() / times.len() as u64;
        assert!((most / 4..most * 3 / 4).contains(&mean), "{mean}");
    }
}
