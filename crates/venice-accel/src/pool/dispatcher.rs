//! Which accelerator runs which task. No I/O.

use std::collections::VecDeque;

/// Next step of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Run this task.
    Task(usize),
    /// Nothing at present; ask again after something has changed.
    Wait,
    /// Nothing any more.
    Finished,
}

/// Distribution of tasks over the accelerators of a pool: each worker takes the next task that is
/// pending.
///
/// A task is done once. If none is pending, an idle worker steals the last task of one that has
/// several in flight: both run it, and the first to complete it is asked for the output. The tasks of
/// a lost worker are pending again, unless another one runs them.
#[derive(Debug)]
pub struct Dispatcher {
    tasks: Vec<TaskState>,
    pending: VecDeque<usize>,
    /// Tasks of each worker in flight, in the order of their starts; `None`: it is lost.
    workers: Vec<Option<Vec<usize>>>,
    /// Workers that each task was the first in flight of when they were lost.
    losses: Vec<u32>,
    done: usize,
    is_stopped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskState {
    /// Pending or running.
    Open,
    /// This worker completed it and reads its output.
    Claimed(usize),
    /// Its output is there.
    Done,
}

impl Dispatcher {
    /// Begins with all tasks pending, and no worker lost.
    pub fn new(tasks: usize, workers: usize) -> Self {
        Self {
            tasks: vec![TaskState::Open; tasks],
            pending: (0..tasks).collect(),
            workers: vec![Some(Vec::new()); workers],
            losses: vec![0; tasks],
            done: 0,
            is_stopped: false,
        }
    }

    /// Returns what a worker does next; a task is in flight there from now on.
    pub fn poll_task(&mut self, worker: usize) -> Next {
        if self.is_finished() {
            return Next::Finished;
        }
        let Some(Some(in_flight)) = self.workers.get(worker) else { return Next::Finished };
        let is_idle = in_flight.is_empty();
        let task = match self.pending.pop_front() {
            Some(task) => task,
            None if is_idle => match self.task_to_steal() {
                Some(task) => task,
                None => return Next::Wait,
            },
            None => return Next::Wait,
        };
        if let Some(in_flight) = &mut self.workers[worker] {
            in_flight.push(task);
        }
        Next::Task(task)
    }

    /// Returns the last task of a worker with several in flight, which it alone runs.
    fn task_to_steal(&self) -> Option<usize> {
        let is_alone = |task: usize| {
            let holders = self.workers.iter().flatten().filter(|it| it.contains(&task));
            self.tasks[task] == TaskState::Open && holders.count() == 1
        };
        let several = self.workers.iter().flatten().filter(|it| it.len() > 1);
        several.filter_map(|it| it.last().copied()).find(|task| is_alone(*task))
    }

    /// Takes in the completion of a task; true if this worker is to read its output, and then to
    /// report [`Dispatcher::handle_output`].
    pub fn handle_completion(&mut self, worker: usize, task: usize) -> bool {
        let Some(Some(in_flight)) = self.workers.get_mut(worker) else { return false };
        in_flight.retain(|it| *it != task);
        let is_first = self.tasks[task] == TaskState::Open;
        if is_first {
            self.tasks[task] = TaskState::Claimed(worker);
        }
        is_first
    }

    /// Takes in that the output of a task is there.
    pub fn handle_output(&mut self, worker: usize, task: usize) {
        if self.tasks[task] == TaskState::Claimed(worker) {
            self.tasks[task] = TaskState::Done;
            self.done += 1;
        }
    }

    /// Takes in the loss of a worker. Returns the task that it ran, which may be the cause, and the
    /// number of workers that were lost while they ran it.
    pub fn handle_loss(&mut self, worker: usize) -> Option<(usize, u32)> {
        let in_flight = self.workers.get_mut(worker).and_then(Option::take)?;
        // A worker runs one at a time, in the order of their starts.
        let ran = in_flight.first().copied();
        let losses = ran.map(|task| {
            self.losses[task] += 1;
            (task, self.losses[task])
        });
        let claimed =
            (0..self.tasks.len()).filter(|it| self.tasks[*it] == TaskState::Claimed(worker));
        let claimed: Vec<usize> = claimed.collect();
        for task in in_flight.into_iter().chain(claimed).rev() {
            if self.tasks[task] == TaskState::Claimed(worker) {
                self.tasks[task] = TaskState::Open;
            }
            let is_run = self.workers.iter().flatten().any(|it| it.contains(&task));
            if self.tasks[task] == TaskState::Open && !is_run {
                self.pending.push_front(task);
            }
        }
        losses
    }

    /// Gives out no more tasks.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// True once all tasks are done, or nothing more is given out.
    pub fn is_finished(&self) -> bool {
        self.is_stopped || self.done == self.tasks.len()
    }

