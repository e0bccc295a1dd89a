//! What was measured of the channels: a running estimate for each channel and size class.

/// A way across the fabric.
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
    /// All of them, in the order of [`ChannelKind::index`].
    pub const ALL: [Self; 3] = [Self::Crma, Self::Rdma, Self::QPair];

    /// Its place in tables by channel.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// Size classes: class *n* holds lengths above 2ⁿ⁻¹ and up to 2ⁿ bytes, the last all above.
const CLASSES: usize = 25;
/// An estimate moves by this fraction towards each new sample: 1/8; or by half towards one of a
/// channel that was not measured for long, and may have changed.
const SMOOTHING_SHIFT: u32 = 3;
const STALE_SHIFT: u32 = 1;
/// Estimates are kept in 1/256 ns, so that small differences are not lost.
const FRACTION_SHIFT: u32 = 8;

/// What is known of a channel for lengths of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// From the asking to it being done, in nanoseconds.
    pub latency_ns: u64,
    /// What one more costs while the channel is busy, in nanoseconds: the time from one being done
    /// to the next. Bandwidth is length over this. `None`: never more than one was under way.
    pub service_ns: Option<u64>,
    /// How many were under way when those measured began.
    pub usual_in_flight: u64,
    /// How many are under way now.
    pub in_flight: u64,
    /// How many were measured, in all.
    pub samples: u64,
}

impl Estimate {
    /// What one more would take if begun now: what it usually takes, and the queue as it is.
    pub fn expected_latency_ns(&self) -> u64 {
        let service_ns = self.service_ns.unwrap_or(0);
        let queue = self.in_flight.abs_diff(self.usual_in_flight).saturating_mul(service_ns);
        if self.in_flight >= self.usual_in_flight {
            self.latency_ns.saturating_add(queue)
        } else {
            // A shorter queue saves no more than the queue was; the way itself stays.
            self.latency_ns.saturating_sub(queue).max(self.latency_ns / 4)
        }
    }
}

/// The class of a length.
pub(super) fn class_of(len_bytes: usize) -> usize {
    (len_bytes.max(1).next_power_of_two().trailing_zeros() as usize).min(CLASSES - 1)
}

/// The longest length of a class.
pub(super) fn class_bytes(class: usize) -> usize {
    1 << class
}

/// Running estimates of all channels.
#[derive(Clone, Debug)]
pub(super) struct Estimates {
    cells: [[Cell; CLASSES]; 3],
    in_flight: [u64; 3],
    /// When each channel last got something done.
    done_ns: [u64; 3],
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// In units of 2^-[`FRACTION_SHIFT`].
    latency: u64,
    service: u64,
    usual_in_flight: u64,
    samples: u64,
    busy_samples: u64,
    measured_ns: u64,
}

impl Estimates {
    pub(super) fn new() -> Self {
        Self { cells: [[Cell::default(); CLASSES]; 3], in_flight: [0; 3], done_ns: [0; 3] }
    }

    pub(super) fn begin(&mut self, channel: ChannelKind) {
        self.in_flight[channel.index()] += 1;
    }

    pub(super) fn forget(&mut self, channel: ChannelKind) {
        let in_flight = &mut self.in_flight[channel.index()];
        *in_flight = in_flight.saturating_sub(1);
    }

    /// Something of a class is done that was begun at `began_ns` with `in_flight` others under way.
    /// `is_stale`: the channel was not measured for long.
    pub(super) fn done(
        &mut self,
        (channel, class): (ChannelKind, usize),
        in_flight: u64,
        is_stale: bool,
        began_ns: u64,
        now_ns: u64,
    ) {
        let at = channel.index();
        self.forget(channel);
        let latency_ns = now_ns.saturating_sub(began_ns);
        // One that had the channel to itself does not tell what a second one would have cost.
        let is_busy = in_flight > 0 || self.in_flight[at] > 0 || began_ns < self.done_ns[at];
        let service_ns = now_ns.saturating_sub(began_ns.max(self.done_ns[at]));
        self.done_ns[at] = self.done_ns[at].max(now_ns);
        let cell = &mut self.cells[at][class];
        let shift = shift(cell.samples, is_stale);
        smooth(&mut cell.latency, latency_ns, shift);
        smooth(&mut cell.usual_in_flight, in_flight, shift);
        if is_busy {
            smooth(&mut cell.service, service_ns, self::shift(cell.busy_samples, is_stale));
            cell.busy_samples += 1;
        }
        cell.samples += 1;
        cell.measured_ns = now_ns;
    }

