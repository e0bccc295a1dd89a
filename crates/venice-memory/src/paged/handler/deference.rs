//! Whether threads are woken by the handler itself or, once it sleeps, by the
//! [waker](super::super::waker).
//!
//! It pays where a thread runs away from the handler: woken while the handler is at work it goes to
//! another processor, the handler follows, and so on. It costs where something else runs on the
//! handler's processor, for the waker comes after all of that; where several threads wait at the same
//! time, for the handler does not sleep then; and a little where nobody can run away, be it that all
//! processors are busy or that a thread may be on one only.

/// So many moves of the handler ...
const MOVES: usize = 8;
/// ... within this time are a chase.
const CHASE_NS: u64 = 80_000_000;
/// After so long it is seen whether there would still be one.
const TRY_AFTER_NS: u64 = 10_000_000_000;
/// So many faults are looked at together: ...
const TOGETHER: u32 = 64;
/// ... if as many of them are another thread's than the one before, several threads take turns ...
const TURNS: u32 = 16;
/// ... and nothing is left to the waker for so long.
const SEVERAL_NS: u64 = 500_000_000;
/// So many late wake-ups ...
const LATE: usize = 3;
/// ... within this time, and something else runs here.
const CONTENTION_NS: u64 = 100_000_000;
/// How long nothing is left to the waker where it was late: at first, and at most.
const REST_NS: [u64; 2] = [250_000_000, 64_000_000_000];

/// See the module.
#[derive(Debug)]
pub struct Deference {
    moves_ns: [u64; MOVES],
    late_ns: [u64; LATE],
    times_late: u32,
    thread: u32,
    faults: u32,
    turns: u32,
    /// Since when the waker wakes.
    on_since_ns: Option<u64>,
    rest_ns: u64,
    rests_until_ns: u64,
}

impl Default for Deference {
    fn default() -> Deference {
        Deference {
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

impl Deference {
    /// Does the waker wake?
    pub fn is_on(&self) -> bool {
        self.on_since_ns.is_some()
    }

    /// The handler has moved after a thread.
    pub fn note_move(&mut self, now_ns: u64) {
        let is_chase = is_often(&mut self.moves_ns, now_ns, CHASE_NS);
        if is_chase && !self.is_on() && now_ns >= self.rests_until_ns {
            self.on_since_ns = Some(now_ns);
        }
    }

    /// A fault of `thread`; the waker has been late `times_late` times until now. How many of them are
    /// news.
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

    /// Who waits may be on one processor only.
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

    /// The longer each time, until it was of use for long.
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

/// Takes note of another time; were as many as are remembered within `within_ns`?
fn is_often<const N: usize>(times_ns: &mut [u64; N], now_ns: u64, within_ns: u64) -> bool {
    times_ns.rotate_left(1);
    times_ns[N - 1] = now_ns;
    times_ns[0] != 0 && now_ns - times_ns[0] <= within_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Turned on after 80 ms.
    fn chased() -> Deference {
        let mut deference = Deference::default();
        (1..=MOVES as u64).for_each(|at| deference.note_move(at * 10 * MS));
        assert!(deference.is_on());
        deference
    }

    #[test]
    fn a_chase_turns_it_on_and_moves_now_and_then_do_not() {
        let mut deference = Deference::default();
        (1..100).for_each(|at| deference.note_move(at * 40 * MS));
        assert!(!deference.is_on());
        chased();
    }

    #[test]
    fn late_wake_ups_turn_it_off_for_longer_each_time() {
        let mut deference = chased();
        let (mut now_ns, mut late) = (100 * MS, 0);
        for rest_ms in [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 64_000] {
            for _ in 0..LATE {
                assert!(deference.is_on());
                now_ns += 5 * MS;
                late += 1;
                assert_eq!(deference.note_fault(7, late, now_ns), 1);
            }
            assert!(!deference.is_on());
            let off_ns = now_ns;
            while !deference.is_on() {
                now_ns += 10 * MS;
                deference.note_move(now_ns);
            }
            let rested_ns = now_ns - off_ns;
            let expected_ns = rest_ms * MS;
            assert!((expected_ns..expected_ns + 100 * MS).contains(&rested_ns), "{rested_ns}");
        }
    }

    #[test]
    fn one_late_wake_up_now_and_then_does_not() {
        let mut deference = chased();
        for at in 1..100u32 {
            deference.note_fault(7, at, 100 * MS + u64::from(at) * 60 * MS);
        }
        assert!(deference.is_on());
    }

    #[test]
    fn after_a_while_it_is_turned_off_and_a_chase_turns_it_on_again() {
        let mut deference = chased();
        deference.note_fault(7, 0, 80 * MS + TRY_AFTER_NS);
        assert!(deference.is_on());
        deference.note_fault(7, 0, 81 * MS + TRY_AFTER_NS);
        assert!(!deference.is_on());
        let begin_ns = 81 * MS + TRY_AFTER_NS;
        (1..MOVES as u64).for_each(|at| deference.note_move(begin_ns + at * 10 * MS));
        assert!(!deference.is_on());
        deference.note_move(begin_ns + MOVES as u64 * 10 * MS);
        assert!(deference.is_on());
    }

    #[test]
    fn threads_that_take_turns_turn_it_off_and_now_and_then_another_does_not() {
        for (one_in, stays_on) in [(2, false), (4, false), (8, true)] {
            let mut deference = chased();
            for at in 0..4 * TOGETHER {
                let thread = 7 + at / one_in % 2;
                deference.note_fault(thread, 0, 100 * MS);
            }
            assert_eq!(deference.is_on(), stays_on, "another every {one_in} faults");
            if !stays_on {
                (10..30).for_each(|at| deference.note_move(at * 10 * MS));
                assert!(!deference.is_on(), "several threads do not run away, they take turns");
            }
        }
    }

    #[test]
    fn who_may_be_on_one_processor_only_is_woken_by_the_handler() {
        let mut deference = chased();
        deference.note_pinned();
        assert!(!deference.is_on());
    }
}
