//! Which channel to take: the one that has been measured to be best, with a look at the others now
//! and then.

use super::{
    ChannelKind, Estimate, Pattern, PatternDetector,
    estimate::{Estimates, class_bytes, class_of},
};

/// How a [`Chooser`] goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChooserConfig {
    /// One choice in so many, for each size class, looks again at a channel that is not the best;
    /// 0: never.
    pub explore_every: u32,
    /// Where in that count each class begins, so that many choosers do not look at the same time.
    pub seed: u64,
    /// Times a channel is tried before its estimate is believed.
    pub min_samples: u32,
    /// Another channel must be better by this many percent to replace the one in use.
    pub margin_percent: u32,
    /// A channel that was this many times worse is looked at only every 16th time.
    pub hopeless_factor: u64,
}

impl Default for ChooserConfig {
    fn default() -> Self {
        Self { explore_every: 128, seed: 0, min_samples: 4, margin_percent: 10, hopeless_factor: 4 }
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
    /// Others under way on the chosen channel; give it back with [`Chooser::done`].
    pub in_flight: u64,
}

/// Why a channel was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoiceReason {
    /// No other can take it.
    OnlyOne,
    /// It was not yet tried often enough to say.
    Unmeasured,
    /// It was not the best, and might be by now.
    Explore,
    /// It is best.
    Best,
    /// It was best, and no other is better by enough.
    Incumbent,
}

/// Chooses channels from what it is told of their work. It has no clock and draws no random
/// numbers: the same calls bring the same choices.
///
/// Sizes fall into classes by powers of two. For [`Pattern::Random`] and [`Pattern::Message`] the
/// best channel is the one with the shortest latency to be expected, its present queue included;
/// for [`Pattern::Sequential`] and [`Pattern::Strided`], where the next one need not wait for the
/// last, the one with the shortest time from one done to the next.
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
    states: Vec<[ClassState; 2]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ClassState {
    choices: u64,
    explorations: u64,
    incumbent: Option<ChannelKind>,
}

