//! The donor's protocol: which task runs next, and when its completion is flagged. No I/O.

use std::collections::VecDeque;

use super::outcome::{Outcome, TaskResult};

/// Numbers of what happened, since the host started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DonorCounts {
    /// Tasks completed, failed ones too.
    pub tasks: u64,
    /// Tasks that failed.
    pub failed: u64,
    /// Tasks whose computing took longer than the model's time.
    pub late: u64,
    /// Time that the accelerator was busy, in nanoseconds.
    pub busy_ns: u64,
}

/// A task to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Its mailbox.
    pub mailbox: u32,
    /// Number of the start.
    pub sequence: u64,
}

/// A completion to flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The task.
    pub ticket: Ticket,
    /// Its result.
    pub result: TaskResult,
    /// Number behind the last byte that tasks have printed until then.
    pub printed: u64,
}

/// State of an accelerator's mailboxes. The accelerator runs one task at a time, in the order in
/// which their starts were noticed.
///
/// A start word is a number that grows. A number that was seen before starts nothing, so a repeated
/// write is harmless; of several starts of one mailbox before its turn, the last one counts.
#[derive(Debug)]
pub struct MailboxDonor {
    /// Latest number seen of each mailbox.
    seen: Vec<u64>,
    /// Tasks that wait, at most one of each mailbox, with the times at which they were noticed.
    queue: VecDeque<(Ticket, u64)>,
    running: Option<Running>,
    busy_until_ns: u64,
    counts: DonorCounts,
}

#[derive(Debug)]
struct Running {
    ticket: Ticket,
    begin_ns: u64,
    /// Result, with the time from which its completion may be flagged.
    computed: Option<(TaskResult, u64)>,
}

impl MailboxDonor {
    /// Returns the state of this many free mailboxes.
    pub fn new(mailboxes: u32) -> Self {
        let (seen, queue) = (vec![0; mailboxes as usize], VecDeque::new());
        Self { seen, queue, running: None, busy_until_ns: 0, counts: DonorCounts::default() }
    }

    /// Takes in a start word.
    ///
    /// # Panics
    /// If there is no such mailbox.
    pub fn handle_start(&mut self, now_ns: u64, mailbox: u32, word: u64) {
        let seen = &mut self.seen[mailbox as usize];
        if word <= *seen {
            return;
        }
        *seen = word;
        let ticket = Ticket { mailbox, sequence: word };
        match self.queue.iter_mut().find(|(queued, _)| queued.mailbox == mailbox) {
            Some((queued, _)) => *queued = ticket,
            None => self.queue.push_back((ticket, now_ns)),
        }
    }

    /// Returns the next task to compute; report its outcome by [`MailboxDonor::handle_computed`].
    /// It begins when its start was noticed, or when the accelerator was free.
    pub fn poll_task(&mut self) -> Option<Ticket> {
        if self.running.is_some() {
            return None;
        }
        let (ticket, noticed_ns) = self.queue.pop_front()?;
        let begin_ns = noticed_ns.max(self.busy_until_ns);
        self.running = Some(Running { ticket, begin_ns, computed: None });
        Some(ticket)
    }

    /// Returns the time from which the task runs that was polled last; `None`: none runs.
    pub fn running_since_ns(&self) -> Option<u64> {
        self.running.as_ref().map(|running| running.begin_ns)
    }

    /// Takes in the outcome of the task that was polled last. `least_ns` is the time of the model.
    pub fn handle_computed(&mut self, now_ns: u64, outcome: Outcome, least_ns: u64) {
        let Some(running) = self.running.as_mut().filter(|task| task.computed.is_none()) else {
            return;
        };
        // What failed takes no time of the model.
        let least_ns = if outcome.is_ok() { least_ns } else { 0 };
        let model_ns = running.begin_ns.saturating_add(least_ns);
        let due_ns = model_ns.max(now_ns);
        let time_ns = due_ns.saturating_sub(running.begin_ns);
        self.counts.tasks += 1;
        self.counts.failed += u64::from(outcome.is_err());
        self.counts.late += u64::from(least_ns > 0 && now_ns > model_ns);
        self.counts.busy_ns = self.counts.busy_ns.saturating_add(time_ns);
        self.busy_until_ns = due_ns;
        running.computed = Some((TaskResult { outcome, time_ns }, due_ns));
    }

