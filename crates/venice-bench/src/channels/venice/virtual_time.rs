//! Two nodes and an emulated link in virtual time: what the protocol itself makes of a link, without
//! the time that processors take.

use std::collections::VecDeque;

use anyhow::{Result, bail};
use venice_fabric::{
    EmulatedLink, Initiator, LinkConfig, LinkModel, PeerAddr, QPairConfig, Target,
};
use venice_wire::MAX_FRAME_BYTES;

use super::lent::{DONOR, Lent, donor, recipient};
use super::messages::Setting;
use super::talk::{Role, SERVICE, Talker};

/// How long the link is watched, in virtual nanoseconds, after as long to settle.
const LENGTH_NS: u64 = 1_000_000;

/// Bytes per second that arrive at one end while both send messages of `len` bytes without end.
///
/// # Errors
/// When the protocol fails or stands still.
pub(in crate::channels) fn both_ways_in_virtual_time(
    model: LinkModel,
    setting: Setting,
    len: usize,
) -> Result<f64> {
    let mut pair = Pair::new(model, setting, len)?;
    pair.run_until(LENGTH_NS)?;
    let before = pair.far_talker.received_bytes;
    pair.run_until(2 * LENGTH_NS)?;
    let bytes = pair.far_talker.received_bytes - before;
    Ok(bytes as f64 * 1e9 / LENGTH_NS as f64)
}

/// One direction of the link. A frame is taken from its node only when the wire is free: what waits,
/// waits at the node, where it can be overtaken.
struct Wire {
    link: EmulatedLink,
    delay_ns: u64,
    free_at_ns: u64,
    frames: VecDeque<(u64, Vec<u8>)>,
}

impl Wire {
    fn new(model: LinkModel) -> Self {
        let link = EmulatedLink::new(model);
        Self { link, delay_ns: model.delay_ns(), free_at_ns: 0, frames: VecDeque::new() }
    }

    fn carry(&mut self, now_ns: u64, frame: &[u8]) {
        let there_ns = self.link.depart(now_ns, frame.len());
        self.free_at_ns = there_ns - self.delay_ns;
        self.frames.push_back((there_ns, frame.to_vec()));
    }

    fn arrived(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        let (there_ns, _) = self.frames.front()?;
        (*there_ns <= now_ns).then(|| self.frames.pop_front().expect("there is one").1)
    }
}

struct Pair {
    now_ns: u64,
    near: Initiator,
    far: Target,
    near_talker: Talker,
    far_talker: Talker,
    lent: Lent,
    /// There and back.
    wires: [Wire; 2],
}

impl Pair {
    fn new(model: LinkModel, setting: Setting, len: usize) -> Result<Self> {
        let reliable = |link: LinkConfig| LinkConfig { checksum: false, replay: false, ..link };
        let (mut near, mut far) = (recipient()?, donor()?);
        // The same run every time.
        (near.link_seed, far.incarnation) = (1, 2);
        (near.link, far.link) = (reliable(near.link), reliable(far.link));
        let (mut near, mut far) = (Initiator::new(near), Target::new(far));
        far.qpairs_mut().listen(SERVICE, 1)?;
        let peer = near.add_peer(DONOR, 0);
        let config =
            QPairConfig { credit: setting.credit, end: setting.end, ..QPairConfig::messages() };
        near.qpair_connect(0, peer, SERVICE, config)?;
        let talker = || Talker::new(Role::Exchange(len), setting.end, len);
        Ok(Self {
            now_ns: 0,
            near,
            far,
            near_talker: talker(),
            far_talker: talker(),
            lent: Lent::empty(),
            wires: [Wire::new(model), Wire::new(model)],
        })
    }

    fn run_until(&mut self, end_ns: u64) -> Result<()> {
        while self.now_ns < end_ns {
            self.step()?;
            let Some(next_ns) = self.next_ns() else { bail!("the link stands still") };
            self.now_ns = next_ns.max(self.now_ns + 1);
        }
        Ok(())
    }

    /// Everything that happens now.
    fn step(&mut self) -> Result<()> {
        let now_ns = self.now_ns;
        while let Some(frame) = self.wires[0].arrived(now_ns) {
            self.far.handle_frame(now_ns, PeerAddr(0), &frame, &mut self.lent);
        }
        while let Some(frame) = self.wires[1].arrived(now_ns) {
            self.near.handle_frame(now_ns, venice_fabric::PeerIndex(0), &frame);
        }
        if self.near.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            self.near.handle_timeout(now_ns);
        }
        if self.far.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            self.far.handle_timeout(now_ns);
        }
        self.near_talker.act(now_ns, self.near.qpairs_mut(), &mut self.lent)?;
        self.far_talker.act(now_ns, self.far.qpairs_mut(), &mut self.lent)?;
        let mut buffer = [0; MAX_FRAME_BYTES];
        if self.wires[0].free_at_ns <= now_ns
            && let Some((_, len)) = self.near.poll_transmit(now_ns, &mut buffer)
        {
            self.wires[0].carry(now_ns, &buffer[..len]);
        }
        if self.wires[1].free_at_ns <= now_ns
            && let Some((_, len)) = self.far.poll_transmit(now_ns, &mut buffer)
        {
            self.wires[1].carry(now_ns, &buffer[..len]);
        }
        Ok(())
    }

    /// When the next thing happens.
    fn next_ns(&self) -> Option<u64> {
        let wires = self.wires.iter().flat_map(|wire| {
            let arrival = wire.frames.front().map(|(there_ns, _)| *there_ns);
            let free = (wire.free_at_ns > self.now_ns).then_some(wire.free_at_ns);
            arrival.into_iter().chain(free)
        });
        wires.chain(self.near.poll_timeout()).chain(self.far.poll_timeout()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_messages_fill_the_link_and_runs_repeat() {
        let run =
            || both_ways_in_virtual_time(LinkModel::PAPER, Setting::roomy(65_536), 65_536).unwrap();
        let rate = run();
        // 5 Gb/s less 64 bytes of header for each page.
        assert!((0.9..1.0).contains(&(rate / 625e6)), "{rate}");
        assert_eq!(rate, run());
    }
}
