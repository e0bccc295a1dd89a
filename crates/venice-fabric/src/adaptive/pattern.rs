//! Detection of an access pattern from addresses alone.

/// An access pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// No order is detected: the next address is unknown, so latency counts.
    Random,
    /// Each access begins where another ended: throughput counts.
    Sequential,
    /// The same step each time; otherwise like sequential.
    Strided,
    /// A reader at the other end waits: the latency of one message counts.
    Message,
}

impl Pattern {
    /// True if throughput counts rather than latency.
    pub fn is_stream(self) -> bool {
        matches!(self, Self::Sequential | Self::Strided)
    }
}

/// Streams followed at once; a new one replaces the least recently matched one.
const STREAMS: usize = 8;
/// An access within this distance of a stream's last one, in bytes, may continue it with a new
/// step.
const NEAR_BYTES: u64 = 1 << 20;
/// The number of the latest 16 accesses that must fit a pattern.
const ENOUGH: u32 = 12;

/// Classifies a sequence of addresses. It follows several streams at once, so several threads, each
/// working through its own memory, are not taken for random accesses.
#[derive(Clone, Debug, Default)]
pub struct PatternDetector {
    streams: [Stream; STREAMS],
    clock: u64,
    /// One bit for each of the latest accesses: it continued where one had ended, or kept a step.
    sequential: u16,
    strided: u16,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    addr: u64,
    end: u64,
    step: i64,
    /// Time of the last match; 0: never matched.
    met_at: u64,
}

impl PatternDetector {
    /// Returns a detector without accesses, which reports random.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an access to `len_bytes` at `addr`; returns the pattern of the latest accesses.
    pub fn note(&mut self, addr: u64, len_bytes: u64) -> Pattern {
        self.clock += 1;
        let (is_sequential, is_strided) = self.follow(addr, len_bytes);
        self.sequential = self.sequential << 1 | u16::from(is_sequential);
        self.strided = self.strided << 1 | u16::from(is_strided);
        self.pattern()
    }

    /// Returns the pattern of the latest accesses.
    pub fn pattern(&self) -> Pattern {
        if self.sequential.count_ones() >= ENOUGH {
            Pattern::Sequential
        } else if (self.sequential | self.strided).count_ones() >= ENOUGH {
            Pattern::Strided
        } else {
            Pattern::Random
        }
    }

    fn follow(&mut self, addr: u64, len_bytes: u64) -> (bool, bool) {
        let clock = self.clock;
        let met = self.streams.iter_mut().filter(|stream| stream.met_at > 0);
        let mut nearest: Option<&mut Stream> = None;
        for stream in met {
            let step = addr.wrapping_sub(stream.addr).cast_signed();
            let (is_sequential, is_strided) =
                (addr == stream.end, step == stream.step && step != 0);
            if is_sequential || is_strided {
                *stream = Stream { addr, end: addr.wrapping_add(len_bytes), step, met_at: clock };
                return (is_sequential, is_strided);
            }
            let is_nearer = nearest
                .as_ref()
                .is_none_or(|other| addr.abs_diff(stream.addr) < addr.abs_diff(other.addr));
            if addr.abs_diff(stream.addr) <= NEAR_BYTES && is_nearer {
                nearest = Some(stream);
            }
        }
        let end = addr.wrapping_add(len_bytes);
        if let Some(stream) = nearest {
            let step = addr.wrapping_sub(stream.addr).cast_signed();
            *stream = Stream { addr, end, step, met_at: clock };
        } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|stream| stream.met_at) {
            *oldest = Stream { addr, end, step: 0, met_at: clock };
        }
        (false, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(accesses: impl Iterator<Item = u64>) -> Pattern {
        let mut detector = PatternDetector::new();
        accesses.map(|addr| detector.note(addr, 64)).last().unwrap()
    }

    #[test]
    fn detects_single_stream() {
        assert_eq!(last((0..20).map(|n| n * 64)), Pattern::Sequential);
        assert_eq!(last((0..20).map(|n| n * 4096)), Pattern::Strided);
        assert_eq!(last((0..20).rev().map(|n| n * 64)), Pattern::Strided, "downwards");
        assert_eq!(last((0..5).map(|n| n * 64)), Pattern::Random, "too early to tell");
    }

    #[test]
    fn detects_interleaved_streams() {
        let side_by_side = |n: u64| (n % 4) * (64 << 20) + n / 4 * 64;
        assert_eq!(last((0..80).map(side_by_side)), Pattern::Sequential);
    }

    #[test]
    fn unordered_accesses_are_random() {
        let scattered = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        assert_eq!(last((1..200).map(scattered)), Pattern::Random);
        let mut detector = PatternDetector::new();
        (0..20).for_each(|n| {
            detector.note(n * 64, 64);
        });
        (1..20).for_each(|n| {
            detector.note(scattered(n), 64);
        });
        assert_eq!(detector.pattern(), Pattern::Random, "random after the streams");
    }
}
