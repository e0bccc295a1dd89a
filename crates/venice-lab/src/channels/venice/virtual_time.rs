//! Two nodes and an emulated link in virtual time: the protocol's own use of a link, without the
//! processors' time.

use std::collections::VecDeque;

use anyhow::{Result, bail};
use venice_fabric::{
    EmulatedLink, Initiator, LinkConfig, LinkModel, PeerAddr, QPairConfig, Target,
};
use venice_memory::donor::SharedGrants;
use venice_wire::MAX_FRAME_BYTES;

use super::MEMORY_BYTES;
use super::kinds::{AppPattern, ChannelKind};
use super::lent::{DONOR, GRANT, KEY, WINDOW, answer_mailbox, donor, lent, recipient};
use super::messages::Setting;
use super::patterns::{self, Adaptive};
use super::talk::{Role, SERVICE, Talker};
use super::worker::Worker;

/// Measured time, in virtual nanoseconds, after as long a warm-up.
const LENGTH_NS: u64 = 1_000_000;
/// The same for copies, of which each takes nearly two milliseconds.
const COPIES_NS: u64 = 40_000_000;
/// Time limit of the adaptive library's learning.
const LEARNING_NS: u64 = 1_000_000_000;

/// Returns the bytes per second that arrive at one end while both send messages of `len` bytes
/// without end.
///
/// # Errors
/// When the protocol fails or stands still.
pub(in crate::channels) fn both_ways_in_virtual_time(
    model: LinkModel,
    setting: Setting,
    len: usize,
) -> Result<f64> {
    let config =
        QPairConfig { credit: setting.credit, end: setting.end, ..QPairConfig::messages() };
    let talker = || Talker::new(Role::Exchange(len), setting.end, len);
    let mut pair = Pair::new(model, config, talker(), SharedGrants::default())?;
    let mut near = talker();
    let mut nothing = SharedGrants::default();
    let mut act = |now_ns, initiator: &mut Initiator, _| {
        near.act(now_ns, initiator.qpairs_mut(), &mut nothing).map(drop)
    };
    pair.run_until(LENGTH_NS, &mut act)?;
    let before = pair.far_talker.received_bytes;
    pair.run_until(2 * LENGTH_NS, &mut act)?;
    let bytes = pair.far_talker.received_bytes - before;
    Ok(bytes as f64 * 1e9 / LENGTH_NS as f64)
}

/// Returns the operations a second of a pattern, by one channel or by the adaptive library's
/// choice.
///
/// # Errors
/// When the protocol fails or stands still.
pub(in crate::channels) fn application_in_virtual_time(
    model: LinkModel,
    pattern: AppPattern,
    channel: Option<ChannelKind>,
) -> Result<Adaptive> {
    let mut simulation = AppSimulation::new(model, pattern, channel)?;
    let (learning_operations, learning_ns) = simulation.learn()?;
    let operations_per_s = simulation.measure()?;
    Ok(Adaptive {
        channel: simulation.worker.favourite(),
        operations_per_s,
        learning_operations,
        learning_ns,
        why: simulation.worker.why(),
    })
}

/// An application and the pair of nodes below it.
struct AppSimulation {
    pair: Pair,
    worker: Worker,
    length_ns: u64,
}

impl AppSimulation {
    fn new(model: LinkModel, pattern: AppPattern, channel: Option<ChannelKind>) -> Result<Self> {
        let config = QPairConfig { end: patterns::END, ..QPairConfig::messages() };
        let pair = Pair::new(model, config, patterns::talker(Role::Serve), lent()?)?;
        let worker = Worker::new(pattern, channel, patterns::talker(Role::Idle));
        let length_ns = if pattern == AppPattern::Copy { COPIES_NS } else { LENGTH_NS };
        Ok(Self { pair, worker, length_ns })
    }

    fn run_for(&mut self, length_ns: u64) -> Result<()> {
        let Self { pair, worker, .. } = self;
        pair.run_until(
            pair.now_ns + length_ns,
            &mut |now_ns, initiator: &mut Initiator, arrived| {
                if !worker.app.talker.is_connected() {
                    worker.app.talker.settle(initiator.qpairs_mut())?;
                }
                if worker.app.talker.is_connected() {
                    worker.act(now_ns, initiator, arrived)?;
                }
                Ok(())
            },
        )
    }

    /// Runs until the adaptive library has tried every channel; returns operations and nanoseconds.
    fn learn(&mut self) -> Result<(u64, u64)> {
        let begun_ns = self.pair.now_ns;
        while !self.worker.has_learnt() || self.worker.over == 0 {
            self.run_for(self.length_ns / 100)?;
            if self.pair.now_ns - begun_ns > LEARNING_NS {
                bail!("the adaptive library does not learn");
            }
        }
        Ok((self.worker.over, self.pair.now_ns - begun_ns))
    }

    /// Measures operations a second.
    fn measure(&mut self) -> Result<f64> {
        self.run_for(self.length_ns)?;
        let (before, begun_ns) = (self.worker.over, self.pair.now_ns);
        self.run_for(self.length_ns)?;
        let operations = self.worker.over - before;
        Ok(operations as f64 * 1e9 / (self.pair.now_ns - begun_ns) as f64)
    }
}

/// One direction of the link. A frame is taken from its node only when the wire is free: waiting
/// frames stay at the node, where others can overtake them.
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

