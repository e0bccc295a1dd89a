//! The choice of a channel: the best by measurement, with occasional trials of the others.

use std::fmt;

use super::{
    ChannelKind, Estimate, Pattern, PatternDetector,
    estimate::{Done, Estimates, class_bytes, class_of},
    trial::{Stamp, Verdict, Work},
};

/// The settings of a [`Chooser`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChooserConfig {
    /// The share of a size class's total time, in percent, that may go to trials of channels other
    /// than the best; 0: each is tried once, and never again.
    pub explore_percent: u32,
    /// Shifts the trials of one chooser in time against those of another.
    pub seed: u64,
    /// Measurements per channel in a trial. Two suffice where one takes long.
    pub min_samples: u32,
    /// The advantage in percent by which another channel must beat the one in use to replace it.
    pub margin_percent: u32,
    /// A trial ends at once when the channel proves this many times worse than the best.
    pub hopeless_factor: u64,
}

impl Default for ChooserConfig {
    fn default() -> Self {
        Self { explore_percent: 2, seed: 0, min_samples: 4, margin_percent: 5, hopeless_factor: 4 }
    }
}

/// A transfer for which a channel is to be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Its length in bytes.
    pub len_bytes: usize,
    /// Its address in the address space whose pattern is watched; `None`: no address.
    pub addr: Option<u64>,
    /// The pattern, if the caller knows it; it overrides the pattern detected from addresses.
    pub hint: Option<Pattern>,
    /// The channels that can take the transfer now, by [`ChannelKind::index`].
    pub possible: [bool; 3],
}

/// A choice and its reason, ready to be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChoiceEvent {
    /// The chosen channel.
    pub channel: ChannelKind,
    /// The reason of the choice.
    pub reason: ChoiceReason,
    /// Bytes of the transfer.
    pub len_bytes: usize,
    /// The longest length of its size class, in bytes.
    pub class_bytes: usize,
    /// The pattern for which the channel was chosen.
    pub pattern: Pattern,
    /// The estimates at the time, by [`ChannelKind::index`]; `None` where nothing was measured.
    pub estimates: [Option<Estimate>; 3],
    /// The costs compared, in nanoseconds: the latency where one transfer is outstanding at a time,
    /// otherwise the time between completions. `None` where nothing was measured.
    pub costs_ns: [Option<u64>; 3],
    /// Other transfers outstanding on the chosen channel. Hand the event back by [`Chooser::done`].
    pub in_flight: u64,
    stamp: Stamp,
}

/// The reason a channel was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoiceReason {
    /// No other channel can take the transfer.
    OnlyOne,
    /// A trial: the channel was never measured for this length and pattern.
    Unmeasured,
    /// A trial: the channel was not the best, and may be by now.
    Explore,
    /// The channel is the best.
    Best,
    /// The channel was the best, and no other is better by the margin.
    Incumbent,
}

impl ChoiceReason {
    /// True if the channel is chosen in order to measure it. Do not substitute another channel when
    /// this one has no room: the measurement would mix both.
    pub fn is_trial(self) -> bool {
        matches!(self, Self::Unmeasured | Self::Explore)
    }
}

impl fmt::Display for ChoiceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self.reason {
            ChoiceReason::OnlyOne => "only possible channel",
            ChoiceReason::Unmeasured => "first trial",
            ChoiceReason::Explore => "repeated trial",
            ChoiceReason::Best => "best",
            ChoiceReason::Incumbent => "in use, no other better by the margin",
        };
        let (channel, len_bytes) = (self.channel, self.len_bytes);
        write!(f, "{channel:?} for {len_bytes} B, {:?}: {reason}; each takes", self.pattern)?;
        for (kind, cost_ns) in ChannelKind::ALL.iter().zip(self.costs_ns) {
            match cost_ns {
                Some(cost_ns) => write!(f, " {cost_ns} ns by {kind:?}")?,
                None => write!(f, " an unknown time by {kind:?}")?,
            }
        }
        Ok(())
    }
}