    /// Returns the completion that is due.
    pub fn poll_completion(&mut self, now_ns: u64) -> Option<Completion> {
        let is_due = |task: &mut Running| task.computed.as_ref().is_some_and(|it| it.1 <= now_ns);
        let Running { ticket, computed, .. } = self.running.take_if(is_due)?;
        computed.map(|(result, _)| Completion { ticket, result, printed: 0 })
    }

    /// Returns the time at which a completion is due.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.running.as_ref()?.computed.as_ref().map(|(_, due_ns)| *due_ns)
    }

    /// True if a task waits for the accelerator.
    pub fn is_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns the counters.
    pub fn counts(&self) -> DonorCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn repeated_start_runs_once() {
        let mut donor = MailboxDonor::new(2);
        donor.handle_start(5, 0, 1);
        assert_eq!(donor.poll_task(), Some(Ticket { mailbox: 0, sequence: 1 }));
        donor.handle_start(6, 0, 1);
        donor.handle_computed(7, Ok(3), 0);
        assert_eq!(donor.poll_completion(7).unwrap().result.outcome, Ok(3));
        donor.handle_start(8, 0, 1);
        donor.handle_start(8, 0, 0);
        assert_eq!((donor.poll_task(), donor.poll_completion(9)), (None, None));
    }

    #[test]
    fn prepared_task_follows_at_once() {
        let mut donor = MailboxDonor::new(2);
        donor.handle_start(0, 0, 1);
        donor.poll_task().unwrap();
        donor.handle_computed(10, Ok(0), 100);
        donor.handle_start(50, 1, 1);
        assert_eq!((donor.poll_timeout(), donor.poll_completion(99)), (Some(100), None));
        // The donor's thread wakes late: the accelerator does not.
        assert_eq!(donor.poll_completion(130).unwrap().result.time_ns, 100);
        donor.poll_task().unwrap();
        donor.handle_computed(140, Ok(0), 100);
        assert_eq!(donor.poll_timeout(), Some(200));
        donor.poll_completion(200).unwrap();
        assert_eq!(donor.counts(), DonorCounts { tasks: 2, busy_ns: 200, ..Default::default() });
    }

    #[test]
    fn slow_computing_counts_as_late() {
        let mut donor = MailboxDonor::new(1);
        donor.handle_start(0, 0, 7);
        donor.poll_task().unwrap();
        donor.handle_computed(150, Ok(0), 100);
        assert_eq!(donor.poll_completion(150).unwrap().result.time_ns, 150);
        assert_eq!(donor.counts().late, 1);
    }

    proptest! {
        /// Each number that was the last one of its mailbox completes, once, and in order.
        #[test]
        fn starts_complete_in_order(starts in proptest::collection::vec((0u32..3, 0u64..40, 0u64..30), 1..60)) {
            let mut donor = MailboxDonor::new(3);
            let (mut now_ns, mut last, mut done) = (0, [0; 3], [0; 3]);
            let finish = |donor: &mut MailboxDonor, now_ns: u64, done: &mut [u64; 3]| {
                if donor.poll_task().is_some() {
                    donor.handle_computed(now_ns, Ok(0), 10);
                }
                if let Some(Completion { ticket, result, .. }) = donor.poll_completion(now_ns) {
                    assert!(ticket.sequence > done[ticket.mailbox as usize] && result.time_ns >= 10);
                    done[ticket.mailbox as usize] = ticket.sequence;
                }
            };
            for (mailbox, word, pause_ns) in starts {
                now_ns += pause_ns;
                donor.handle_start(now_ns, mailbox, word);
                last[mailbox as usize] = word.max(last[mailbox as usize]);
                finish(&mut donor, now_ns, &mut done);
            }
            for _ in 0..20 {
                now_ns += 10;
                finish(&mut donor, now_ns, &mut done);
            }
            prop_assert_eq!(done, last);
            prop_assert!(donor.poll_timeout().is_none());
        }
    }
}
