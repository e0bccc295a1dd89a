//! Measurements of the channels: a running estimate for each channel and size class.

/// A channel of the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChannelKind {
    /// Single accesses.
    Crma,
    /// Bulk transfers.
    Rdma,
    /// Messages.
    QPair,
}

impl ChannelKind {
    /// All channels, in the order of [`ChannelKind::index`].
    pub const ALL: [Self; 3] = [Self::Crma, Self::Rdma, Self::QPair];

    /// Returns the channel's index in tables by channel.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// Number of size classes: class *n* holds lengths above 2ⁿ⁻¹ and up to 2ⁿ bytes, the last all
/// longer ones.
const CLASSES: usize = 25;
/// An estimate moves by this fraction towards each new sample: 1/8. The first few are averaged.
const SMOOTHING_SHIFT: u32 = 3;
/// Estimates are kept in 1/256 ns, so that small differences are not lost.
const FRACTION_SHIFT: u32 = 8;
/// A sample this many times the average has another cause than the channel (the scheduler, a lost
/// frame): it is clamped to this multiple. If the first sample was the outlier, the average is
/// restarted.
const OUTLIER: u64 = 8;
/// Samples after a renewal in which the average may be restarted.
const FIRST: u64 = 4;

/// The estimate of a channel for lengths of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// From request to completion, in nanoseconds.
    pub latency_ns: u64,
    /// The cost of one more transfer while the channel is busy, in nanoseconds: a busy period
    /// divided by the transfers completed in it. Bandwidth is length over this. `None`: never more
    /// than one was outstanding.
    pub service_ns: Option<u64>,
    /// Average number of transfers outstanding when the measured ones began.
    pub usual_in_flight: u64,
    /// Transfers outstanding now.
    pub in_flight: u64,
    /// Samples in all.
    pub samples: u64,
}

impl Estimate {
    /// Returns the expected latency of one more transfer with `in_flight` others outstanding: the
    /// usual latency, corrected for a longer or shorter queue.
    pub fn expected_latency_ns(&self, in_flight: u64) -> u64 {
        let service_ns = self.service_ns.unwrap_or(0);
        let queue_ns = in_flight.abs_diff(self.usual_in_flight).saturating_mul(service_ns);
        if in_flight >= self.usual_in_flight {
            self.latency_ns.saturating_add(queue_ns)
        } else {
            // It is never less than the service time.
            self.latency_ns.saturating_sub(queue_ns).max(service_ns)
        }
    }
}

/// Returns the class of a length.
pub(super) fn class_of(len_bytes: usize) -> usize {
    (len_bytes.max(1).next_power_of_two().trailing_zeros() as usize).min(CLASSES - 1)
}

/// Returns the longest length of a class.
pub(super) fn class_bytes(class: usize) -> usize {
    1 << class
}

/// Running estimates of all channels.
#[derive(Clone, Debug)]
pub(super) struct Estimates {
    cells: [[Cell; CLASSES]; 3],
    in_flight: [u64; 3],
    spans: [Span; 3],
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    latency: Average,
    service: Average,
    usual_in_flight: Average,
    samples: u64,
}

/// A running average of the samples since the last renewal.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    /// In units of 2^-[`FRACTION_SHIFT`].
    value: u64,
    samples: u64,
    /// True if there was ever a sample.
    is_known: bool,
}

/// A period in which a channel was busy with one class, and the transfers completed in it.
///
/// The service time is the period divided by the count, over at least a quarter of a latency:
/// completions reported together are then not taken for one slow and many fast ones.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    class: usize,
    start_ns: u64,
    count: u64,
    /// Set while it is undecided whether the channel stays busy: the time at which the first
    /// transfer of an idle channel completed.
    first_done_ns: Option<u64>,
    /// The time of the channel's last completion.
    done_ns: u64,
}

/// A completed transfer of a class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub channel: ChannelKind,
    pub class: usize,
    /// Others outstanding on the channel when it began.
    pub in_flight: u64,
    pub began_ns: u64,
    pub now_ns: u64,
}

impl Estimates {
    pub(super) fn new() -> Self {
        Self {
            cells: [[Cell::default(); CLASSES]; 3],
            in_flight: [0; 3],
            spans: [Span::default(); 3],
        }
    }

    pub(super) fn begin(&mut self, channel: ChannelKind) {
        self.in_flight[channel.index()] += 1;
    }

    pub(super) fn forget(&mut self, channel: ChannelKind) {
        let in_flight = &mut self.in_flight[channel.index()];
        *in_flight = in_flight.saturating_sub(1);
    }