/// Chooses channels from the reported times of their transfers. It has no clock and draws no random
/// numbers: the same calls bring the same choices.
///
/// Sizes fall into classes by powers of two. For [`Pattern::Random`] and [`Pattern::Message`] the
/// best channel is the one with the shortest latency divided by the number of outstanding
/// transfers: with more of them, throughput counts more. For [`Pattern::Sequential`] and
/// [`Pattern::Strided`], where a transfer need not wait for the one before, throughput alone
/// counts.
///
/// Trials measure the channels. A trial is a run of consecutive choices, long enough that the
/// channel is as busy as the caller keeps it and that nothing of the channel before is outstanding.
/// The channel in use is measured all the time. Trials of the others take a bounded share of the
/// time, so slow channels are tried rarely.
///
/// ```
/// use venice_fabric::adaptive::{Ask, ChannelKind, Chooser, ChooserConfig, ChoiceReason, Pattern};
///
/// let mut chooser = Chooser::new(ChooserConfig::default());
/// let ask = Ask {
///     len_bytes: 64,
///     addr: None,
///     hint: Some(Pattern::Random),
///     possible: [true, true, false],
/// };
/// let mut now_ns = 0;
/// for _ in 0..100 {
///     let choice = chooser.choose(&ask);
///     let took_ns = if choice.channel == ChannelKind::Crma { 2_000 } else { 9_000 };
///     let began_ns = now_ns;
///     now_ns += took_ns;
///     chooser.done(&choice, began_ns, now_ns);
/// }
/// let choice = chooser.choose(&ask);
/// assert_eq!((choice.channel, choice.reason), (ChannelKind::Crma, ChoiceReason::Best));
/// ```
#[derive(Clone, Debug)]
pub struct Chooser {
    config: ChooserConfig,
    detector: PatternDetector,
    estimates: Estimates,
    /// By class, and by streaming or not.
    works: Vec<[Work; 2]>,
}

impl Chooser {
    /// Returns a chooser without measurements.
    pub fn new(config: ChooserConfig) -> Self {
        let classes = class_of(usize::MAX >> 1) + 1;
        Self {
            config,
            detector: PatternDetector::new(),
            estimates: Estimates::new(),
            works: vec![[Work::default(); 2]; classes],
        }
    }

    /// Chooses a channel and counts the transfer as outstanding: [`Chooser::done`] or
    /// [`Chooser::forget`] must follow.
    ///
    /// # Panics
    /// Panics if no channel is possible.
    pub fn choose(&mut self, ask: &Ask) -> ChoiceEvent {
        assert!(ask.possible.contains(&true), "there must be a channel to choose");
        let seen = ask.addr.map(|addr| self.detector.note(addr, ask.len_bytes as u64));
        let pattern = ask.hint.or(seen).unwrap_or(Pattern::Message);
        let class = class_of(ask.len_bytes);
        let (channel, reason) = self.decide(ask, class, pattern);
        let in_flight = self.estimates.in_flight(channel);
        let estimates = ChannelKind::ALL.map(|channel| self.estimates.get(channel, class));
        let costs_ns = ChannelKind::ALL.map(|channel| self.cost_ns(channel, class, pattern));
        self.estimates.begin(channel);
        ChoiceEvent {
            channel,
            reason,
            len_bytes: ask.len_bytes,
            class_bytes: class_bytes(class),
            pattern,
            estimates,
            costs_ns,
            in_flight,
            stamp: self.works[class][usize::from(pattern.is_stream())].begin(channel),
        }
    }

