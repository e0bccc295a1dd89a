//! Where faults come from, and where the handler goes.
//!
//! One on the faulting thread's own processor runs as soon as that thread sleeps; on any
//! other it must be woken across processors, which costs more than the page (docs/benchmarks.md).

/// Threads whose processors are remembered.
const THREADS: usize = 8;
/// How long an answer holds: to ask costs as much as a page fault.
const ASK_EVERY_NS: u64 = 5_000_000;
/// The same where whoever is elsewhere would stay with the handler if it came.
const ASK_SOON_NS: u64 = 500_000;
/// Questions are at least so far apart, however many threads there are.
const ASK_PAUSE_NS: u64 = 500_000;
/// So many faults in a row from elsewhere, and the handler moves there.
const MOVE_AFTER: u32 = 16;
/// The same where it would stay.
const MOVE_SOON: u32 = 2;

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    thread: u32,
    cpu: Option<usize>,
    asked_ns: u64,
}

/// What the handler knows of the threads whose faults it serves.
#[derive(Debug, Default)]
pub struct Whereabouts {
    known: [Known; THREADS],
    asked_ns: u64,
    home: Option<usize>,
    /// How many of the last faults, in a row, came from elsewhere.
    elsewhere: u32,
    is_eager: bool,
}

impl Whereabouts {
    /// Does who is woken stay where the handler is? Then it is worth while to go there soon.
    pub fn be_eager(&mut self, is_eager: bool) {
        self.is_eager = is_eager;
    }

    /// A fault of `thread`; the processor to go to, if it is another one. `processor_of` asks where
    /// a thread is.
    pub fn on_fault(
        &mut self,
        thread: u32,
        now_ns: u64,
        processor_of: impl FnOnce(u32) -> Option<usize>,
    ) -> Option<usize> {
        let cpu = self.look_up(thread, now_ns, processor_of)?;
        let Some(home) = self.home else { return Some(cpu) };
        self.elsewhere = if cpu == home { 0 } else { self.elsewhere + 1 };
        let enough = if self.is_eager { MOVE_SOON } else { MOVE_AFTER };
        (self.elsewhere >= enough).then_some(cpu)
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
        let holds_ns = if self.is_eager { ASK_SOON_NS } else { ASK_EVERY_NS };
        let is_fresh = known.is_some_and(|known| now_ns < known.asked_ns + holds_ns);
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
        assert_eq!(where_.on_fault(7, MS, |_| Some(1)), Some(1));
        where_.moved_to(1);
        assert_eq!(where_.on_fault(7, 2 * MS, |_| panic!("known")), None);
        let mut faults = 1;
        while where_.on_fault(7, 9 * MS, |_| Some(2)).is_none() {
            faults += 1;
        }
        assert_eq!(faults, MOVE_AFTER);
    }

    #[test]
    fn it_stays_while_two_processors_take_turns() {
        let mut where_ = Whereabouts::default();
        where_.moved_to(0);
        for fault in 0..200u32 {
            let thread = fault % 2;
            let advice = where_.on_fault(thread, MS * u64::from(fault), |_| Some(thread as usize));
            assert_eq!(advice, None, "fault {fault}");
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
            where_.on_fault(fault % 100, 1 + fault as u64 * 1000, count);
        }
        assert!(asked <= 21, "{asked} questions in 10 ms");
    }
}
