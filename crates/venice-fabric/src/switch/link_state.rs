//! Link-state flooding: every switch reports the state of its links to all others, so that each can
//! find routes around links that are down. Reports spread from neighbour to neighbour; the Monitor
//! Node takes no part.
//!
//! Reports are not sequenced. A report is repeated a few times after a change, periodically as long
//! as it contains a link that is down, and to a neighbour that sends an older one. A switch numbers
//! its reports from a start drawn for each session, so that no number is used twice; a restarted
//! switch learns from the others which version of its report they have, and continues beyond it if
//! that is later.

use venice_wire::SwitchPort;

use crate::routing::LinkStates;
use crate::topology::{Position, Topology};

/// Repetitions of a changed report.
const REPEATS: u8 = 4;
/// Bytes of the longest bitmap of ports.
pub(super) const MAX_BITMAP_BYTES: usize = u16::MAX as usize / 8 + 1;

/// The last valid version. A report of a later one is ignored: no switch lives for so many changes,
/// and one that had to surpass it could count no further.
const LAST_VERSION: u64 = u64::MAX / 2;
/// The highest version with which a switch begins: far enough from the last.
const FIRST_VERSIONS: u64 = 1 << 48;
const MAX_LEAP: u64 = 1 << 32;

/// All reports, and which port must still be sent which.
#[derive(Debug)]
pub(super) struct LinkStateFlood {
    own: Position,
    /// The distance by which this session surpasses a version of an earlier one: the next numbers
    /// may have been used by that session too, and received by some switch.
    leap: u64,
    /// By position; 0: no report received.
    versions: Box<[u64]>,
    repeats: Box<[u8]>,
    /// By port, then by position, one bit each.
    unsent: Box<[u64]>,
    words: usize,
    again_at_ns: u64,
    interval_ns: u64,
}

impl LinkStateFlood {
    pub(super) fn new(
        topology: &Topology,
        own: Position,
        incarnation: u64,
        interval_ns: u64,
    ) -> Self {
        let positions = topology.switches() as usize;
        let words = positions.div_ceil(64);
        let mut versions = vec![0; positions];
        versions[own.0 as usize] = 1 + incarnation % FIRST_VERSIONS;
        Self {
            own,
            leap: 1 + incarnation % MAX_LEAP,
            versions: versions.into(),
            repeats: vec![0; positions].into(),
            unsent: vec![0; words * usize::from(topology.ports(own))].into(),
            words,
            again_at_ns: 0,
            interval_ns,
        }
    }

    /// Records that a link of this switch has changed its state.
    pub(super) fn own_changed(&mut self) {
        self.versions[self.own.0 as usize] += 1;
        self.changed(self.own, None);
    }

    /// Queues all reports for a neighbour whose link has come up.
    pub(super) fn queue_all(&mut self, port: usize) {
        for position in 0..self.versions.len() {
            if self.versions[position] > 0 {
                self.queue_for(port, Position(position as u32));
            }
        }
    }

    /// Takes a report received through `port`; true when it is new, and then `links` contains it.
    pub(super) fn receive(
        &mut self,
        port: usize,
        (from, version): (Position, u64),
        bitmap: &[u8],
        topology: &Topology,
        links: &mut LinkStates,
    ) -> bool {
        let Some(known) = self.versions.get_mut(from.0 as usize) else { return false };
        if version > LAST_VERSION {
            return false;
        }
        if version < *known {
            // Our newer report may have been lost on the way there.
            self.queue_for(port, from);
            return false;
        }
        if from == self.own {
            // From an earlier session, or an echo: our present report must get a later version.
            if version > *known {
                *known = version + self.leap;
                self.changed(from, None);
            }
            return false;
        }
        let ports = topology.ports(from);
        if version == *known || bitmap.len() < usize::from(ports).div_ceil(8) {
            return false;
        }
        *known = version;
        for port in 0..ports {
            let is_up = bitmap[usize::from(port / 8)] & 1 << (port % 8) != 0;
            links.set(from, SwitchPort(port), is_up);
        }
        self.changed(from, Some(port));
        true
    }

