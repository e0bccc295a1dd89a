//! Tasks that follow the ends of events: they may wait, so they have threads of their own.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::thread;

/// Callbacks of the program, which may wait for a device.
pub static CALLBACKS: Followers = Followers::new("venice-callback");
/// Commands by which other devices learn of an end.
pub static COMMANDS: Followers = Followers::new("venice-events");
/// Contents on their way from device to device.
pub static TRANSITS: Followers = Followers::new("venice-transits");

/// Tasks, which a thread does one after the other.
pub struct Followers {
    thread: &'static str,
    tasks: Mutex<Tasks>,
    added: Condvar,
}

struct Tasks {
    waiting: VecDeque<Task>,
    has_thread: bool,
}

/// Something that follows the end of an event.
type Task = Box<dyn FnOnce() + Send>;

impl Followers {
    const fn new(thread: &'static str) -> Self {
        let tasks = Mutex::new(Tasks { waiting: VecDeque::new(), has_thread: false });
        Self { thread, tasks, added: Condvar::new() }
    }

    /// Does a task on the thread.
    pub fn follow(&'static self, task: Task) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.waiting.push_back(task);
        if !tasks.has_thread {
            tasks.has_thread = thread::start(self.thread, || self.follow_all()).is_ok();
        }
        self.added.notify_one();
    }

    fn follow_all(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match tasks.waiting.pop_front() {
                Some(task) => {
                    drop(tasks);
                    task();
                    tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
                }
                None => tasks = self.added.wait(tasks).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}
