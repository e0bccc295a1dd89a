//! Emulated hop links: delays datagrams until the emulated link would have delivered them.

use std::collections::VecDeque;

use venice_fabric::{EmulatedLink, LinkModel};
use venice_wire::{MAX_HOP_BYTES, SwitchPort};

/// Most datagrams delayed at once on one link: a send window of packets, and its control datagrams.
const MAX_DELAYED: usize = 256;

/// Emulated links of a relay, one for each port.
pub(super) struct Delays {
    links: Vec<DelayedLink>,
}

struct DelayedLink {
    link: EmulatedLink,
    /// Delayed datagrams in their order of delivery: time, start and length.
    waiting: VecDeque<(u64, usize, usize)>,
    /// Buffers, used as a ring: the datagrams leave in the order they came.
    buffers: Box<[u8]>,
    next: usize,
}

impl Delays {
    pub(super) fn new(model: LinkModel, ports: u16) -> Self {
        let held = |_| DelayedLink {
            link: EmulatedLink::new(model),
            waiting: VecDeque::with_capacity(MAX_DELAYED),
            buffers: vec![0; MAX_DELAYED * MAX_HOP_BYTES].into(),
            next: 0,
        };
        Self { links: (0..ports).map(held).collect() }
    }

    /// Takes a datagram; returns false if too many are delayed, and drops it.
    pub(super) fn delay(&mut self, now_ns: u64, port: SwitchPort, datagram: &[u8]) -> bool {
        let held = &mut self.links[usize::from(port.0)];
        if held.waiting.len() == MAX_DELAYED {
            return false;
        }
        let start = held.next * MAX_HOP_BYTES;
        held.buffers[start..start + datagram.len()].copy_from_slice(datagram);
        held.next = (held.next + 1) % MAX_DELAYED;
        let due_ns = held.link.depart(now_ns, datagram.len());
        held.waiting.push_back((due_ns, start, datagram.len()));
        true
    }

    /// Returns a datagram whose time has come.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<(SwitchPort, &[u8])> {
        let is_due =
            |held: &DelayedLink| held.waiting.front().is_some_and(|(at_ns, ..)| *at_ns <= now_ns);
        let port = self.links.iter().position(is_due)?;
        let held = &mut self.links[port];
        let (_, start, len) = held.waiting.pop_front()?;
        Some((SwitchPort(port as u16), &held.buffers[start..start + len]))
    }

    pub(super) fn poll_timeout(&self) -> Option<u64> {
        self.links.iter().filter_map(|held| Some(held.waiting.front()?.0)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delivers_in_order_at_due_time() {
        let mut delays = Delays::new("latency=5us".parse().unwrap(), 2);
        for n in 0..MAX_DELAYED {
            assert!(delays.delay(1000 + n as u64, SwitchPort(1), &[n as u8, 9]));
        }
        assert!(!delays.delay(2000, SwitchPort(1), b"too many"));
        assert!(delays.delay(1500, SwitchPort(0), b"other"));
        assert_eq!(delays.poll_timeout(), Some(6000));
        assert!(delays.take_due(5999).is_none());
        for n in 0..MAX_DELAYED {
            let (port, datagram) = delays.take_due(6000 + n as u64).unwrap();
            assert_eq!((port, datagram), (SwitchPort(1), [n as u8, 9].as_slice()));
        }
        assert_eq!(delays.take_due(6500).unwrap().0, SwitchPort(0));
        assert_eq!(delays.poll_timeout(), None);
    }
}
