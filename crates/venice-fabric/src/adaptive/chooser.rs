//! Which channel to take: the one that has been measured to be best, with a look at the others now
//! and then.

use std::fmt;

use super::{
    ChannelKind, Estimate, Pattern, PatternDetector,
    estimate::{Done, Estimates, class_bytes, class_of},
    trial::{Stamp, Verdict, Work},
};

/// How a [`Chooser`] goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChooserConfig {
    /// Of the time that all the work of a size class takes, the share in percent that may go to
    /// trials of channels that are not the best; 0: each is tried once, and never again.
    pub explore_percent: u32,
    /// Makes trials of one chooser fall at other times than those of another.
    pub seed: u64,
    /// Times a channel is measured in a trial. Of those that take long, two are enough.
    pub min_samples: u32,
    /// Another channel must be better by this many percent to replace the one in use.
    pub margin_percent: u32,
    /// A trial ends at once when the channel turns out so many times worse than the best.
    pub hopeless_factor: u64,
}

impl Default for ChooserConfig {
    fn default() -> Self {
        Self { explore_percent: 2, seed: 0, min_samples: 4, margin_percent: 5, hopeless_factor: 4 }
    }
}

/// What is to be sent or fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Bytes.
    pub len_bytes: usize,
    /// Where, in the address space whose pattern is watched; `None`: nowhere in particular.
    pub addr: Option<u64>,
    /// What the caller knows of the pattern; it overrides what the addresses look like.
    pub hint: Option<Pattern>,
    /// The channels that can take it just now, by [`ChannelKind::index`].
    pub possible: [bool; 3],
}

/// A choice and why it was made: to be logged as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChoiceEvent {
    /// The channel to take.
    pub channel: ChannelKind,
    /// Why.
    pub reason: ChoiceReason,
    /// Bytes asked about.
    pub len_bytes: usize,
    /// The longest length of the size class it was looked up in, in bytes.
    pub class_bytes: usize,
    /// The pattern it was chosen for.
    pub pattern: Pattern,
    /// What was known, by [`ChannelKind::index`]; `None` for what was never measured.
    pub estimates: [Option<Estimate>; 3],
    /// What they were judged by, in nanoseconds: how long one takes where one is under way at a
    /// time, else the time from one done to the next. `None` for what was never measured.
    pub costs_ns: [Option<u64>; 3],
    /// Others under way on the chosen channel; give it back with [`Chooser::done`].
    pub in_flight: u64,
    stamp: Stamp,
}

/// Why a channel was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoiceReason {
    /// No other can take it.
    OnlyOne,
    /// It is on trial: it was never measured for such lengths and patterns.
    Unmeasured,
    /// It is on trial: it was not the best, and might be by now.
    Explore,
    /// It is best.
    Best,
    /// It was best, and no other is better by enough.
    Incumbent,
}

impl ChoiceReason {
    /// Whether the channel is taken to measure it. Then no other should take its place when it has
    /// no room: what is measured would be both.
    pub fn is_trial(self) -> bool {
        matches!(self, Self::Unmeasured | Self::Explore)
    }
}

impl fmt::Display for ChoiceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self.reason {
            ChoiceReason::OnlyOne => "no other can take it",
            ChoiceReason::Unmeasured => "on trial for the first time",
            ChoiceReason::Explore => "on trial again",
            ChoiceReason::Best => "the best",
            ChoiceReason::Incumbent => "in use, no other is better by enough",
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

/// Chooses channels from what it is told of their work. It has no clock and draws no random
/// numbers: the same calls bring the same choices.
///
/// Sizes fall into classes by powers of two. For [`Pattern::Random`] and [`Pattern::Message`] the
/// best channel is the one with the shortest latency, divided by how many are under way at a time:
/// the more there are, the more it counts how fast the channel gets them done. For
/// [`Pattern::Sequential`] and [`Pattern::Strided`], where the next one need not wait for the last,
/// that is all that counts.
///
/// What a channel does is measured in trials: runs of consecutive choices, long enough that the
/// channel is as busy as the caller keeps it, and that nothing of the channel before is on its way.
/// The channel in use is measured all the time. Trials of the others take a bounded share of the
/// time, so that a slow one is looked at rarely.
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
    /// By class and by whether a stream is asked for.
    works: Vec<[Work; 2]>,
}

impl Chooser {
    /// A chooser that knows nothing yet.
    pub fn new(config: ChooserConfig) -> Self {
        let classes = class_of(usize::MAX >> 1) + 1;
        Self {
            config,
            detector: PatternDetector::new(),
            estimates: Estimates::new(),
            works: vec![[Work::default(); 2]; classes],
        }
    }