/// Action of the near end at each event: the time, its protocol, and the bytes of messages at the
/// far end.
trait Act: FnMut(u64, &mut Initiator, u64) -> Result<()> {}

impl<F: FnMut(u64, &mut Initiator, u64) -> Result<()>> Act for F {}

struct Pair {
    now_ns: u64,
    near: Initiator,
    far: Target,
    far_talker: Talker,
    lent: SharedGrants,
    /// Both directions.
    wires: [Wire; 2],
    /// Period of the far thread's polls for messages, and the time of the next one; 0 polls always.
    far_nap_ns: u64,
    far_wakes_ns: u64,
}

impl Pair {
    fn new(
        model: LinkModel,
        config: QPairConfig,
        far_talker: Talker,
        lent: SharedGrants,
    ) -> Result<Self> {
        let reliable = |link: LinkConfig| LinkConfig { checksum: false, replay: false, ..link };
        let (mut near, mut far) = (recipient()?, donor()?);
        // Fixed values make every run the same.
        (near.link_seed, far.incarnation) = (1, 2);
        (near.link, far.link) = (reliable(near.link), reliable(far.link));
        let (mut near, mut far) = (Initiator::new(near), Target::new(far));
        far.qpairs_mut().listen(SERVICE, 1)?;
        let peer = near.add_peer(DONOR, 0);
        near.map_window(WINDOW, MEMORY_BYTES as u64, peer, 0, GRANT, KEY)?;
        near.qpair_connect(0, peer, SERVICE, config)?;
        Ok(Self {
            now_ns: 0,
            near,
            far,
            far_talker,
            lent,
            wires: [Wire::new(model), Wire::new(model)],
            far_nap_ns: 0,
            far_wakes_ns: 0,
        })
    }

    fn run_until(&mut self, end_ns: u64, act: &mut impl Act) -> Result<()> {
        while self.now_ns < end_ns {
            self.step(act)?;
            let Some(next_ns) = self.next_ns() else { bail!("the link stands still") };
            self.now_ns = next_ns.max(self.now_ns + 1);
        }
        Ok(())
    }

    /// Handles all events of this moment.
    fn step(&mut self, act: &mut impl Act) -> Result<()> {
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
        answer_mailbox(&mut self.lent);
        if self.far_wakes_ns <= now_ns {
            self.far_talker.act(now_ns, self.far.qpairs_mut(), &mut self.lent)?;
            self.far_wakes_ns = if self.far_nap_ns > 0 { now_ns + self.far_nap_ns } else { 0 };
        }
        act(now_ns, &mut self.near, self.far_talker.received_bytes)?;
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

    /// Returns the time of the next event.
    fn next_ns(&self) -> Option<u64> {
        let wires = self.wires.iter().flat_map(|wire| {
            let arrival = wire.frames.front().map(|(there_ns, _)| *there_ns);
            let free = (wire.free_at_ns > self.now_ns).then_some(wire.free_at_ns);
            arrival.into_iter().chain(free)
        });
        let wakes = (self.far_wakes_ns > self.now_ns).then_some(self.far_wakes_ns);
        wires.chain(wakes).chain(self.near.poll_timeout()).chain(self.far.poll_timeout()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_messages_fill_the_link() {
        let run =
            || both_ways_in_virtual_time(LinkModel::PAPER, Setting::roomy(65_536), 65_536).unwrap();
        let rate = run();
        // Expected: 5 Gb/s less 64 bytes of header for each page.
        assert!((0.9..1.0).contains(&(rate / 625e6)), "{rate}");
        assert_eq!(rate, run());
    }

    fn rates(pattern: AppPattern) -> [f64; 3] {
        ChannelKind::ALL.map(|channel| {
            application_in_virtual_time(LinkModel::PAPER, pattern, Some(channel))
                .unwrap()
                .operations_per_s
        })
    }

    #[test]
    fn adaptive_library_nears_the_best_channel() {
        for pattern in AppPattern::ALL {
            let rates = rates(pattern);
            let best = rates.iter().copied().fold(0.0, f64::max);
            let adaptive = application_in_virtual_time(LinkModel::PAPER, pattern, None).unwrap();
            let share = adaptive.operations_per_s / best;
            assert!(share > 0.9, "{pattern:?}: {rates:?}, {adaptive:?}");
        }
    }

    #[test]
    fn busy_far_thread_shifts_words_to_mailbox() {
        let mut simulation = AppSimulation::new(LinkModel::PAPER, AppPattern::Word, None).unwrap();
        simulation.learn().unwrap();
        let mut found = Vec::new();
        for far_nap_ns in [0, 60_000, 0] {
            simulation.pair.far_nap_ns = far_nap_ns;
            // Time to react: a trial is due after fifty times its cost.
            simulation.run_for(20_000_000).unwrap();
            found.push((simulation.measure().unwrap(), simulation.worker.why()));
        }
        let [crma, _, qpair] = rates(AppPattern::Word);
        assert!(qpair > 1.1 * crma, "the mailbox takes two round trips");
        assert!(found[0].0 > 0.9 * qpair && found[2].0 > 0.9 * qpair, "{found:?}");
        assert!(found[1].0 > 0.9 * crma, "{found:?}, {crma}");
    }
}
