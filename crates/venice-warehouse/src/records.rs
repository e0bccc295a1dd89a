//! Measurements of a run, in each part of the world: their sums do not depend on the partition.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::capture::{Capture, Captured, LinkEnd};
use crate::journey::{Causes, Spent};
use crate::packet::Packet;

/// The cause of a packet's loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Drop {
    /// The ring of received packets was full.
    ReceiveRing,
    /// The queue of packets to be sent was full.
    SendQueue,
    /// The buffer of the socket was full.
    SocketBuffer,
    /// The socket is closed.
    NoSocket,
    /// Too many connections waited to be accepted.
    Backlog,
    /// The buffer of a switch was full.
    Switch,
}

impl Drop {
    /// All causes.
    pub const ALL: [Drop; 6] = [
        Self::ReceiveRing,
        Self::SendQueue,
        Self::SocketBuffer,
        Self::NoSocket,
        Self::Backlog,
        Self::Switch,
    ];

    /// Returns its name among the counts of a run.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReceiveRing => "drops.receive_ring",
            Self::SendQueue => "drops.send_queue",
            Self::SocketBuffer => "drops.socket_buffer",
            Self::NoSocket => "drops.no_socket",
            Self::Backlog => "drops.backlog",
            Self::Switch => "drops.switch",
        }
    }
}

/// Counts and distributions of one part of the world.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Records {
    made: u64,
    delivered: u64,
    dropped: [u64; Drop::ALL.len()],
    hops: u64,
    /// Latencies in nanoseconds, by a class that the application chooses.
    latencies: Vec<Latencies>,
    /// The packets of a link.
    capture: Option<Box<Capture>>,
    /// The stages of requests, by latency.
    causes: Causes,
    /// Sums of the application, by number.
    sums: Vec<u64>,
    /// Time of the last event that was no timer: timers that are not needed any more come later.
    busy_until: u64,
}

/// A distribution of times, in nanoseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub struct Latencies(pub Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self(Histogram::new(3).expect("three digits are possible"))
    }
}

/// Returns the values and counts of a distribution.
impl From<Latencies> for Vec<(u64, u64)> {
    fn from(latencies: Latencies) -> Self {
        let steps = latencies.0.iter_recorded();
        steps.map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
    }
}

impl TryFrom<Vec<(u64, u64)>> for Latencies {
    type Error = hdrhistogram::RecordError;

    fn try_from(steps: Vec<(u64, u64)>) -> Result<Self, Self::Error> {
        let mut latencies = Self::default();
        for (value, count) in steps {
            latencies.0.record_n(value, count)?;
        }
        Ok(latencies)
    }
}

impl Records {
    /// Notes that something happens at a time.
    pub(crate) fn happen(&mut self, now: u64) {
        self.busy_until = self.busy_until.max(now);
    }

    /// Returns the time at which something happened last.
    pub fn busy_until(&self) -> u64 {
        self.busy_until
    }

    /// Counts a packet that a host gives to its network card.
    pub fn make_packet(&mut self) {
        self.made += 1;
    }

    /// Counts a packet that has reached its socket.
    pub fn deliver_packet(&mut self) {
        self.delivered += 1;
    }

    /// Counts a packet that is lost.
    pub fn drop_packet(&mut self, cause: Drop) {
        self.dropped[cause as usize] += 1;
    }

    /// Counts a packet at a switch.
    pub fn pass_switch(&mut self) {
        self.hops += 1;
    }

    /// Notes a latency in picoseconds.
    pub fn latency(&mut self, class: usize, picos: u64) {
        if self.latencies.len() <= class {
            self.latencies.resize_with(class + 1, Latencies::default);
        }
        let nanos = picos.div_ceil(1000);
        self.latencies[class].0.record(nanos).expect("the histogram grows");
    }

    /// Captures the packets of a link from now on.
    pub(crate) fn capture(&mut self, capture: Capture) {
        self.capture = Some(Box::new(capture));
    }

    /// Notes a packet that leaves the end of a link, or is lost before, if it is captured.
    pub(crate) fn note(&mut self, from: LinkEnd, at: u64, packet: &Packet, dropped: Option<Drop>) {
        if let Some(capture) = &mut self.capture {
            capture.note(from, at, packet, dropped);
        }
    }

    /// Returns the captured packets.
    pub fn captured(&self) -> &[Captured] {
        self.capture.as_ref().map_or(&[], |capture| capture.packets())
    }

    /// Adds the stages of a request.
    pub fn explain(&mut self, spent: &Spent) {
        self.causes.add(spent);
    }

    /// Returns the stages of requests.
    pub fn causes(&self) -> &Causes {
        &self.causes
    }

    /// Adds to a sum.
    pub fn add(&mut self, number: usize, value: u64) {
        if self.sums.len() <= number {
            self.sums.resize(number + 1, 0);
        }
        self.sums[number] += value;
    }

    /// Gathers the records of all parts, captured packets too, and returns them for others, so many:
    /// the first has everything that was measured so far.
    pub(crate) fn divide<'a>(parts: impl Iterator<Item = &'a Self>, count: usize) -> Vec<Self> {
        let mut first = Self::default();
        for part in parts {
            first.merge(part);
            match (&mut first.capture, &part.capture) {
                (Some(all), Some(more)) => all.merge(more),
                (none, more) => none.clone_from(more),
            }
        }
        let capture = first.capture.as_ref().map(|capture| Box::new(capture.emptied()));
        let mut divided = vec![Self { capture, ..Self::default() }; count];
        divided[0] = first;
        divided
    }

    /// Adds the records of another part, but for captured packets.
    pub fn merge(&mut self, other: &Records) {
        self.made += other.made;
        self.delivered += other.delivered;
        self.hops += other.hops;
        self.busy_until = self.busy_until.max(other.busy_until);
        self.causes.merge(&other.causes);
        self.dropped.iter_mut().zip(other.dropped).for_each(|(sum, more)| *sum += more);
        for (class, latencies) in other.latencies.iter().enumerate() {
            if self.latencies.len() <= class {
                self.latencies.resize_with(class + 1, Latencies::default);
            }
            self.latencies[class].0 += &latencies.0;
        }
        other.sums.iter().enumerate().for_each(|(number, sum)| self.add(number, *sum));
    }

    /// Packets that hosts have made.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Packets that have reached their sockets.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Packets that were lost for a cause.
    pub fn dropped(&self, cause: Drop) -> u64 {
        self.dropped[cause as usize]
    }

    /// Switches that packets have passed, summed over all packets.
    pub fn hops(&self) -> u64 {
        self.hops
    }

    /// The latencies of a class.
    pub fn latencies(&self, class: usize) -> Option<&Histogram<u64>> {
        self.latencies.get(class).map(|latencies| &latencies.0)
    }

    /// A sum of the application.
    pub fn sum(&self, number: usize) -> u64 {
        self.sums.get(number).copied().unwrap_or(0)
    }
}