    /// Chooses a channel, and counts it as taken: [`Chooser::done`] or [`Chooser::forget`] must
    /// follow.
    ///
    /// # Panics
    /// If no channel is possible.
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
            self.hear(class, verdict);
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
        // One that cannot take the best just now goes beside it, and changes nothing.
        if kept.is_some() || work.incumbent.is_none() {
            let laps = u64::from(self.config.min_samples) + 2 * work.under_way();
            let latency_ns = |kind| self.estimates.get(kind, class).map_or(0, |e| e.latency_ns);
            let trial_ns = |kind| latency_ns(kind).saturating_mul(laps);
            let work = &mut self.works[class][usize::from(pattern.is_stream())];
            work.settle_on(channel, trial_ns, &self.config);
        }
        (channel, reason)
    }

    /// What one more would cost on a channel; `None` if that was never measured.
    fn cost_ns(&self, kind: ChannelKind, class: usize, pattern: Pattern) -> Option<u64> {
        let estimate = self.estimates.get(kind, class)?;
        if pattern.is_stream() {
            return Some(estimate.service_ns.unwrap_or(estimate.latency_ns));
        }
        // Judged as if all of this work went there: otherwise a channel that is never in use would
        // seem quick for being empty.
        let work = &self.works[class][usize::from(pattern.is_stream())];
        let load = work.load();
        let others = estimate.in_flight.saturating_sub(work.under_way_on(kind));
        let each_ns = estimate.expected_latency_ns(load + others) / (load + 1);
        // A channel that takes fewer at a time than there would be does not get faster by it.
        Some(if load > 0 { each_ns.max(estimate.service_ns.unwrap_or(0)) } else { each_ns })
    }

    /// What was chosen, and begun at `began_ns`, is done.
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
            self.hear(class, verdict);
        }
    }

    /// A trial is over. One that brought nothing better is judged by what it took all in all.
    fn hear(&mut self, class: usize, verdict: Verdict) {
        let Verdict { channel, rough_latency_ns: Some(now_ns) } = verdict else { return };
        let in_flight = self.estimates.in_flight(channel);
        self.estimates.note_latency(&Done { channel, class, in_flight, began_ns: 0, now_ns });
    }

    /// What was chosen did not come to be, or failed: nothing is learnt from it.
    pub fn forget(&mut self, choice: &ChoiceEvent) {
        self.estimates.forget(choice.channel);
        let class = class_of(choice.len_bytes);
        let work = &mut self.works[class][usize::from(choice.pattern.is_stream())];
        work.forget(choice.channel, choice.stamp);
    }

    /// Tells of work that was not chosen here, so that it is learnt from too.
    pub fn observe(&mut self, channel: ChannelKind, len_bytes: usize, began_ns: u64, now_ns: u64) {
        let in_flight = self.estimates.in_flight(channel);
        let done = Done { channel, class: class_of(len_bytes), in_flight, began_ns, now_ns };
        self.estimates.begin(channel);
        self.estimates.note_latency(&done);
        self.estimates.note_service(&done, true);
    }

    /// What is known of a channel for lengths like `len_bytes`; `None` if nothing is.
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

    /// Makes `count` choices one at a time over channels that take so long; returns how often each
    /// was chosen.
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
    fn the_best_is_found_and_the_others_hardly_bother() {
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
    fn a_change_is_noticed() {
        let mut chooser = Chooser::new(ChooserConfig::default());
        let (mut now_ns, ask) = (0, ask(256, Pattern::Message));
        let before = run(&mut chooser, &mut now_ns, 2000, &ask, [1000, 3000, 2000]);
        assert!(before[0] > 1900, "{before:?}");
        let after = run(&mut chooser, &mut now_ns, 2000, &ask, [9000, 3000, 2000]);
        assert!(after[2] > 1900, "{after:?}");
        // The other way round it takes a look at what was bad, now and then.
        let back = run(&mut chooser, &mut now_ns, 100_000, &ask, [500, 3000, 2000]);
        assert!(back[0] > 60_000, "{back:?}");
    }

    #[test]
    fn size_and_pattern_have_their_own_best() {
        let mut chooser = Chooser::new(ChooserConfig::default());
        let mut now_ns = 0;
        let small = ask(64, Pattern::Random);
        let large = ask(1 << 20, Pattern::Random);
        run(&mut chooser, &mut now_ns, 500, &small, [1000, 5000, 2000]);
        run(&mut chooser, &mut now_ns, 500, &large, [900_000, 100_000, 300_000]);
        assert_eq!(chooser.choose(&small).channel, ChannelKind::Crma);
        assert_eq!(chooser.choose(&large).channel, ChannelKind::Rdma);
    }

    /// Keeps `depth` under way for `count` choices over channels that take so long, and are busy
    /// for so long with each; returns how often each was chosen.
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
    fn the_more_are_under_way_the_less_the_latency_counts() {
        let asked = ask(64, Pattern::Random);
        let mut chooser = Chooser::new(ChooserConfig::default());
        let (mut now_ns, mut free_ns) = (0, [0; 3]);
        // Quick with one at a time; quick with many.
        let times = ([1000, 3000, 2000], [900, 100, 400]);
        for (depth, best) in [(1, 0), (16, 1), (2, 0), (64, 1), (1, 0)] {
            let clock = (&mut now_ns, &mut free_ns);
            let taken = run_deep(&mut chooser, clock, (20_000, depth), &asked, times);
            assert!(taken[best] > 18_000, "{depth} under way: {taken:?}");
        }
    }

    #[test]
    fn the_only_one_is_taken_and_addresses_show_the_pattern() {
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
        assert_eq!(idle.in_flight, 0, "what was forgotten is not under way");
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
