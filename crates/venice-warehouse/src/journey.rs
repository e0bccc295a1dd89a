//! The time of a request, stage by stage: where slow ones lost theirs.

use serde::{Deserialize, Serialize};

use crate::slab::Slab;

/// A stage of a request's way to the server and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The client's program, its call, and the copy.
    Send,
    /// The connection waits for its window, or to retransmit.
    Transport,
    /// The queue of the network card.
    SendQueue,
    /// Links, switches that it does not wait in, and DMA.
    Wire,
    /// The queues of switches.
    SwitchQueue,
    /// The interrupt, the ring, and the kernel's work up to the socket.
    Receive,
    /// The socket, until the program's thread runs and has it.
    WakeUp,
    /// The server's program and its calls.
    Service,
    /// The same on the way back.
    BackTransport,
    /// The same on the way back.
    BackSendQueue,
    /// The same on the way back.
    BackWire,
    /// The same on the way back.
    BackSwitchQueue,
    /// The same on the way back.
    BackReceive,
    /// The same on the way back.
    BackWakeUp,
}

impl Stage {
    /// All stages, in their order.
    pub const ALL: [Self; 14] = [
        Self::Send,
        Self::Transport,
        Self::SendQueue,
        Self::Wire,
        Self::SwitchQueue,
        Self::Receive,
        Self::WakeUp,
        Self::Service,
        Self::BackTransport,
        Self::BackSendQueue,
        Self::BackWire,
        Self::BackSwitchQueue,
        Self::BackReceive,
        Self::BackWakeUp,
    ];

    /// Returns its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Transport => "transport",
            Self::SendQueue => "send queue",
            Self::Wire => "wire",
            Self::SwitchQueue => "switch queues",
            Self::Receive => "receive",
            Self::WakeUp => "wake-up",
            Self::Service => "service",
            Self::BackTransport => "back: transport",
            Self::BackSendQueue => "back: send queue",
            Self::BackWire => "back: wire",
            Self::BackSwitchQueue => "back: switch queues",
            Self::BackReceive => "back: receive",
            Self::BackWakeUp => "back: wake-up",
        }
    }

    /// Returns the same stage on the way back.
    fn back(self) -> Self {
        match self {
            Self::Transport => Self::BackTransport,
            Self::SendQueue => Self::BackSendQueue,
            Self::Wire => Self::BackWire,
            Self::SwitchQueue => Self::BackSwitchQueue,
            Self::Receive => Self::BackReceive,
            Self::WakeUp => Self::BackWakeUp,
            Self::Send
            | Self::Service
            | Self::BackTransport
            | Self::BackSendQueue
            | Self::BackWire
            | Self::BackSwitchQueue
            | Self::BackReceive
            | Self::BackWakeUp => self,
        }
    }
}

/// The time that a request has spent in each stage, in nanoseconds; 4.29 s at most in each.
pub type Spent = [u32; Stage::ALL.len()];

/// A request on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journey {
    /// The end of the last stage, in nanoseconds.
    at: u64,
    is_back: bool,
    spent: Spent,
}

impl Journey {
    /// A request that begins at a time, in picoseconds.
    pub fn begin(now: u64) -> Self {
        Self { at: now / 1000, is_back: false, spent: Spent::default() }
    }

    /// Ends a stage at a time, in picoseconds. One on the way back counts there.
    pub fn end(&mut self, stage: Stage, now: u64) {
        let stage = if self.is_back { stage.back() } else { stage };
        let now = now / 1000;
        let time = u32::try_from(now.saturating_sub(self.at)).unwrap_or(u32::MAX);
        let spent = &mut self.spent[stage as usize];
        *spent = spent.saturating_add(time);
        self.at = self.at.max(now);
    }

    /// Ends the stage before the program's call to send: the client's, or the server's service.
    pub fn leave_program(&mut self, now: u64) {
        self.end(if self.is_back { Stage::Service } else { Stage::Send }, now);
    }

    /// The server has it.
    pub fn turn(&mut self) {
        self.is_back = true;
    }

    /// Returns the time of each stage.
    pub fn spent(&self) -> &Spent {
        &self.spent
    }
}

/// The number of a journey in its part of the world.
pub type JourneyId = u32;

/// The journeys of a part of the world, by number.
pub type Journeys = Slab<Journey>;

/// Buckets of an octave of latencies.
const OF_OCTAVE: u32 = 8;

/// The time in each stage, summed by latency: it explains any part of a distribution.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Causes {
    buckets: Vec<Bucket>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Bucket {
    count: u64,
    spent: [u64; Stage::ALL.len()],
}

