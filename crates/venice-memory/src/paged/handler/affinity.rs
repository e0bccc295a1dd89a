//! CPU affinity of the handler: tracks which processors faults come from, and decides where the
//! handler runs.
//!
//! A handler on the faulting thread's own processor runs as soon as that thread sleeps. On any
//! other it must be woken across processors, which costs more than the page (docs/results/faults.md).

/// Threads whose processors are remembered.
const THREADS: usize = 8;
/// Time for which a thread's processor stays known, in nanoseconds: a query costs as much as a page
/// fault.
const ASK_EVERY_NS: u64 = 5_000_000;
/// The same while the waker is in use, which keeps threads on the handler's processor.
const ASK_SOON_NS: u64 = 500_000;
/// Least time between two queries, in nanoseconds, however many threads there are.
const ASK_PAUSE_NS: u64 = 500_000;
/// Faults in a row from another processor after which the handler moves there.
const MOVE_AFTER: u32 = 16;
/// The same while the waker is in use.
const MOVE_SOON: u32 = 2;

#[derive(Clone, Copy, Debug, Default)]
struct ThreadCpu {
    thread: u32,
    cpu: Option<usize>,
    asked_ns: u64,
}

/// The processors of the threads whose faults a handler serves.
#[derive(Debug, Default)]
pub struct Affinity {
    known: [ThreadCpu; THREADS],
    asked_ns: u64,
    handler_cpu: Option<usize>,
    /// Last faults in a row that came from another processor.
    remote_faults: u32,
    is_eager: bool,
}

impl Affinity {
    /// Sets if woken threads stay on the handler's processor. Then it pays to move there soon.
    pub fn set_eager(&mut self, is_eager: bool) {
        self.is_eager = is_eager;
    }

    /// Records a fault of `thread`. Returns the processor to move to, if it is another one.
    /// `processor_of` queries where a thread is.
    pub fn on_fault(
        &mut self,
        thread: u32,
        now_ns: u64,
        processor_of: impl FnOnce(u32) -> Option<usize>,
    ) -> Option<usize> {
        let cpu = self.look_up(thread, now_ns, processor_of)?;
        let Some(handler_cpu) = self.handler_cpu else { return Some(cpu) };
        self.remote_faults = if cpu == handler_cpu { 0 } else { self.remote_faults + 1 };
        let enough = if self.is_eager { MOVE_SOON } else { MOVE_AFTER };
        (self.remote_faults >= enough).then_some(cpu)
    }

    /// Records that the handler has moved to `cpu`.
    pub fn moved_to(&mut self, cpu: usize) {
        self.handler_cpu = Some(cpu);
        self.remote_faults = 0;
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
        self.known[place] = ThreadCpu { thread, cpu, asked_ns: now_ns };
        cpu
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn follows_migrating_thread() {
        let mut affinity = Affinity::default();
        assert_eq!(affinity.on_fault(7, MS, |_| Some(1)), Some(1));
        affinity.moved_to(1);
        assert_eq!(affinity.on_fault(7, 2 * MS, |_| panic!("known")), None);
        let mut faults = 1;
        while affinity.on_fault(7, 9 * MS, |_| Some(2)).is_none() {
            faults += 1;
        }
        assert_eq!(faults, MOVE_AFTER);
    }

    #[test]
    fn no_migration_when_faults_alternate_cpus() {
        let mut affinity = Affinity::default();
        affinity.moved_to(0);
        for fault in 0..200u32 {
            let thread = fault % 2;
            let advice =
                affinity.on_fault(thread, MS * u64::from(fault), |_| Some(thread as usize));
            assert_eq!(advice, None, "fault {fault}");
        }
    }

    #[test]
    fn queries_are_rate_limited() {
        let mut affinity = Affinity::default();
        let mut asked = 0;
        for fault in 0..10_000u32 {
            let count = |_| {
                asked += 1;
                Some(0)
            };
            affinity.on_fault(fault % 100, 1 + fault as u64 * 1000, count);
        }
        assert!(asked <= 21, "{asked} queries in 10 ms");
    }
}
