//! The timing and length of trials of channels that are not in use.
//!
//! A trial is a run: every transfer of a class takes the channel until enough of them are measured.
//! Scattered samples would measure an idle channel, or a link that the others fill. For the same
//! reason, after each change of channel, transfers begun before it, or while those were
//! outstanding, are not measured.

use super::{ChannelKind, ChoiceReason, ChooserConfig};

/// The bound on the choices of a trial: this many, plus this many times the transfers outstanding
/// when it began.
const MOST_CHOICES: u64 = 512;
const MOST_LAPS: u64 = 4;
/// Choices in a stretch over which the maximum load is taken.
const STRETCH: u64 = 64;
/// Two transfers that took this long in all, in nanoseconds, are as good as many short ones.
const LONG_NS: u64 = 1_000_000;

/// The use of the channels by one kind of work (a size class, streaming or not).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// The channel found best.
    pub incumbent: Option<ChannelKind>,
    /// Transfers outstanding, by channel.
    in_flight: [u64; 3],
    trial: Option<Trial>,
    schedules: [TrialSchedule; 3],
    /// The channel of the present epoch, and the transfers of earlier epochs still outstanding.
    current: Option<ChannelKind>,
    epoch: u32,
    strays: u64,
    /// The number of transfers of the present epoch that may still complete before stragglers of
    /// earlier ones are ignored.
    patience: u64,
    /// The total time of all completed transfers.
    done_ns: u64,
    /// The most transfers outstanding beside a choice: in the present stretch of choices, and in
    /// the one before.
    loads: [u64; 2],
    choices: u64,
}

/// The schedule of a channel's trials.
#[derive(Clone, Copy, Debug, Default)]
struct TrialSchedule {
    was_tried: bool,
    /// In units of [`Work::done_ns`].
    due_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    channel: ChannelKind,
    reason: ChoiceReason,
    choices_left: u64,
    /// Total time and number of the transfers tried.
    took_ns: u64,
    done: u64,
    /// Number and total time of the valid measurements.
    samples: u64,
    samples_ns: u64,
    /// Number of service times measured, which needs more than one outstanding transfer.
    services: u64,
    is_busy: bool,
}

/// The stamp of a choice: decides which of its measurements are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    epoch: u32,
    /// Nothing of an earlier channel was outstanding.
    is_settled: bool,
}

/// The measurements that are valid for a completed transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Measured {
    pub latency: bool,
    pub service: bool,
}

/// A finished trial: the channel, and its average latency if no better measure exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub channel: ChannelKind,
    pub rough_latency_ns: Option<u64>,
}

impl Work {
    pub(super) fn under_way(&self) -> u64 {
        self.in_flight.iter().sum()
    }

    /// Returns the usual number of others outstanding beside one.
    pub(super) fn load(&self) -> u64 {
        self.loads[0].max(self.loads[1])
    }

    pub(super) fn under_way_on(&self, channel: ChannelKind) -> u64 {
        self.in_flight[channel.index()]
    }

    /// Returns the channel on trial, if it can take one more; and the verdict on a trial that ran
    /// too long.
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

    /// Returns the channel whose trial is due, one never tried first.
    pub(super) fn due(&self, possible: [bool; 3], config: &ChooserConfig) -> Option<ChannelKind> {
        if self.trial.is_some() {
            return None;
        }
        let others = || ChannelKind::ALL.into_iter().filter(|kind| possible[kind.index()]);
        let untried = others().find(|kind| !self.schedules[kind.index()].was_tried);
        let is_over = |kind: &ChannelKind| self.schedules[kind.index()].due_ns <= self.done_ns;
        let due = || others().filter(|kind| Some(*kind) != self.incumbent).find(is_over);
        untried.or_else(|| due().filter(|_| config.explore_percent > 0))
    }

    pub(super) fn begin_trial(&mut self, channel: ChannelKind) -> ChoiceReason {
        let was_tried = self.schedules[channel.index()].was_tried;
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

    /// Makes this channel the one in use. `trial_ns`: the cost of a trial of the one before.
    pub(super) fn settle_on(
        &mut self,
        channel: ChannelKind,
        trial_ns: impl Fn(ChannelKind) -> u64,
        config: &ChooserConfig,
    ) {
        if let Some(old) = self.incumbent.replace(channel).filter(|old| *old != channel) {
            // The old channel was measured all the time: it counts as tried just now.
            let again_ns = self.done_ns.saturating_add(period_ns(trial_ns(old), config));
            self.schedules[old.index()].due_ns = again_ns;
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

    /// True if a channel's measurements are its own.
    fn is_settled(&self, channel: ChannelKind) -> bool {
        let is_alone = self.under_way() == self.under_way_on(channel);
        self.patience == 0 || (self.strays == 0 && (is_alone || self.trial.is_none()))
    }

    /// Drops a transfer that did not start.
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

    /// Completes a transfer.
    pub(super) fn finish(&mut self, channel: ChannelKind, stamp: Stamp, took_ns: u64) -> Measured {
        self.end(channel, stamp);
        self.done_ns = self.done_ns.saturating_add(took_ns);
        let is_of_now = stamp.epoch == self.epoch;
        self.patience = self.patience.saturating_sub(u64::from(is_of_now));
        let lesson = Measured {
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

    /// Counts a measured service time.
    pub(super) fn note_service(&mut self, channel: ChannelKind) {
        if let Some(trial) = self.trial.as_mut().filter(|trial| trial.channel == channel) {
            trial.services += 1;
        }
    }

    /// Returns the channel on trial, if the measure it is judged by exists.
    pub(super) fn tried(&self) -> Option<ChannelKind> {
        let is_measured = |t: &Trial| t.samples > 0 && (t.services > 0 || !t.is_busy);
        self.trial.filter(is_measured).map(|trial| trial.channel)
    }

    /// Ends the trial if it has enough samples, or cannot succeed.
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
            // Waits one lap after the channel is fully loaded: some channels do better with more
            // load.
            let wanted = if is_stream { self.load() } else { most.max(self.load()) };
            trial.services >= most.div_ceil(2) && (trial.samples >= wanted || is_long)
        } else {
            trial.samples >= most || is_long
        };
        (is_enough || is_hopeless).then(|| self.end_trial(config)).flatten()
    }

    fn end_trial(&mut self, config: &ChooserConfig) -> Option<Verdict> {
        let trial = self.trial.take()?;
        let schedule = &mut self.schedules[trial.channel.index()];
        let mut period_ns = period_ns(trial.took_ns, config);
        if !std::mem::replace(&mut schedule.was_tried, true) {
            // Spreads the trials of many choosers in time.
            period_ns = period_ns.saturating_add(period_ns / 8 * (config.seed % 8));
        }
        schedule.due_ns = self.done_ns.saturating_add(period_ns);
        let rough = trial.took_ns.checked_div(trial.done).filter(|_| trial.samples == 0);
        Some(Verdict { channel: trial.channel, rough_latency_ns: rough })
    }
}

/// Returns the amount of work after which a trial of this cost is due again: there are two channels
/// to try.
fn period_ns(trial_ns: u64, config: &ChooserConfig) -> u64 {
    let percent = u64::from(config.explore_percent.max(1));
    trial_ns.max(1).saturating_mul(200) / percent
}