    /// True if all tasks are done.
    pub fn is_done(&self) -> bool {
        self.done == self.tasks.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn idle_worker_steals_queued_task() {
        let mut dispatcher = Dispatcher::new(3, 2);
        assert_eq!(
            [dispatcher.poll_task(0), dispatcher.poll_task(0)],
            [Next::Task(0), Next::Task(1)]
        );
        assert_eq!([dispatcher.poll_task(1), dispatcher.poll_task(1)], [Next::Task(2), Next::Wait]);
        assert!(dispatcher.handle_completion(1, 2));
        dispatcher.handle_output(1, 2);
        assert_eq!(dispatcher.poll_task(1), Next::Task(1), "queued behind task 0");
        assert!(dispatcher.handle_completion(1, 1) && !dispatcher.handle_completion(0, 1));
        assert_eq!(dispatcher.poll_task(1), Next::Wait, "task 0 runs");
        assert_eq!(dispatcher.handle_loss(1), None, "nothing was in flight");
        assert_eq!(dispatcher.poll_task(0), Next::Task(1), "its output was not read");
    }

    #[test]
    fn losses_count_for_running_task() {
        let mut dispatcher = Dispatcher::new(3, 3);
        for task in 0..2 {
            assert_eq!(dispatcher.poll_task(0), Next::Task(task));
        }
        assert_eq!(dispatcher.handle_loss(0), Some((0, 1)), "task 1 was queued behind it");
        assert_eq!(dispatcher.handle_loss(0), None, "told before");
        assert_eq!(dispatcher.poll_task(1), Next::Task(0));
        assert_eq!(dispatcher.poll_task(2), Next::Task(1));
        assert_eq!(dispatcher.handle_loss(1), Some((0, 2)));
        assert_eq!(dispatcher.handle_loss(2), Some((1, 1)));
    }

    #[test]
    fn stopped_dispatcher_finishes() {
        let mut dispatcher = Dispatcher::new(2, 1);
        assert_eq!(dispatcher.poll_task(0), Next::Task(0));
        dispatcher.stop();
        assert_eq!(dispatcher.poll_task(0), Next::Finished);
        assert!(!dispatcher.is_done());
        assert!(Dispatcher::new(0, 1).is_done());
    }

    proptest! {
        /// Workers that complete in any order and die at any time: while one lives, each task is done
        /// exactly once, by a living worker.
        #[test]
        fn each_task_is_done_once(
            tasks in 0usize..30,
            workers in 1usize..5,
            steps in proptest::collection::vec((0usize..5, 0u8..40), 0..200),
        ) {
            let mut dispatcher = Dispatcher::new(tasks, workers);
            let mut world = World::new(tasks, workers);
            for (worker, act) in steps {
                let worker = worker % workers;
                match act {
                    // The last one survives.
                    0 if world.living() > 1 => world.kill(&mut dispatcher, worker),
                    1 => world.die_while_reading(&mut dispatcher, worker),
                    2..20 => world.take(&mut dispatcher, worker),
                    _ => world.complete(&mut dispatcher, worker, usize::from(act)),
                }
            }
            for _ in 0..2 * tasks + 2 {
                for worker in 0..workers {
                    world.take(&mut dispatcher, worker);
                    world.complete(&mut dispatcher, worker, 0);
                }
            }
            prop_assert!(dispatcher.is_done() && dispatcher.is_finished());
            prop_assert!(world.outputs.iter().all(|outputs| *outputs == 1), "{:?}", world.outputs);
        }
    }

    /// Model of the workers: two mailboxes each.
    struct World {
        in_flight: Vec<Option<Vec<usize>>>,
        outputs: Vec<u32>,
    }

    impl World {
        fn new(tasks: usize, workers: usize) -> Self {
            Self { in_flight: vec![Some(Vec::new()); workers], outputs: vec![0; tasks] }
        }

        fn living(&self) -> usize {
            self.in_flight.iter().flatten().count()
        }

        fn take(&mut self, dispatcher: &mut Dispatcher, worker: usize) {
            let Some(in_flight) = self.in_flight[worker].as_mut().filter(|it| it.len() < 2) else {
                return;
            };
            if let Next::Task(task) = dispatcher.poll_task(worker) {
                assert!(!in_flight.contains(&task));
                in_flight.push(task);
            }
        }

        fn complete(&mut self, dispatcher: &mut Dispatcher, worker: usize, which: usize) {
            let Some(in_flight) = &mut self.in_flight[worker] else { return };
            if in_flight.is_empty() {
                return;
            }
            let task = in_flight.remove(which % in_flight.len());
            if dispatcher.handle_completion(worker, task) {
                self.outputs[task] += 1;
                dispatcher.handle_output(worker, task);
            }
        }

        fn kill(&mut self, dispatcher: &mut Dispatcher, worker: usize) {
            self.in_flight[worker] = None;
            dispatcher.handle_loss(worker);
        }

        fn die_while_reading(&mut self, dispatcher: &mut Dispatcher, worker: usize) {
            let first = self.in_flight[worker].as_ref().and_then(|it| it.first().copied());
            if let Some(task) = first.filter(|_| self.living() > 1) {
                dispatcher.handle_completion(worker, task);
                self.kill(dispatcher, worker);
            }
        }
    }
}
