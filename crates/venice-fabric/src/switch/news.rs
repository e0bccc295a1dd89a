//! What every switch tells all others about its links, so that each can find ways round those that
//! are down. News spreads from neighbour to neighbour; the Monitor Node has no part in it.
//!
//! News is not sequenced: it is told again a few times after it changed, as long as it says that
//! something is down, and to whoever tells what is older. A switch counts its versions from a
//! number of its life's own, so that none means two things; one that was restarted learns from the
//! others which version of its news they have, and goes on beyond it if that is later.

use venice_wire::SwitchPort;

use crate::routing::LinkStates;
use crate::topology::{Position, Topology};

/// How often changed news is told again.
const RETELLINGS: u8 = 4;
/// Bytes of the longest bitmap of ports.
pub(super) const MAX_BITMAP_BYTES: usize = u16::MAX as usize / 8 + 1;

/// News of a later version is nobody's: no switch lives for so many changes, and one that had to
/// surpass it could count no further.
const LAST_VERSION: u64 = u64::MAX / 2;
/// The highest version that a switch begins with: far enough from the last.
const FIRST_VERSIONS: u64 = 1 << 48;
const MAX_LEAP: u64 = 1 << 32;

/// All news, and which port still has to be told what.
#[derive(Debug)]
pub(super) struct News {
    own: Position,
    /// How far beyond a version of an earlier life this one goes on: the next numbers may have
    /// been that life's too, and somebody may have heard them.
    leap: u64,
    /// By position; 0: nothing has been heard.
    versions: Box<[u64]>,
    retellings: Box<[u8]>,
    /// By port, then by position, one bit each.
    untold: Box<[u64]>,
    words: usize,
    again_at_ns: u64,
    interval_ns: u64,
}

impl News {
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
            retellings: vec![0; positions].into(),
            untold: vec![0; words * usize::from(topology.ports(own))].into(),
            words,
            again_at_ns: 0,
            interval_ns,
        }
    }

    /// A link of this switch is up or down now.
    pub(super) fn own_changed(&mut self) {
        self.versions[self.own.0 as usize] += 1;
        self.changed(self.own, None);
    }

    /// A neighbour is there (again): it is told everything.
    pub(super) fn greet(&mut self, port: usize) {
        for position in 0..self.versions.len() {
            if self.versions[position] > 0 {
                self.tell_to(port, Position(position as u32));
            }
        }
    }

    /// Hears news through `port`; true when it is new, and then `links` has it.
    pub(super) fn hear(
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
            // All that was said since may have got lost on the way there.
            self.tell_to(port, from);
            return false;
        }
        if from == self.own {
            // From an earlier life, or an echo: what we say now must count as later.
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

    /// The next news that `port` has to be told: position and version; the bitmap goes to `bitmap`.
    pub(super) fn next_for(
        &mut self,
        port: usize,
        topology: &Topology,
        links: &LinkStates,
        bitmap: &mut [u8],
    ) -> Option<(Position, u64, usize)> {
        let words = &mut self.untold[port * self.words..][..self.words];
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

    /// Tells again what changed lately, and what is down; true when it is time for that.
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
            let left = &mut self.retellings[position.0 as usize];
            let is_recent = *left > 0;
            *left = left.saturating_sub(1);
            let has_down = !links.are_all_up()
                && self.versions[position.0 as usize] > 0
                && topology.has_neighbour_where(position, |port| !links.says_up(position, port));
            if is_recent || has_down {
                self.tell(position, None);
            }
        }
        true
    }

    fn changed(&mut self, position: Position, but: Option<usize>) {
        self.retellings[position.0 as usize] = RETELLINGS;
        self.tell(position, but);
    }

    fn tell_to(&mut self, port: usize, position: Position) {
        let (word, bit) = (position.0 as usize / 64, position.0 % 64);
        self.untold[port * self.words + word] |= 1 << bit;
    }

    fn tell(&mut self, position: Position, but: Option<usize>) {
        let (word, bit) = (position.0 as usize / 64, position.0 % 64);
        for (port, words) in self.untold.chunks_exact_mut(self.words).enumerate() {
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
    fn who_tells_what_is_older_is_told_what_is_later() {
        let topology: Topology = "mesh:3".parse().unwrap();
        let mut links = LinkStates::all_up(&topology);
        let mut news = News::new(&topology, Position(1), 9, 1);
        let (far, mut bitmap) = (Position(2), [0; MAX_BITMAP_BYTES]);
        assert!(news.hear(0, (far, 5), &[0xff], &topology, &mut links));
        assert!(!news.hear(1, (far, 4), &[0], &topology, &mut links), "an old word");
        while news.next_for(1, &topology, &links, &mut bitmap).is_some() {}
        assert!(!news.hear(1, (far, 5), &[0xff], &topology, &mut links));
        assert_eq!(news.next_for(1, &topology, &links, &mut bitmap), None, "it knows");
        assert!(!news.hear(1, (far, 4), &[0], &topology, &mut links));
        assert_eq!(news.next_for(1, &topology, &links, &mut bitmap), Some((far, 5, 1)));
    }

    #[test]
    fn a_new_life_leaves_the_numbers_of_the_old_one_behind() {
        let topology: Topology = "mesh:3".parse().unwrap();
        let mut links = LinkStates::all_up(&topology);
        let mut lives = [7 << 20, 8 << 20].map(|n| News::new(&topology, Position(1), n, 1));
        for news in &mut lives {
            // One that heard it before the old life's last changes.
            assert!(!news.hear(0, (Position(1), 1 << 50), &[0], &topology, &mut links));
        }
        let versions = lives.map(|news| news.versions[1]);
        assert!(versions[0] > (1 << 50) + 1000 && versions[1] > versions[0] + 1000);
    }
}
