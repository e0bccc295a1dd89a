//! The wake policy: decides if threads are woken by the handler itself or, once the handler sleeps,
//! by the [waker](super::super::waker).
//!
//! The waker pays where a thread migrates away from the handler: woken while the handler runs, the
//! thread goes to another processor, the handler follows, and so on. The waker costs time where
//! something else runs on the handler's processor, since it runs after all of that; where several
//! threads wait at the same time, since the handler does not sleep then; and a little where no
//! thread can migrate, because all processors are busy or the thread is pinned to one.

/// This many moves of the handler ...
const MOVES: usize = 8;
/// ... within this time, in nanoseconds, are a chase.
const CHASE_NS: u64 = 80_000_000;
/// Time after which the policy tries without the waker again, in nanoseconds.
const TRY_AFTER_NS: u64 = 10_000_000_000;
/// Faults that are counted together: ...
const TOGETHER: u32 = 64;
/// ... if this many of them come from another thread than the one before, several threads alternate
/// ...
const TURNS: u32 = 16;
/// ... and nothing is left to the waker for this long, in nanoseconds.
const SEVERAL_NS: u64 = 500_000_000;
/// This many late wake-ups ...
const LATE: usize = 3;
/// ... within this time, in nanoseconds, mean that something else runs on the processor.
const CONTENTION_NS: u64 = 100_000_000;
/// Time without the waker after late wake-ups, in nanoseconds: the first and the longest.
const REST_NS: [u64; 2] = [250_000_000, 64_000_000_000];

/// The wake policy of one handler. See the module.
#[derive(Debug)]
pub struct WakePolicy {
    moves_ns: [u64; MOVES],
    late_ns: [u64; LATE],
    times_late: u32,
    thread: u32,
    faults: u32,
    turns: u32,
    /// Time at which the waker was turned on, if it is on.
    on_since_ns: Option<u64>,
    rest_ns: u64,
    rests_until_ns: u64,
}

impl Default for WakePolicy {
    fn default() -> WakePolicy {
        WakePolicy {
            moves_ns: [0; MOVES],
            late_ns: [0; LATE],
            times_late: 0,
            thread: 0,
            faults: 0,
            turns: 0,
            on_since_ns: None,
            rest_ns: REST_NS[0],
            rests_until_ns: 0,
        }
    }
}

impl WakePolicy {
    /// True if the waker wakes threads.
    pub fn is_on(&self) -> bool {
        self.on_since_ns.is_some()
    }

    /// Records that the handler has followed a thread to another processor.
    pub fn note_move(&mut self, now_ns: u64) {
        let is_chase = is_often(&mut self.moves_ns, now_ns, CHASE_NS);
        if is_chase && !self.is_on() && now_ns >= self.rests_until_ns {
            self.on_since_ns = Some(now_ns);
        }
    }

    /// Records a fault of `thread`. `times_late` is the number of late wake-ups so far. Returns how
    /// many of them are new.
    pub fn note_fault(&mut self, thread: u32, times_late: u32, now_ns: u64) -> u32 {
        self.count_turns(thread, now_ns);
        let late = times_late.wrapping_sub(self.times_late);
        self.times_late = times_late;
        let Some(since_ns) = self.on_since_ns else { return late };
        if late > 0 && is_often(&mut self.late_ns, now_ns, CONTENTION_NS) {
            self.rest(now_ns);
        } else if now_ns > since_ns + TRY_AFTER_NS {
            self.turn_off();
            self.rest_ns = REST_NS[0];
        }
        late
    }

    /// Records that the waiting thread is pinned to one processor.
    pub fn note_pinned(&mut self) {
        self.turn_off();
    }

    fn count_turns(&mut self, thread: u32, now_ns: u64) {
        self.turns += u32::from(thread != self.thread);
        self.thread = thread;
        self.faults += 1;
        if self.faults == TOGETHER {
            if self.turns >= TURNS {
                self.turn_off();
                self.rests_until_ns = self.rests_until_ns.max(now_ns + SEVERAL_NS);
            }
            (self.faults, self.turns) = (0, 0);
        }
    }

