//! When a channel that is not in use is looked at, and for how long.
//!
//! A trial is a run: everything of a class takes the channel until enough of it is measured. One
//! here and one there would tell of an idle channel, or of a link that the others fill. For the
//! same reason nothing is learnt, after each change of channel, from what was begun before it, nor
//! from what was begun while that was still on its way.

use super::{ChannelKind, ChoiceReason, ChooserConfig};

/// Choices after which a trial is over, whatever it has brought: so many, and this many times what
/// was under way when it began.
const MOST_CHOICES: u64 = 512;
const MOST_LAPS: u64 = 4;
/// Choices in a stretch over which the load is the greatest that was seen.
const STRETCH: u64 = 64;
/// Two that took so long in all are as good as many short ones, in nanoseconds.
const LONG_NS: u64 = 1_000_000;

/// What one kind of work (a size class, streaming or not) does with the channels.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// The channel found best.
    pub incumbent: Option<ChannelKind>,
    /// Under way, by channel.
    in_flight: [u64; 3],
    trial: Option<Trial>,
    watches: [Watch; 3],
    /// The channel of the present epoch, and those of earlier ones that are still under way.
    current: Option<ChannelKind>,
    epoch: u32,
    strays: u64,
    /// How many of the present epoch may still be done before strays that are held up for so long do
    /// not matter.
    patience: u64,
    /// The time that all that is done has taken.
    done_ns: u64,
    /// The most that were under way beside a choice: of the present stretch of choices, and of the
    /// one before.
    loads: [u64; 2],
    choices: u64,
}

/// When a channel is tried next.
#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    was_tried: bool,
    /// By [`Work::done_ns`].
    due_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    channel: ChannelKind,
    reason: ChoiceReason,
    choices_left: u64,
    /// The time that what was tried has taken, and how many there were.
    took_ns: u64,
    done: u64,
    /// Those of them that can be believed.
    samples: u64,
    samples_ns: u64,
    /// Times that what one more costs was measured, which takes more than one under way.
    services: u64,
    is_busy: bool,
}

/// What a choice is done with: which of its lessons are to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    epoch: u32,
    /// Nothing of an earlier channel was on its way.
    is_settled: bool,
}

/// What can be learnt from one that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lesson {
    pub latency: bool,
    pub service: bool,
}

/// A trial that is over: of this channel, with what it took on average if nothing better is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub channel: ChannelKind,
    pub rough_latency_ns: Option<u64>,
}

impl Work {
    pub(super) fn under_way(&self) -> u64 {
        self.in_flight.iter().sum()
    }

    /// How many others are usually under way beside one.
    pub(super) fn load(&self) -> u64 {
        self.loads[0].max(self.loads[1])
    }

    pub(super) fn under_way_on(&self, channel: ChannelKind) -> u64 {
        self.in_flight[channel.index()]
    }

    /// The channel on trial, if it can take one more; and what came of a trial that went on for too
    /// long.
    pub(super) fn go_on_trying(
        &mut self,
        possible: [bool; 3],
        config: &ChooserConfig,
    ) -> (Option<(ChannelKind, ChoiceReason)>, Option<Verdict>) {
        let Some(trial) = &mut self.trial else { return (None, None) };
        let Some(left) = trial.choices_left.checked_sub(1) else {
            return (None, self.end_trial(config));
        };
        trial.choices_left = left;
        let goes_on = possible[trial.channel.index()];
        (goes_on.then_some((trial.channel, trial.reason)), None)
    }

    /// The channel whose trial is due, the one never tried before all others.
    pub(super) fn due(&self, possible: [bool; 3], config: &ChooserConfig) -> Option<ChannelKind> {
        if self.trial.is_some() {
            return None;
        }
        let others = || ChannelKind::ALL.into_iter().filter(|kind| possible[kind.index()]);
        let untried = others().find(|kind| !self.watches[kind.index()].was_tried);
        let is_over = |kind: &ChannelKind| self.watches[kind.index()].due_ns <= self.done_ns;
        let due = || others().filter(|kind| Some(*kind) != self.incumbent).find(is_over);
        untried.or_else(|| due().filter(|_| config.explore_percent > 0))
    }

    pub(super) fn begin_trial(&mut self, channel: ChannelKind) -> ChoiceReason {
        let was_tried = self.watches[channel.index()].was_tried;
        let reason = if was_tried { ChoiceReason::Explore } else { ChoiceReason::Unmeasured };
        self.turn_to(channel);
        self.trial = Some(Trial {
            channel,
            reason,
            choices_left: MOST_CHOICES + MOST_LAPS * self.under_way(),
            took_ns: 0,
            done: 0,
            samples: 0,
            samples_ns: 0,
            services: 0,
            is_busy: false,
        });
        reason
    }

    /// From here on this channel is in use. `trial_ns`: what a trial of the one before would cost.
    pub(super) fn settle_on(
        &mut self,
        channel: ChannelKind,
        trial_ns: impl Fn(ChannelKind) -> u64,
        config: &ChooserConfig,
    ) {
        if let Some(old) = self.incumbent.replace(channel).filter(|old| *old != channel) {
            // It was measured all the time: as if it had been tried just now.
            let again_ns = self.done_ns.saturating_add(period_ns(trial_ns(old), config));
            self.watches[old.index()].due_ns = again_ns;
        }
        self.turn_to(channel);
    }

