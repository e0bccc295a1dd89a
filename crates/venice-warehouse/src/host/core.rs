//! A core: whose work it does.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use venice_simkernel::random::Stream;

use super::noise::Background;
use super::thread::{SocketId, ThreadId};

/// Work of the kernel outside threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum KernelWork {
    /// The next packet of the ring.
    Packet,
    /// Timers of a connection.
    Timer(SocketId),
}

/// A core. The kernel's work comes before that of threads, and delays the thread that runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Core {
    /// Work of the kernel in progress. Its end is an event.
    pub kernel: Option<KernelWork>,
    /// Timers that have expired.
    pub timers: VecDeque<SocketId>,
    /// Nothing begins before: the kernel still does what its last work led to.
    pub free_at: u64,
    /// The thread that runs.
    pub thread: Option<ThreadId>,
    /// The end of its step, if the kernel has no more work until then.
    pub step_ends: u64,
    /// The number of the event that ends the step; older ones are void.
    pub step_event: u32,
    /// The time since which the thread has the core.
    pub thread_since: u64,
    /// Threads that wait for the core.
    pub queue: VecDeque<ThreadId>,
    /// The thread that ran last.
    pub last: Option<ThreadId>,
    /// Packets in a row without a thread.
    pub polled: u32,
    /// The time at which packets wait for threads since, as their budget is used up (`ksoftirqd`).
    pub deferred: Option<u64>,
    /// The work on it that no program asked for.
    pub background: Background,
}

impl Core {
    /// An idle core, whose noise draws from `random`.
    pub fn new(random: Stream) -> Self {
        Self {
            kernel: None,
            timers: VecDeque::new(),
            free_at: 0,
            thread: None,
            step_ends: 0,
            step_event: 0,
            thread_since: 0,
            queue: VecDeque::new(),
            last: None,
            polled: 0,
            deferred: None,
            background: Background::new(random),
        }
    }

    /// True if it does nothing.
    pub fn is_idle(&self) -> bool {
        self.kernel.is_none() && self.thread.is_none() && self.queue.is_empty()
    }

    /// Delays the running thread: the kernel takes the core for this time.
    pub fn delay_thread(&mut self, time: u64) {
        if self.thread.is_some() {
            self.step_ends += time;
        }
    }
}