/// The mean time in each stage of a part of all requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// Requests.
    pub count: u64,
    /// Nanoseconds, by stage.
    pub mean_ns: [f64; Stage::ALL.len()],
}

impl Causes {
    /// Adds a request.
    pub fn add(&mut self, spent: &Spent) {
        let latency: u64 = spent.iter().copied().map(u64::from).sum();
        let place = bucket_of(latency);
        if self.buckets.len() <= place {
            self.buckets.resize(place + 1, Bucket::default());
        }
        let bucket = &mut self.buckets[place];
        bucket.count += 1;
        bucket.spent.iter_mut().zip(spent).for_each(|(sum, time)| *sum += u64::from(*time));
    }

    /// Adds those of another part.
    pub fn merge(&mut self, other: &Causes) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), Bucket::default());
        }
        for (sum, more) in self.buckets.iter_mut().zip(&other.buckets) {
            sum.count += more.count;
            sum.spent.iter_mut().zip(more.spent).for_each(|(sum, time)| *sum += time);
        }
    }

    /// Returns the requests between two shares of all, the slowest last; `None` if there are none.
    /// Requests of one bucket, which differ by at most an eighth of an octave, count in proportion.
    pub fn between(&self, from: f64, to: f64) -> Option<Cause> {
        let all: u64 = self.buckets.iter().map(|bucket| bucket.count).sum();
        let (from, to) = (from * all as f64, to * all as f64);
        let (mut before, mut count, mut sums) = (0.0, 0.0, [0.0; Stage::ALL.len()]);
        for bucket in self.buckets.iter().filter(|bucket| bucket.count > 0) {
            let size = bucket.count as f64;
            let part = ((before + size).min(to) - f64::max(before, from)).max(0.0) / size;
            before += size;
            count += part * size;
            sums.iter_mut().zip(bucket.spent).for_each(|(sum, time)| *sum += part * time as f64);
        }
        (count > 0.0)
            .then(|| Cause { count: count.round() as u64, mean_ns: sums.map(|sum| sum / count) })
    }
}

/// Returns the bucket of a latency in nanoseconds.
fn bucket_of(latency: u64) -> usize {
    let octave = latency.max(1).ilog2();
    let below = match octave.checked_sub(OF_OCTAVE.ilog2()) {
        Some(shift) => (latency >> shift) as u32 & (OF_OCTAVE - 1),
        None => 0,
    };
    (octave * OF_OCTAVE + below) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn stages_sum_to_latency(steps in prop::collection::vec((0..7usize, 0..10_000_000u64), 1..30)) {
            let begin = 12_345_678;
            let mut journey = Journey::begin(begin);
            let mut now = begin;
            for (stage, time) in &steps {
                now += time;
                journey.end(Stage::ALL[*stage], now);
            }
            let sum: u64 = journey.spent().iter().copied().map(u64::from).sum();
            prop_assert_eq!(sum, now / 1000 - begin / 1000);
        }

        #[test]
        fn buckets_rise_with_latency(one in any::<u64>(), other in any::<u64>()) {
            let (low, high) = (one.min(other), one.max(other));
            prop_assert!(bucket_of(low) <= bucket_of(high));
        }
    }

    #[test]
    fn slow_part_names_its_cause() {
        let mut causes = Causes::default();
        let mut request = |stage: Stage, time: u32, times: u32| {
            let mut spent = Spent::default();
            spent[Stage::Wire as usize] = 10_000;
            spent[stage as usize] += time;
            (0..times).for_each(|_| causes.add(&spent));
        };
        request(Stage::Service, 5_000, 999);
        request(Stage::SwitchQueue, 3_000_000, 1);
        let slowest = causes.between(0.999, 1.0).unwrap();
        assert_eq!(slowest.count, 1);
        assert_eq!(slowest.mean_ns[Stage::SwitchQueue as usize], 3_000_000.0);
        let usual = causes.between(0.0, 0.5).unwrap();
        assert_eq!((usual.count, usual.mean_ns[Stage::Service as usize].round()), (500, 5_000.0));
        assert_eq!(Causes::default().between(0.0, 1.0), None);
    }

    #[test]
    fn way_back_has_stages_of_its_own() {
        let mut journey = Journey::begin(0);
        journey.leave_program(1_000);
        journey.end(Stage::Wire, 3_000);
        journey.turn();
        journey.leave_program(7_000);
        journey.end(Stage::Wire, 12_000);
        let spent = |stage: Stage| journey.spent()[stage as usize];
        let stages = [Stage::Send, Stage::Wire, Stage::Service, Stage::BackWire];
        assert_eq!(stages.map(spent), [1, 2, 4, 5]);
    }
}