impl Chooser {
    /// A chooser that knows nothing yet.
    pub fn new(config: ChooserConfig) -> Self {
        let classes = class_of(usize::MAX >> 1) + 1;
        let state = |class: u64| ClassState {
            choices: (config.seed.wrapping_add(class * 7)) % u64::from(config.explore_every.max(1)),
            ..ClassState::default()
        };
        Self {
            config,
            detector: PatternDetector::new(),
            estimates: Estimates::new(),
            states: (0..classes as u64).map(|class| [state(class); 2]).collect(),
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
        let choice = ChoiceEvent {
            channel,
            reason,
            len_bytes: ask.len_bytes,
            class_bytes: class_bytes(class),
            pattern,
            estimates: ChannelKind::ALL.map(|channel| self.estimates.get(channel, class)),
            in_flight,
        };
        self.estimates.begin(channel);
        choice
    }

    fn decide(&mut self, ask: &Ask, class: usize, pattern: Pattern) -> (ChannelKind, ChoiceReason) {
        let possible = || ChannelKind::ALL.into_iter().filter(|kind| ask.possible[kind.index()]);
        let state = &mut self.states[class][usize::from(pattern.is_stream())];
        state.choices += 1;
        let explores = self.config.explore_every > 0
            && state.choices.is_multiple_of(self.config.explore_every.into());
        let only = possible().next().filter(|_| possible().count() == 1);
        if let Some(only) = only {
            return (only, ChoiceReason::OnlyOne);
        }
        let estimates = &self.estimates;
        let unmeasured = possible()
            .filter(|&kind| estimates.samples(kind, class) < self.config.min_samples.into())
            // Those under way will be measured: the others first.
            .min_by_key(|&kind| estimates.samples(kind, class) + estimates.in_flight(kind));
        if let Some(unmeasured) = unmeasured {
            return (unmeasured, ChoiceReason::Unmeasured);
        }
        let cost_ns = |kind| cost_ns(estimates, kind, class, pattern);
        let best = possible().min_by_key(|&kind| cost_ns(kind)).expect("one is possible");
        if explores {
            state.explorations += 1;
            let is_thorough = state.explorations.is_multiple_of(16);
            let most_ns = cost_ns(best).saturating_mul(self.config.hopeless_factor);
            let other = possible()
                .filter(|&kind| kind != best && (is_thorough || cost_ns(kind) <= most_ns))
                .min_by_key(|&kind| estimates.measured_ns(kind, class));
            if let Some(other) = other {
                return (other, ChoiceReason::Explore);
            }
        }
        let kept = state.incumbent.filter(|&kind| kind != best && ask.possible[kind.index()]);
        let enough = u64::from(100 + self.config.margin_percent);
        if let Some(kept) = kept
            && cost_ns(kept).saturating_mul(100) <= cost_ns(best).saturating_mul(enough)
        {
            return (kept, ChoiceReason::Incumbent);
        }
        state.incumbent = Some(best);
        (best, ChoiceReason::Best)
    }

    /// What was chosen, and begun at `began_ns`, is done.
    pub fn done(&mut self, choice: &ChoiceEvent, began_ns: u64, now_ns: u64) {
        let of = (choice.channel, class_of(choice.len_bytes));
        let is_stale = choice.reason == ChoiceReason::Explore;
        self.estimates.done(of, choice.in_flight, is_stale, began_ns, now_ns);
    }

    /// What was chosen did not come to be, or failed: nothing is learnt from it.
    pub fn forget(&mut self, choice: &ChoiceEvent) {
        self.estimates.forget(choice.channel);
    }

    /// Tells of work that was not chosen here, so that it is learnt from too.
    pub fn observe(&mut self, channel: ChannelKind, len_bytes: usize, began_ns: u64, now_ns: u64) {
        let in_flight = self.estimates.in_flight(channel);
        self.estimates.begin(channel);
        self.estimates.done((channel, class_of(len_bytes)), in_flight, false, began_ns, now_ns);
    }

    /// What is known of a channel for lengths like `len_bytes`; `None` if nothing is.
    pub fn estimate(&self, channel: ChannelKind, len_bytes: usize) -> Option<Estimate> {
        self.estimates.get(channel, class_of(len_bytes))
    }
}

fn cost_ns(estimates: &Estimates, kind: ChannelKind, class: usize, pattern: Pattern) -> u64 {
    let Some(estimate) = estimates.get(kind, class) else { return u64::MAX };
    if pattern.is_stream() {
        estimate.service_ns.unwrap_or(estimate.latency_ns)
    } else {
        estimate.expected_latency_ns()
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

    #[test]
    fn a_queue_makes_a_channel_worse_for_who_waits() {
        let mut chooser = Chooser::new(ChooserConfig::default());
        let asked = ask(64, Pattern::Random);
        let mut now_ns = 0;
        run(&mut chooser, &mut now_ns, 500, &asked, [1000, 9000, 2000]);
        // Two at a time, the second done 900 ns after the first.
        for _ in 0..10 {
            let pair = [chooser.choose(&asked), chooser.choose(&asked)];
            for (n, choice) in pair.iter().enumerate() {
                chooser.done(choice, now_ns, now_ns + 1000 + 900 * n as u64);
            }
            now_ns += 1900;
        }
        // Nothing gets done: the queue of the best grows until the next best is better.
        let chosen: Vec<_> = (0..4).map(|_| chooser.choose(&asked).channel).collect();
        assert_eq!(chosen[0], ChannelKind::Crma);
        assert!(chosen.contains(&ChannelKind::QPair), "{chosen:?}");
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
        let mut chooser = Chooser::new(ChooserConfig { explore_every: 0, ..Default::default() });
        let (mut now_ns, ask) = (0, ask(64, Pattern::Random));
        run(&mut chooser, &mut now_ns, 100, &ask, [2000, 2050, 2050]);
        let taken = run(&mut chooser, &mut now_ns, 100, &ask, [2080, 2050, 2050]);
        assert_eq!(taken, [100, 0, 0]);
    }
}