    pub(super) fn in_flight(&self, channel: ChannelKind) -> u64 {
        self.in_flight[channel.index()]
    }

    pub(super) fn samples(&self, channel: ChannelKind, class: usize) -> u64 {
        self.cells[channel.index()][class].samples
    }

    pub(super) fn measured_ns(&self, channel: ChannelKind, class: usize) -> u64 {
        self.cells[channel.index()][class].measured_ns
    }

    /// `None`: never measured.
    pub(super) fn get(&self, channel: ChannelKind, class: usize) -> Option<Estimate> {
        let cell = &self.cells[channel.index()][class];
        (cell.samples > 0).then(|| Estimate {
            latency_ns: cell.latency >> FRACTION_SHIFT,
            service_ns: (cell.busy_samples > 0).then_some(cell.service >> FRACTION_SHIFT),
            usual_in_flight: (cell.usual_in_flight + (1 << (FRACTION_SHIFT - 1))) >> FRACTION_SHIFT,
            in_flight: self.in_flight[channel.index()],
            samples: cell.samples,
        })
    }
}

/// How far to move towards a sample that comes after `samples` others: the first few are averaged.
fn shift(samples: u64, is_stale: bool) -> u32 {
    let most = if is_stale { STALE_SHIFT } else { SMOOTHING_SHIFT };
    (samples + 1).ilog2().min(most)
}

/// Moves an estimate by 2^-`shift` of the way towards a sample.
fn smooth(estimate: &mut u64, sample: u64, shift: u32) {
    let sample = sample.min(u64::MAX >> (FRACTION_SHIFT + SMOOTHING_SHIFT)) << FRACTION_SHIFT;
    *estimate = *estimate - (*estimate >> shift) + (sample >> shift);
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

    #[test]
    fn a_busy_channel_is_measured_by_what_one_more_costs() {
        let mut estimates = Estimates::new();
        // Four under way at all times, each done 100 ns after the one before it.
        (0..4).for_each(|_| estimates.begin(ChannelKind::Crma));
        for n in 0..200 {
            estimates.done((ChannelKind::Crma, 6), 3, false, n * 100, (n + 4) * 100);
            estimates.begin(ChannelKind::Crma);
        }
        let estimate = estimates.get(ChannelKind::Crma, 6).unwrap();
        assert_eq!((estimate.latency_ns, estimate.usual_in_flight), (400, 3));
        let service_ns = estimate.service_ns.unwrap();
        assert!((99..=101).contains(&service_ns), "{estimate:?}");
        assert_eq!(estimate.expected_latency_ns(), 400 + service_ns, "one more than usual");
        assert_eq!(estimates.get(ChannelKind::Rdma, 6), None);
    }

    #[test]
    fn it_follows_what_changes() {
        let mut estimates = Estimates::new();
        for n in 0..100 {
            estimates.begin(ChannelKind::Rdma);
            let latency_ns = if n < 50 { 1000 } else { 9000 };
            let began_ns = n * 10_000;
            estimates.done((ChannelKind::Rdma, 3), 0, false, began_ns, began_ns + latency_ns);
        }
        let estimate = estimates.get(ChannelKind::Rdma, 3).unwrap();
        assert_eq!(estimate.service_ns, None, "one at a time tells nothing of two");
        let latency_ns = estimate.latency_ns;
        assert!((8900..=9000).contains(&latency_ns), "{latency_ns}");
    }
}