    /// Returns the next report to send by `port`: position and version; writes the bitmap to
    /// `bitmap`.
    pub(super) fn next_for(
        &mut self,
        port: usize,
        topology: &Topology,
        links: &LinkStates,
        bitmap: &mut [u8],
    ) -> Option<(Position, u64, usize)> {
        let words = &mut self.unsent[port * self.words..][..self.words];
        let word = words.iter().position(|word| *word != 0)?;
        let bit = words[word].trailing_zeros();
        words[word] &= words[word] - 1;
        let position = Position(word as u32 * 64 + bit);
        let ports = topology.ports(position);
        let len = usize::from(ports).div_ceil(8);
        bitmap[..len].fill(0);
        for port in 0..ports {
            let is_up = links.says_up(position, SwitchPort(port));
            bitmap[usize::from(port / 8)] |= u8::from(is_up) << (port % 8);
        }
        Some((position, self.versions[position.0 as usize], len))
    }

    pub(super) fn poll_timeout(&self) -> u64 {
        self.again_at_ns
    }

    /// Repeats recent changes and reports of links that are down; true when it is time for that.
    pub(super) fn handle_timeout(
        &mut self,
        now_ns: u64,
        topology: &Topology,
        links: &LinkStates,
    ) -> bool {
        if now_ns < self.again_at_ns {
            return false;
        }
        self.again_at_ns = now_ns.saturating_add(self.interval_ns);
        for position in (0..self.versions.len() as u32).map(Position) {
            let left = &mut self.repeats[position.0 as usize];
            let is_recent = *left > 0;
            *left = left.saturating_sub(1);
            let has_down = !links.are_all_up()
                && self.versions[position.0 as usize] > 0
                && topology.has_neighbour_where(position, |port| !links.says_up(position, port));
            if is_recent || has_down {
                self.queue_for_all(position, None);
            }
        }
        true
    }

    fn changed(&mut self, position: Position, but: Option<usize>) {
        self.repeats[position.0 as usize] = REPEATS;
        self.queue_for_all(position, but);
    }

    fn queue_for(&mut self, port: usize, position: Position) {
        let (word, bit) = (position.0 as usize / 64, position.0 % 64);
        self.unsent[port * self.words + word] |= 1 << bit;
    }

    fn queue_for_all(&mut self, position: Position, but: Option<usize>) {
        let (word, bit) = (position.0 as usize / 64, position.0 % 64);
        for (port, words) in self.unsent.chunks_exact_mut(self.words).enumerate() {
            if Some(port) != but {
                words[word] |= 1 << bit;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outdated_report_is_answered() {
        let topology: Topology = "mesh:3".parse().unwrap();
        let mut links = LinkStates::all_up(&topology);
        let mut flood = LinkStateFlood::new(&topology, Position(1), 9, 1);
        let (far, mut bitmap) = (Position(2), [0; MAX_BITMAP_BYTES]);
        assert!(flood.receive(0, (far, 5), &[0xff], &topology, &mut links));
        assert!(!flood.receive(1, (far, 4), &[0], &topology, &mut links), "an old report");
        while flood.next_for(1, &topology, &links, &mut bitmap).is_some() {}
        assert!(!flood.receive(1, (far, 5), &[0xff], &topology, &mut links));
        assert_eq!(flood.next_for(1, &topology, &links, &mut bitmap), None, "it knows");
        assert!(!flood.receive(1, (far, 4), &[0], &topology, &mut links));
        assert_eq!(flood.next_for(1, &topology, &links, &mut bitmap), Some((far, 5, 1)));
    }

    #[test]
    fn new_session_surpasses_old_versions() {
        let topology: Topology = "mesh:3".parse().unwrap();
        let mut links = LinkStates::all_up(&topology);
        let mut lives =
            [7 << 20, 8 << 20].map(|n| LinkStateFlood::new(&topology, Position(1), n, 1));
        for flood in &mut lives {
            // One that received it before the old session's last changes.
            assert!(!flood.receive(0, (Position(1), 1 << 50), &[0], &topology, &mut links));
        }
        let versions = lives.map(|flood| flood.versions[1]);
        assert!(versions[0] > (1 << 50) + 1000 && versions[1] > versions[0] + 1000);
    }
}