    /// Turns the waker off for a while: longer each time, until it has been on for long.
    fn rest(&mut self, now_ns: u64) {
        self.turn_off();
        self.rests_until_ns = now_ns + self.rest_ns;
        self.rest_ns = (2 * self.rest_ns).min(REST_NS[1]);
    }

    fn turn_off(&mut self) {
        self.on_since_ns = None;
        self.moves_ns = [0; MOVES];
        self.late_ns = [0; LATE];
    }
}

/// Records another time. True if as many as are remembered lie within `within_ns`.
fn is_often<const N: usize>(times_ns: &mut [u64; N], now_ns: u64, within_ns: u64) -> bool {
    times_ns.rotate_left(1);
    times_ns[N - 1] = now_ns;
    times_ns[0] != 0 && now_ns - times_ns[0] <= within_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Returns a policy whose waker was turned on after 80 ms.
    fn chased() -> WakePolicy {
        let mut wake_policy = WakePolicy::default();
        (1..=MOVES as u64).for_each(|at| wake_policy.note_move(at * 10 * MS));
        assert!(wake_policy.is_on());
        wake_policy
    }

    #[test]
    fn enables_waker_after_frequent_moves() {
        let mut wake_policy = WakePolicy::default();
        (1..100).for_each(|at| wake_policy.note_move(at * 40 * MS));
        assert!(!wake_policy.is_on());
        chased();
    }

    #[test]
    fn late_wakes_disable_waker_exponentially() {
        let mut wake_policy = chased();
        let (mut now_ns, mut late) = (100 * MS, 0);
        for rest_ms in [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 64_000] {
            for _ in 0..LATE {
                assert!(wake_policy.is_on());
                now_ns += 5 * MS;
                late += 1;
                assert_eq!(wake_policy.note_fault(7, late, now_ns), 1);
            }
            assert!(!wake_policy.is_on());
            let off_ns = now_ns;
            while !wake_policy.is_on() {
                now_ns += 10 * MS;
                wake_policy.note_move(now_ns);
            }
            let rested_ns = now_ns - off_ns;
            let expected_ns = rest_ms * MS;
            assert!((expected_ns..expected_ns + 100 * MS).contains(&rested_ns), "{rested_ns}");
        }
    }

    #[test]
    fn rare_late_wakes_keep_waker() {
        let mut wake_policy = chased();
        for at in 1..100u32 {
            wake_policy.note_fault(7, at, 100 * MS + u64::from(at) * 60 * MS);
        }
        assert!(wake_policy.is_on());
    }

    #[test]
    fn waker_is_retried_after_timeout() {
        let mut wake_policy = chased();
        wake_policy.note_fault(7, 0, 80 * MS + TRY_AFTER_NS);
        assert!(wake_policy.is_on());
        wake_policy.note_fault(7, 0, 81 * MS + TRY_AFTER_NS);
        assert!(!wake_policy.is_on());
        let begin_ns = 81 * MS + TRY_AFTER_NS;
        (1..MOVES as u64).for_each(|at| wake_policy.note_move(begin_ns + at * 10 * MS));
        assert!(!wake_policy.is_on());
        wake_policy.note_move(begin_ns + MOVES as u64 * 10 * MS);
        assert!(wake_policy.is_on());
    }

    #[test]
    fn alternating_threads_disable_waker() {
        for (one_in, stays_on) in [(2, false), (4, false), (8, true)] {
            let mut wake_policy = chased();
            for at in 0..4 * TOGETHER {
                let thread = 7 + at / one_in % 2;
                wake_policy.note_fault(thread, 0, 100 * MS);
            }
            assert_eq!(wake_policy.is_on(), stays_on, "another every {one_in} faults");
            if !stays_on {
                (10..30).for_each(|at| wake_policy.note_move(at * 10 * MS));
                assert!(!wake_policy.is_on(), "alternating threads must not enable the waker");
            }
        }
    }

    #[test]
    fn pinned_thread_disables_waker() {
        let mut wake_policy = chased();
        wake_policy.note_pinned();
        assert!(!wake_policy.is_on());
    }
}
