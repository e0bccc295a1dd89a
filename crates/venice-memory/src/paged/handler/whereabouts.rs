//! Where faults come from, and what a handler makes of it.
//!
//! A handler on the faulting thread's own processor runs as soon as that thread sleeps; on any
//! other it must be woken across processors, which costs more than the page (docs/benchmarks.md).

/// Threads whose processors are remembered.
const THREADS: usize = 8;
/// How long an answer holds: to ask costs as much as a page fault.
const ASK_EVERY_NS: u64 = 5_000_000;
/// Questions are at least so far apart, however many threads there are.
const ASK_PAUSE_NS: u64 = 500_000;
/// So many faults in a row from elsewhere, and the handler moves there.
const MOVE_AFTER: u32 = 16;
/// So many of the last 32 from elsewhere, and a helper is called there.
const CALL_AFTER: u32 = 6;

/// What to do after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Nothing.
    Stay,
    /// Go to this processor.
    Move(usize),
    /// Faults come from here and from this processor.
    Call(usize),
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    thread: u32,
    cpu: Option<usize>,
    asked_ns: u64,
}

/// What one handler knows of the threads whose faults it serves.
#[derive(Debug, Default)]
pub struct Whereabouts {
    known: [Known; THREADS],
    asked_ns: u64,
    home: Option<usize>,
    /// A bit for each of the last faults, the latest lowest; set: it came from elsewhere.
    elsewhere: u32,
}

impl Whereabouts {
    /// A fault of `thread`. `processor_of` asks where a thread is; `is_served` tells whether a
    /// handler is on a processor.
    pub fn on_fault(
        &mut self,
        thread: u32,
        now_ns: u64,
        processor_of: impl FnOnce(u32) -> Option<usize>,
        is_served: impl FnOnce(usize) -> bool,
    ) -> Advice {
        let Some(cpu) = self.look_up(thread, now_ns, processor_of) else { return Advice::Stay };
        let Some(home) = self.home else { return Advice::Move(cpu) };
        if cpu != home && is_served(cpu) {
            return Advice::Stay;
        }
        self.elsewhere = self.elsewhere << 1 | u32::from(cpu != home);
        if self.elsewhere.trailing_ones() >= MOVE_AFTER {
            Advice::Move(cpu)
        } else if cpu != home && self.elsewhere.count_ones() >= CALL_AFTER {
            Advice::Call(cpu)
        } else {
            Advice::Stay
        }
    }

    /// The handler is there now.
    pub fn moved_to(&mut self, cpu: usize) {
        self.home = Some(cpu);
        self.elsewhere = 0;
    }

    fn look_up(
        &mut self,
        thread: u32,
        now_ns: u64,
        processor_of: impl FnOnce(u32) -> Option<usize>,
    ) -> Option<usize> {
        let place = self.known.iter().position(|known| known.thread == thread);
        let known = place.map(|place| &self.known[place]);
        let is_fresh = known.is_some_and(|known| now_ns < known.asked_ns + ASK_EVERY_NS);
        let may_ask = self.asked_ns == 0 || now_ns >= self.asked_ns + ASK_PAUSE_NS;
        if is_fresh || !may_ask {
            return known?.cpu;
        }
        self.asked_ns = now_ns;
        let cpu = processor_of(thread);
        let oldest = (0..THREADS).min_by_key(|&place| self.known[place].asked_ns);
        let place = place.or(oldest).expect("there are places");
        self.known[place] = Known { thread, cpu, asked_ns: now_ns };
        cpu
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn it_follows_a_thread_that_moves() {
        let mut where_ = Whereabouts::default();
        assert_eq!(where_.on_fault(7, MS, |_| Some(1), |_| false), Advice::Move(1));
        where_.moved_to(1);
        assert_eq!(where_.on_fault(7, 2 * MS, |_| panic!("known"), |_| false), Advice::Stay);
        let mut advice = Advice::Stay;
        let mut faults = 0;
        while !matches!(advice, Advice::Move(_)) {
            faults += 1;
            advice = where_.on_fault(7, 9 * MS, |_| Some(2), |_| false);
            assert!(faults <= MOVE_AFTER);
        }
        assert_eq!(advice, Advice::Move(2));
    }

    #[test]
    fn it_calls_for_help_when_two_processors_fault_and_only_then() {
        let mut where_ = Whereabouts::default();
        where_.moved_to(0);
        let mut now_ns = 0;
        let mut fault = |where_: &mut Whereabouts, thread: u32, is_served| {
            now_ns += MS;
            where_.on_fault(thread, now_ns, |thread| Some(thread as usize), |_| is_served)
        };
        for _ in 0..40 {
            assert_eq!(fault(&mut where_, 0, false), Advice::Stay);
        }
        for _ in 0..CALL_AFTER - 1 {
            assert_eq!(fault(&mut where_, 1, false), Advice::Stay);
            assert_eq!(fault(&mut where_, 0, false), Advice::Stay);
        }
        assert_eq!(fault(&mut where_, 1, false), Advice::Call(1));
        for _ in 0..40 {
            assert_eq!(fault(&mut where_, 1, true), Advice::Stay, "it has a handler");
        }
    }

    #[test]
    fn it_does_not_ask_too_often() {
        let mut where_ = Whereabouts::default();
        let mut asked = 0;
        for fault in 0..10_000u32 {
            let count = |_| {
                asked += 1;
                Some(0)
            };
            where_.on_fault(fault % 100, 1 + fault as u64 * 1000, count, |_| true);
        }
        assert!(asked <= 21, "{asked} questions in 10 ms");
    }
}