    fn decide(&mut self, ask: &Ask, class: usize, pattern: Pattern) -> (ChannelKind, ChoiceReason) {
        let possible = || ChannelKind::ALL.into_iter().filter(|kind| ask.possible[kind.index()]);
        if let Some(only) = possible().next().filter(|_| possible().count() == 1) {
            return (only, ChoiceReason::OnlyOne);
        }
        let work = &mut self.works[class][usize::from(pattern.is_stream())];
        let (on_trial, verdict) = work.go_on_trying(ask.possible, &self.config);
        if let Some(on_trial) = on_trial {
            return on_trial;
        }
        if let Some(verdict) = verdict {
            self.end_trial(class, verdict);
        }
        let work = &mut self.works[class][usize::from(pattern.is_stream())];
        if let Some(due) = work.due(ask.possible, &self.config) {
            self.estimates.renew(due, class);
            return (due, work.begin_trial(due));
        }
        let cost_ns = |kind| self.cost_ns(kind, class, pattern).unwrap_or(u64::MAX);
        let best = possible().min_by_key(|&kind| cost_ns(kind)).expect("one is possible");
        let work = &self.works[class][usize::from(pattern.is_stream())];
        let enough = u64::from(100 + self.config.margin_percent);
        let is_near = |kept: ChannelKind| {
            let least_ns = cost_ns(best).saturating_mul(enough);
            kept != best && cost_ns(kept).saturating_mul(100) <= least_ns
        };
        let kept = work.incumbent.filter(|kind| ask.possible[kind.index()]);
        let (channel, reason) = match kept.filter(|&kept| is_near(kept)) {
            Some(kept) => (kept, ChoiceReason::Incumbent),
            None => (best, ChoiceReason::Best),
        };
        // A transfer that cannot take the best channel now takes another, and changes nothing.
        if kept.is_some() || work.incumbent.is_none() {
            let laps = u64::from(self.config.min_samples) + 2 * work.under_way();
            let latency_ns = |kind| self.estimates.get(kind, class).map_or(0, |e| e.latency_ns);
            let trial_ns = |kind| latency_ns(kind).saturating_mul(laps);
            let work = &mut self.works[class][usize::from(pattern.is_stream())];
            work.settle_on(channel, trial_ns, &self.config);
        }
        (channel, reason)
    }

    /// Returns the cost of one more transfer on a channel; `None` if it was never measured.
    fn cost_ns(&self, kind: ChannelKind, class: usize, pattern: Pattern) -> Option<u64> {
        let estimate = self.estimates.get(kind, class)?;
        if pattern.is_stream() {
            return Some(estimate.service_ns.unwrap_or(estimate.latency_ns));
        }
        // Assumes that all of this work went there: otherwise an unused channel would seem fast
        // merely because it is idle.
        let work = &self.works[class][usize::from(pattern.is_stream())];
        let load = work.load();
        let others = estimate.in_flight.saturating_sub(work.under_way_on(kind));
        let each_ns = estimate.expected_latency_ns(load + others) / (load + 1);
        // A channel that takes fewer transfers at a time than offered does not get faster by it.
        Some(if load > 0 { each_ns.max(estimate.service_ns.unwrap_or(0)) } else { each_ns })
    }

    /// Reports that a chosen transfer, begun at `began_ns`, is done.
    pub fn done(&mut self, choice: &ChoiceEvent, began_ns: u64, now_ns: u64) {
        let (channel, class) = (choice.channel, class_of(choice.len_bytes));
        let is_stream = choice.pattern.is_stream();
        let done = Done { channel, class, in_flight: choice.in_flight, began_ns, now_ns };
        let work = &mut self.works[class][usize::from(is_stream)];
        let lesson = work.finish(channel, choice.stamp, now_ns.saturating_sub(began_ns));
        if lesson.latency {
            self.estimates.note_latency(&done);
        }
        if self.estimates.note_service(&done, lesson.service) {
            work.note_service(channel);
        }
        let is_hopeless = work.tried().is_some_and(|tried| {
            let cost_ns = |kind| self.cost_ns(kind, class, choice.pattern);
            let others = ChannelKind::ALL.into_iter().filter(|kind| *kind != tried);
            let best_ns = others.filter_map(cost_ns).min().unwrap_or(u64::MAX);
            let most_ns = best_ns.saturating_mul(self.config.hopeless_factor);
            cost_ns(tried).is_some_and(|cost_ns| cost_ns > most_ns)
        });
        let work = &mut self.works[class][usize::from(is_stream)];
        if let Some(verdict) = work.conclude(is_stream, is_hopeless, &self.config) {
            self.end_trial(class, verdict);
        }
    }