    /// Renews a channel's estimate: new samples replace the old average.
    pub(super) fn renew(&mut self, channel: ChannelKind, class: usize) {
        let cell = &mut self.cells[channel.index()][class];
        (cell.latency.samples, cell.service.samples) = (0, 0);
        cell.usual_in_flight.samples = 0;
    }

    /// Adds the latency of a completed transfer.
    pub(super) fn note_latency(&mut self, done: &Done) {
        let cell = &mut self.cells[done.channel.index()][done.class];
        cell.latency.note(done.now_ns.saturating_sub(done.began_ns));
        cell.usual_in_flight.smooth(done.in_flight);
        cell.samples += 1;
    }

    /// Counts a completed transfer, and adds a service time where one can be derived. `is_fair`:
    /// nothing else was outstanding that will be absent later. Returns whether a sample was added.
    pub(super) fn note_service(&mut self, done: &Done, is_fair: bool) -> bool {
        let at = done.channel.index();
        self.forget(done.channel);
        let span = &mut self.spans[at];
        let sample = span.take(done, self.in_flight[at], is_fair);
        if let Some(service_ns) = sample {
            self.cells[at][done.class].service.note(service_ns);
        }
        sample.is_some()
    }

    pub(super) fn in_flight(&self, channel: ChannelKind) -> u64 {
        self.in_flight[channel.index()]
    }

    /// Returns the estimate; `None` if it was never measured.
    pub(super) fn get(&self, channel: ChannelKind, class: usize) -> Option<Estimate> {
        let cell = &self.cells[channel.index()][class];
        (cell.samples > 0).then(|| Estimate {
            latency_ns: cell.latency.whole(),
            service_ns: cell.service.is_known.then(|| cell.service.whole()),
            usual_in_flight: (cell.usual_in_flight.value + (1 << (FRACTION_SHIFT - 1)))
                >> FRACTION_SHIFT,
            in_flight: self.in_flight[channel.index()],
            samples: cell.samples,
        })
    }
}

impl Span {
    /// Adds one completed transfer; `in_flight` are still outstanding. Returns the service time in
    /// nanoseconds once enough transfers have completed.
    fn take(&mut self, done: &Done, in_flight: u64, is_fair: bool) -> Option<u64> {
        let &Done { class, began_ns, now_ns, .. } = done;
        let previous_ns = self.done_ns;
        self.done_ns = previous_ns.max(now_ns);
        if !is_fair {
            self.restart(class, now_ns);
            return None;
        }
        if done.in_flight == 0 {
            self.restart(class, began_ns);
            self.first_done_ns = Some(now_ns);
        } else if self.class != class {
            self.restart(class, previous_ns);
        }
        self.count += 1;
        if let Some(first_ns) = self.first_done_ns {
            // The time that filled the channel belongs to the transfers that completed together,
            // and to none if others follow.
            if began_ns >= first_ns {
                self.restart(class, now_ns);
                return None;
            }
            if in_flight > 0 || self.count < 2 {
                return None;
            }
        }
        let length_ns = now_ns.saturating_sub(self.start_ns);
        let latency_ns = now_ns.saturating_sub(began_ns);
        let is_enough = length_ns > 0 && length_ns.saturating_mul(4) >= latency_ns;
        is_enough.then(|| {
            let service_ns = length_ns / self.count;
            self.restart(class, now_ns);
            service_ns
        })
    }

    fn restart(&mut self, class: usize, now_ns: u64) {
        (self.class, self.start_ns, self.count, self.first_done_ns) = (class, now_ns, 0, None);
    }
}

impl Average {
    /// Moves the average towards a sample, by a limited step if it is an outlier.
    fn note(&mut self, sample: u64) {
        let usual = self.whole();
        if (1..FIRST).contains(&self.samples) && sample < usual / OUTLIER {
            self.samples = 0;
        }
        let is_first = self.samples == 0;
        self.smooth(if is_first {
            sample
        } else {
            sample.min(usual.saturating_mul(OUTLIER).max(8))
        });
    }

    fn smooth(&mut self, sample: u64) {
        let shift = (self.samples + 1).ilog2().min(SMOOTHING_SHIFT);
        let most = u64::MAX >> (FRACTION_SHIFT + SMOOTHING_SHIFT);
        let sample = sample.min(most) << FRACTION_SHIFT;
        self.value = self.value - (self.value >> shift) + (sample >> shift);
        self.samples += 1;
        self.is_known = true;
    }

