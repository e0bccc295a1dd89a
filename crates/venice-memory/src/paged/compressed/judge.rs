//! Whether compression pays: the time that hits save, against what the pool's frames would save as
//! plain ones, and the time that packing takes.
//!
//! What a frame more would be worth is seen in the staging ring, whose pages are the next to leave: so
//! many faults are answered from so many of its frames.

use std::sync::atomic::{AtomicU64, Ordering};

/// After so many pages it is known how well they pack.
const PACKED: u64 = 4096;
/// Of which one in so many must, or it is given up.
const ONE_IN: u64 = 8;
/// After so many look-ups in a full pool it is known whether it pays; in one that does not get full,
/// after [`PATIENCE`] times as many.
const LOOK_UPS: u64 = 4096;
/// See [`LOOK_UPS`].
const PATIENCE: u64 = 4;
/// How long nothing is compressed when it did not pay: at first, and at most.
const REST_NS: [u64; 2] = [1_000_000_000, 64_000_000_000];

/// About the median of what was added lately. One thread adds.
#[derive(Debug, Default)]
pub(in super::super) struct Median(AtomicU64);

impl Median {
    /// Takes note of a value.
    pub(in super::super) fn add(&self, value: u64) {
        let now = self.get();
        let step = now / 16 + 1;
        let next = match now {
            0 => value,
            _ if value > now => now + step,
            _ => now - step.min(now - 1),
        };
        self.0.store(next, Ordering::Relaxed);
    }

    /// The median; 0: nothing was added yet.
    pub(in super::super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What has happened since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Evidence {
    /// Faults answered by the pool.
    pub(in super::super) hits: u64,
    /// By donors.
    pub(in super::super) far: u64,
    /// By the staging ring.
    pub(in super::super) staged: u64,
    /// How long that takes.
    pub(in super::super) staged_ns: u64,
    /// How long a hit takes.
    pub(in super::super) hit_ns: u64,
    /// How long a donor takes.
    pub(in super::super) far_ns: u64,
    /// Pages that it was tried to pack.
    pub(in super::super) packed: u64,
    /// How long that takes for one.
    pub(in super::super) pack_ns: u64,
}

/// What uses frames.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Frames {
    /// Those of the pool.
    pub(in super::super) pool: u64,
    /// Those of the staging ring that hold a page.
    pub(in super::super) ring: u64,
    /// Does the pool use all that it may?
    pub(in super::super) is_full: bool,
}

/// Why compression rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Stop {
    /// Few pages fit into half their length.
    PacksBadly,
    /// What it costs is more than it brings.
    DoesNotPay,
}

/// The judge of one process.
#[derive(Debug)]
pub(in super::super) struct Judge {
    resting_until_ns: Option<u64>,
    rest_ns: u64,
    /// Of the pages packed since it was looked at, all and those that were kept.
    tried: u64,
    kept: u64,
    since: Evidence,
    /// Frames of the pool and of the ring, summed over the looks since then.
    frames: [u64; 2],
    was_full: bool,
}

impl Default for Judge {
    fn default() -> Judge {
        Judge {
            resting_until_ns: None,
            rest_ns: REST_NS[0],
            tried: 0,
            kept: 0,
            since: Evidence::default(),
            frames: [0; 2],
            was_full: false,
        }
    }
}

impl Judge {
    /// One that judges what happens after `since`.
    pub(in super::super) fn from(since: Evidence) -> Judge {
        Judge { since, ..Judge::default() }
    }

    /// Is nothing compressed for the time being?
    pub(in super::super) fn is_resting(&self) -> bool {
        self.resting_until_ns.is_some()
    }

    /// A page was packed; was it kept?
    pub(in super::super) fn note_packed(&mut self, is_kept: bool) {
        self.tried += 1;
        self.kept += u64::from(is_kept);
    }

    /// Looks at what happened until now. `Some`: nothing is to be compressed for a while.
    pub(in super::super) fn look(
        &mut self,
        now_ns: u64,
        evidence: Evidence,
        frames: Frames,
    ) -> Option<Stop> {
        match self.resting_until_ns {
            Some(until_ns) if now_ns < until_ns => return None,
            Some(_) => {
                *self = Judge { rest_ns: self.rest_ns, ..Judge::from(evidence) };
                return None;
            }
            None => {}
        }
        let stop = self.packs_badly().or_else(|| self.pays_not(evidence, frames))?;
        self.rest(now_ns);
        Some(stop)
    }

    /// Has nothing compressed for a while.
    pub(in super::super) fn rest(&mut self, now_ns: u64) {
        self.resting_until_ns = Some(now_ns + self.rest_ns);
        self.rest_ns = (2 * self.rest_ns).min(REST_NS[1]);
    }

    fn packs_badly(&mut self) -> Option<Stop> {
        if self.tried < PACKED {
            return None;
        }
        let (tried, kept) = (std::mem::take(&mut self.tried), std::mem::take(&mut self.kept));
        (kept * ONE_IN < tried).then_some(Stop::PacksBadly)
    }