    /// Ends a trial. A trial without usable measurements is judged by its total time.
    fn end_trial(&mut self, class: usize, verdict: Verdict) {
        let Verdict { channel, rough_latency_ns: Some(now_ns) } = verdict else { return };
        let in_flight = self.estimates.in_flight(channel);
        self.estimates.note_latency(&Done { channel, class, in_flight, began_ns: 0, now_ns });
    }

    /// Reports that a chosen transfer did not start, or failed: it counts in no estimate.
    pub fn forget(&mut self, choice: &ChoiceEvent) {
        self.estimates.forget(choice.channel);
        let class = class_of(choice.len_bytes);
        let work = &mut self.works[class][usize::from(choice.pattern.is_stream())];
        work.forget(choice.channel, choice.stamp);
    }

    /// Reports a transfer that was not chosen here, so that it counts in the estimates too.
    pub fn observe(&mut self, channel: ChannelKind, len_bytes: usize, began_ns: u64, now_ns: u64) {
        let in_flight = self.estimates.in_flight(channel);
        let done = Done { channel, class: class_of(len_bytes), in_flight, began_ns, now_ns };
        self.estimates.begin(channel);
        self.estimates.note_latency(&done);
        self.estimates.note_service(&done, true);
    }

    /// Returns the estimate of a channel for lengths like `len_bytes`; `None` without a
    /// measurement.
    pub fn estimate(&self, channel: ChannelKind, len_bytes: usize) -> Option<Estimate> {
        self.estimates.get(channel, class_of(len_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [bool; 3] = [true; 3];

    fn ask(len_bytes: usize, pattern: Pattern) -> Ask {
        Ask { len_bytes, addr: None, hint: Some(pattern), possible: ALL }
    }

    /// Makes `count` choices one at a time over channels of the given latencies; returns how often
    /// each was chosen.
    fn run(
        chooser: &mut Chooser,
        now_ns: &mut u64,
        count: u32,
        ask: &Ask,
        ns: [u64; 3],
    ) -> [u32; 3] {
        let mut taken = [0; 3];
        for _ in 0..count {
            let choice = chooser.choose(ask);
            taken[choice.channel.index()] += 1;
            let began_ns = *now_ns;
            *now_ns += ns[choice.channel.index()];
            chooser.done(&choice, began_ns, *now_ns);
        }
        taken
    }

    #[test]
    fn best_channel_dominates_choices() {
        for best in 0..3 {
            let mut ns = [5000; 3];
            ns[best] = 2000;
            let mut chooser = Chooser::new(ChooserConfig::default());
            let taken = run(&mut chooser, &mut 0, 10_000, &ask(64, Pattern::Random), ns);
            assert!(taken[best] > 9_900 - 20, "{taken:?}");
            assert!(taken.iter().all(|&count| count >= 4), "{taken:?}");
        }
    }

    #[test]
    fn latency_change_switches_channel() {
        let mut chooser = Chooser::new(ChooserConfig::default());
        let (mut now_ns, ask) = (0, ask(256, Pattern::Message));
        let before = run(&mut chooser, &mut now_ns, 2000, &ask, [1000, 3000, 2000]);
        assert!(before[0] > 1900, "{before:?}");
        let after = run(&mut chooser, &mut now_ns, 2000, &ask, [9000, 3000, 2000]);
        assert!(after[2] > 1900, "{after:?}");
        // The other direction relies on the occasional trials of channels found bad.
        let back = run(&mut chooser, &mut now_ns, 100_000, &ask, [500, 3000, 2000]);
        assert!(back[0] > 60_000, "{back:?}");
    }

    #[test]
    fn choice_depends_on_size_and_pattern() {
        let mut chooser = Chooser::new(ChooserConfig::default());
        let mut now_ns = 0;
        let small = ask(64, Pattern::Random);
        let large = ask(1 << 20, Pattern::Random);
        run(&mut chooser, &mut now_ns, 500, &small, [1000, 5000, 2000]);
        run(&mut chooser, &mut now_ns, 500, &large, [900_000, 100_000, 300_000]);
        assert_eq!(chooser.choose(&small).channel, ChannelKind::Crma);
        assert_eq!(chooser.choose(&large).channel, ChannelKind::Rdma);
    }

    /// Keeps `depth` transfers outstanding for `count` choices over channels of the given latencies
    /// and service times; returns how often each was chosen.
    fn run_deep(
        chooser: &mut Chooser,
        (now_ns, free_ns): (&mut u64, &mut [u64; 3]),
        (count, depth): (usize, usize),
        ask: &Ask,
        (ns, service_ns): ([u64; 3], [u64; 3]),
    ) -> [u32; 3] {
        let (mut taken, mut under_way) = ([0; 3], Vec::new());
        for n in 0..count {
            if n >= depth {
                let order = |&at: &usize| {
                    let one: &(u64, usize, u64, ChoiceEvent) = &under_way[at];
                    (one.0, one.1)
                };
                let at = (0..under_way.len()).min_by_key(order).unwrap();
                let (done_ns, _, began_ns, choice) = under_way.swap_remove(at);
                *now_ns = done_ns;
                chooser.done(&choice, began_ns, done_ns);
            }
            let choice = chooser.choose(ask);
            let at = choice.channel.index();
            taken[at] += 1;
            free_ns[at] = free_ns[at].max(*now_ns) + service_ns[at];
            under_way.push((free_ns[at] + ns[at] - service_ns[at], n, *now_ns, choice));
        }
        under_way.sort_by_key(|one| (one.0, one.1));
        for (done_ns, _, began_ns, choice) in under_way {
            *now_ns = done_ns;
            chooser.done(&choice, began_ns, done_ns);
        }
        taken
    }

    #[test]
    fn depth_shifts_choice_to_throughput() {
        let asked = ask(64, Pattern::Random);
        let mut chooser = Chooser::new(ChooserConfig::default());
        let (mut now_ns, mut free_ns) = (0, [0; 3]);
        // The first is fast with one transfer at a time, the second with many.
        let times = ([1000, 3000, 2000], [900, 100, 400]);
        for (depth, best) in [(1, 0), (16, 1), (2, 0), (64, 1), (1, 0)] {
            let clock = (&mut now_ns, &mut free_ns);
            let taken = run_deep(&mut chooser, clock, (20_000, depth), &asked, times);
            assert!(taken[best] > 18_000, "{depth} under way: {taken:?}");
        }
    }

    #[test]
    fn sole_channel_and_detected_pattern() {
        let mut chooser = Chooser::new(ChooserConfig::default());
        let mut last = None;
        for n in 0..20 {
            let ask = Ask {
                len_bytes: 64,
                addr: Some(n * 64),
                hint: None,
                possible: [false, false, true],
            };
            let choice = chooser.choose(&ask);
            assert_eq!(choice.reason, ChoiceReason::OnlyOne);
            chooser.forget(&choice);
            last = Some(choice.pattern);
        }
        assert_eq!(last, Some(Pattern::Sequential));
        let idle = chooser.choose(&ask(64, Pattern::Random));
        assert_eq!(idle.in_flight, 0, "forgotten transfers are not outstanding");
    }

    #[test]
    fn equal_channels_do_not_alternate() {
        let mut chooser = Chooser::new(ChooserConfig { explore_percent: 0, ..Default::default() });
        let (mut now_ns, ask) = (0, ask(64, Pattern::Random));
        run(&mut chooser, &mut now_ns, 100, &ask, [2000, 2050, 2050]);
        let taken = run(&mut chooser, &mut now_ns, 100, &ask, [2080, 2050, 2050]);
        assert_eq!(taken, [100, 0, 0]);
    }
}