    fn whole(&self) -> u64 {
        self.value >> FRACTION_SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two() {
        let classes: Vec<_> =
            [0, 1, 2, 3, 64, 65, 4096, 1 << 30].into_iter().map(class_of).collect();
        assert_eq!(classes, [0, 0, 1, 2, 6, 7, 12, 24]);
        assert_eq!(class_bytes(class_of(4096)), 4096);
    }

    fn done(channel: ChannelKind, in_flight: u64, began_ns: u64, now_ns: u64) -> Done {
        Done { channel, class: 6, in_flight, began_ns, now_ns }
    }

    fn learn(estimates: &mut Estimates, done: Done) {
        estimates.note_latency(&done);
        estimates.note_service(&done, true);
    }

    #[test]
    fn busy_channel_yields_service_time() {
        let mut estimates = Estimates::new();
        // Four outstanding at all times, each completed 100 ns after the one before it.
        (0..4).for_each(|_| estimates.begin(ChannelKind::Crma));
        for n in 0..200 {
            learn(&mut estimates, done(ChannelKind::Crma, 3, n * 100, (n + 4) * 100));
            estimates.begin(ChannelKind::Crma);
        }
        let estimate = estimates.get(ChannelKind::Crma, 6).unwrap();
        assert_eq!((estimate.latency_ns, estimate.usual_in_flight), (400, 3));
        let service_ns = estimate.service_ns.unwrap();
        assert!((99..=101).contains(&service_ns), "{estimate:?}");
        assert_eq!(estimates.get(ChannelKind::Rdma, 6), None);
    }

    #[test]
    fn batched_completions_average_out() {
        let mut estimates = Estimates::new();
        // Sixteen outstanding; every 800 ns eight are reported, the last 9 ns after the first.
        (0..16).for_each(|_| estimates.begin(ChannelKind::QPair));
        for n in 0..400 {
            let reported_ns = |n: u64| n / 8 * 800 + n % 8;
            let began_ns = if n < 16 { 0 } else { reported_ns(n - 16) };
            let in_flight = n.min(15);
            learn(
                &mut estimates,
                done(ChannelKind::QPair, in_flight, began_ns, reported_ns(n) + 1600),
            );
            estimates.begin(ChannelKind::QPair);
            let Some(estimate) = estimates.get(ChannelKind::QPair, 6).filter(|_| n > 40) else {
                continue;
            };
            let service_ns = estimate.service_ns.unwrap();
            assert!((95..=105).contains(&service_ns), "{n}: {estimate:?}");
        }
    }

    #[test]
    fn idle_pauses_add_no_cost() {
        let mut estimates = Estimates::new();
        for burst in 0..20 {
            let began_ns = burst * 100_000;
            (0..10).for_each(|_| estimates.begin(ChannelKind::Crma));
            for n in 0..10 {
                learn(
                    &mut estimates,
                    done(ChannelKind::Crma, n, began_ns, began_ns + 1000 + n * 100),
                );
            }
        }
        let estimate = estimates.get(ChannelKind::Crma, 6).unwrap();
        assert_eq!(estimate.service_ns, Some(190));
    }

    #[test]
    fn estimate_follows_changes() {
        let mut estimates = Estimates::new();
        for n in 0..100 {
            estimates.begin(ChannelKind::Rdma);
            let latency_ns = if n < 50 { 1000 } else { 9000 };
            let began_ns = n * 10_000;
            learn(&mut estimates, done(ChannelKind::Rdma, 0, began_ns, began_ns + latency_ns));
        }
        let estimate = estimates.get(ChannelKind::Rdma, 6).unwrap();
        assert_eq!(estimate.service_ns, None, "one at a time gives no service time");
        let latency_ns = estimate.latency_ns;
        assert!((8900..=9000).contains(&latency_ns), "{latency_ns}");
    }

    #[test]
    fn outlier_sample_is_clamped() {
        for held_up in 0..6 {
            let mut estimates = Estimates::new();
            for n in 0..6 {
                let latency_ns = if n == held_up { 4_000_000 } else { 3000 };
                learn(&mut estimates, done(ChannelKind::Rdma, 0, 0, latency_ns));
                estimates.begin(ChannelKind::Rdma);
            }
            let latency_ns = estimates.get(ChannelKind::Rdma, 6).unwrap().latency_ns;
            assert!(latency_ns < 12_000, "number {held_up}: {latency_ns} ns");
        }
    }
}