    fn turn_to(&mut self, channel: ChannelKind) {
        if self.current.replace(channel) != Some(channel) {
            self.epoch = self.epoch.wrapping_add(1);
            self.strays = self.under_way();
            self.patience = 2 * self.strays;
        }
    }

    pub(super) fn begin(&mut self, channel: ChannelKind) -> Stamp {
        if self.choices.is_multiple_of(STRETCH) {
            self.loads = [0, self.loads[0]];
        }
        self.choices += 1;
        self.loads[0] = self.loads[0].max(self.under_way());
        let is_settled = self.is_settled(channel);
        self.in_flight[channel.index()] += 1;
        Stamp { epoch: self.epoch, is_settled }
    }

    /// Whether what a channel does is its own doing.
    fn is_settled(&self, channel: ChannelKind) -> bool {
        let is_alone = self.under_way() == self.under_way_on(channel);
        self.patience == 0 || (self.strays == 0 && (is_alone || self.trial.is_none()))
    }

    /// It did not come to be.
    pub(super) fn forget(&mut self, channel: ChannelKind, stamp: Stamp) {
        if let Some(trial) = self.trial.as_mut().filter(|trial| trial.channel == channel) {
            trial.choices_left += 1;
        }
        self.end(channel, stamp);
    }

    fn end(&mut self, channel: ChannelKind, stamp: Stamp) {
        let in_flight = &mut self.in_flight[channel.index()];
        *in_flight = in_flight.saturating_sub(1);
        if stamp.epoch != self.epoch {
            self.strays = self.strays.saturating_sub(1);
        }
    }

    /// It is done.
    pub(super) fn finish(&mut self, channel: ChannelKind, stamp: Stamp, took_ns: u64) -> Lesson {
        self.end(channel, stamp);
        self.done_ns = self.done_ns.saturating_add(took_ns);
        let is_of_now = stamp.epoch == self.epoch;
        self.patience = self.patience.saturating_sub(u64::from(is_of_now));
        let lesson = Lesson {
            latency: is_of_now && stamp.is_settled,
            service: is_of_now && self.is_settled(channel),
        };
        let is_busy = self.under_way() > 0;
        if let Some(trial) = self.trial.as_mut().filter(|t| is_of_now && t.channel == channel) {
            trial.took_ns = trial.took_ns.saturating_add(took_ns);
            trial.done += 1;
            trial.is_busy |= is_busy;
            if lesson.latency {
                trial.samples += 1;
                trial.samples_ns = trial.samples_ns.saturating_add(took_ns);
            }
        }
        lesson
    }

    /// What one more cost was measured.
    pub(super) fn note_service(&mut self, channel: ChannelKind) {
        if let Some(trial) = self.trial.as_mut().filter(|trial| trial.channel == channel) {
            trial.services += 1;
        }
    }

    /// The channel on trial, if it was measured by what it is judged by.
    pub(super) fn tried(&self) -> Option<ChannelKind> {
        let is_measured = |t: &Trial| t.samples > 0 && (t.services > 0 || !t.is_busy);
        self.trial.filter(is_measured).map(|trial| trial.channel)
    }

    /// Ends the trial if it has brought enough, or nothing can come of it.
    pub(super) fn conclude(
        &mut self,
        is_stream: bool,
        is_hopeless: bool,
        config: &ChooserConfig,
    ) -> Option<Verdict> {
        let trial = self.trial?;
        let most = u64::from(config.min_samples);
        let is_long = trial.samples >= 2 && trial.samples_ns >= LONG_NS;
        let is_enough = if trial.is_busy {
            // A lap after the channel has as many as it gets: some do better the more there are.
            let wanted = if is_stream { self.load() } else { most.max(self.load()) };
            trial.services >= most.div_ceil(2) && (trial.samples >= wanted || is_long)
        } else {
            trial.samples >= most || is_long
        };
        (is_enough || is_hopeless).then(|| self.end_trial(config)).flatten()
    }

    fn end_trial(&mut self, config: &ChooserConfig) -> Option<Verdict> {
        let trial = self.trial.take()?;
        let watch = &mut self.watches[trial.channel.index()];
        let mut period_ns = period_ns(trial.took_ns, config);
        if !std::mem::replace(&mut watch.was_tried, true) {
            // So that many choosers do not look at the same time.
            period_ns = period_ns.saturating_add(period_ns / 8 * (config.seed % 8));
        }
        watch.due_ns = self.done_ns.saturating_add(period_ns);
        let rough = trial.took_ns.checked_div(trial.done).filter(|_| trial.samples == 0);
        Some(Verdict { channel: trial.channel, rough_latency_ns: rough })
    }
}

/// After how much work a trial that costs so much is due again: there are two channels to try.
fn period_ns(trial_ns: u64, config: &ChooserConfig) -> u64 {
    let percent = u64::from(config.explore_percent.max(1));
    trial_ns.max(1).saturating_mul(200) / percent
}