    fn pays_not(&mut self, now: Evidence, frames: Frames) -> Option<Stop> {
        if frames.is_full && !self.was_full {
            (self.was_full, self.since, self.frames) = (true, now, [0; 2]);
            return None;
        }
        self.frames[0] += frames.pool;
        self.frames[1] += frames.ring;
        let (hits, far) = (now.hits - self.since.hits, now.far - self.since.far);
        let enough = if frames.is_full { LOOK_UPS } else { PATIENCE * LOOK_UPS };
        if hits + far < enough {
            return None;
        }
        let saving_ns = |count: u64, takes_ns| {
            u128::from(count) * u128::from(now.far_ns.saturating_sub(takes_ns))
        };
        let [pool, ring] = std::mem::take(&mut self.frames).map(u128::from);
        let saved_ns = saving_ns(hits, now.hit_ns);
        let by_ring_ns = saving_ns(now.staged - self.since.staged, now.staged_ns);
        let as_frames_ns = by_ring_ns * pool / ring.max(1);
        let packing_ns = u128::from(now.packed - self.since.packed) * u128::from(now.pack_ns);
        self.since = now;
        if saved_ns <= as_frames_ns + packing_ns {
            return Some(Stop::DoesNotPay);
        }
        self.rest_ns = REST_NS[0];
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: Frames = Frames { pool: 1000, ring: 500, is_full: true };

    /// So many hits and far faults of 16384 look-ups, at 5 µs and 15 µs.
    fn evidence(hits: u64, staged: u64) -> Evidence {
        let (staged_ns, hit_ns, far_ns) = (3000, 5000, 15000);
        let far = 16384 - hits;
        let (packed, pack_ns) = (16384, 1000);
        Evidence { hits, far, staged, staged_ns, hit_ns, far_ns, packed, pack_ns }
    }

    fn judged(evidence: Evidence) -> Option<Stop> {
        let mut judge = Judge::default();
        assert_eq!(judge.look(0, Evidence::default(), FRAMES), None, "it is full from here on");
        judge.look(1, evidence, FRAMES)
    }

    #[test]
    fn hits_must_save_more_than_the_frames_and_the_packing_cost() {
        assert_eq!(judged(evidence(8000, 2500)), None, "80 ms against 60 ms and 16 ms");
        assert_eq!(judged(evidence(8000, 2700)), Some(Stop::DoesNotPay), "65 ms and 16 ms");
        assert_eq!(judged(evidence(1000, 0)), Some(Stop::DoesNotPay), "10 ms against 16 ms");
        let near = Evidence { far_ns: 5000, ..evidence(16000, 0) };
        assert_eq!(judged(near), Some(Stop::DoesNotPay), "a donor is as fast");
    }

    /// A ring that happens to be short when it is looked at last says nothing of all the time before.
    #[test]
    fn frames_are_those_of_all_the_time() {
        let mut judge = Judge::default();
        assert_eq!(judge.look(0, Evidence::default(), FRAMES), None);
        for at in 1..10 {
            assert_eq!(judge.look(at, Evidence::default(), FRAMES), None);
        }
        let short = Frames { ring: 1, ..FRAMES };
        assert_eq!(judge.look(10, evidence(8000, 2000), short), None);
    }

    /// Of 64 GiB of pool, a short ring, and a donor that takes a second.
    #[test]
    fn large_numbers_are_no_more_than_large() {
        let frames = Frames { pool: 1 << 24, ring: 1, is_full: true };
        let mut judge = Judge::default();
        assert_eq!(judge.look(0, Evidence::default(), frames), None);
        let slow = Evidence { far_ns: 1_000_000_000, ..evidence(8000, 1 << 20) };
        assert_eq!(judge.look(1, slow, frames), Some(Stop::DoesNotPay));
    }

    #[test]
    fn it_tries_again_after_longer_and_longer_rests() {
        let mut judge = Judge::default();
        let mut now_ns = 0;
        for rest_ns in [1, 2, 4, 8, 16, 32, 64, 64, 64].map(|s| s * 1_000_000_000) {
            for _ in 0..PACKED {
                judge.note_packed(false);
            }
            let look = |judge: &mut Judge, now_ns| judge.look(now_ns, Evidence::default(), FRAMES);
            assert_eq!(look(&mut judge, now_ns), Some(Stop::PacksBadly));
            assert_eq!(look(&mut judge, now_ns + rest_ns - 1), None);
            assert!(judge.is_resting());
            now_ns += rest_ns;
            assert_eq!(look(&mut judge, now_ns), None);
            assert!(!judge.is_resting());
        }
    }

    /// The child of a fork has its parent's counts.
    #[test]
    fn what_happened_before_it_was_there_is_not_judged() {
        let frames = Frames { is_full: false, ..FRAMES };
        assert_eq!(Judge::from(evidence(1000, 0)).look(1, evidence(1000, 0), frames), None);
        assert_eq!(Judge::default().look(1, evidence(1000, 0), frames), Some(Stop::DoesNotPay));
    }

    #[test]
    fn a_pool_that_does_not_get_full_is_judged_later() {
        let frames = Frames { is_full: false, ..FRAMES };
        let mut judge = Judge::default();
        let part = |evidence: Evidence, part| Evidence {
            hits: evidence.hits / part,
            far: evidence.far / part,
            ..evidence
        };
        assert_eq!(judge.look(0, part(evidence(1024, 0), 2), frames), None);
        assert_eq!(judge.look(0, evidence(1024, 0), frames), Some(Stop::DoesNotPay));
    }

    #[test]
    fn the_median_is_not_moved_by_a_few_long_waits() {
        let median = Median::default();
        for at in 0..1000 {
            median.add(if at % 10 == 0 { 1_000_000 } else { 10_000 + at % 7 });
        }
        assert!((7_000..14_000).contains(&median.get()), "{}", median.get());
    }
}
