//! Threads that wait for the ends of commands: a few, so that streams seldom wait for each other.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use venice_service::ConnectionId;

use super::Brought;
use super::objects::OwnedEvent;
use crate::cuda::library::{Library, call, code};
use crate::stream::host::Inbox;

/// Threads for streams; one more waits for everything.
const THREADS: u64 = 32;

/// How the end is told.
#[derive(Debug)]
pub(super) enum Reply {
    /// By the answer of a request.
    Answer(u64),
    /// By a notice.
    Notice(u64),
}

/// Something that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) connection: ConnectionId,
    pub(super) reply: Reply,
    pub(super) code: i32,
}

/// Something to wait for.
#[derive(Debug)]
pub(super) enum Target {
    /// An event, in the queue of its stream.
    Event { stream: u64, event: Arc<OwnedEvent> },
    /// All commands.
    Everything,
}

type Job = (ConnectionId, Target, Reply);

/// The threads.
pub(super) struct Waiters {
    library: &'static Library,
    context: usize,
    inbox: Arc<Inbox<Brought>>,
    threads: Vec<Option<Sender<Job>>>,
}

impl Waiters {
    pub(super) fn new(
        library: &'static Library,
        context: usize,
        inbox: &Arc<Inbox<Brought>>,
    ) -> Self {
        let threads = (0..=THREADS).map(|_| None).collect();
        Self { library, context, inbox: Arc::clone(inbox), threads }
    }

    /// Has a thread wait; the inbox gets the end.
    ///
    /// # Errors
    /// The reply, if no thread can be started.
    pub(super) fn wait(
        &mut self,
        connection: ConnectionId,
        target: Target,
        reply: Reply,
    ) -> Result<(), Reply> {
        let place = match &target {
            Target::Event { stream, .. } => stream % THREADS,
            Target::Everything => THREADS,
        } as usize;
        if self.threads[place].is_none() {
            self.threads[place] = self.start();
        }
        let Some(thread) = &self.threads[place] else { return Err(reply) };
        thread.send((connection, target, reply)).map_err(|failed| failed.0.2)
    }

    fn start(&self) -> Option<Sender<Job>> {
        let (sender, jobs) = channel::<Job>();
        let (library, context, inbox) = (self.library, self.context, Arc::clone(&self.inbox));
        let run = move || {
            let _ = call!(library, cuCtxSetCurrent(context));
            for (connection, target, reply) in jobs {
                let done = match &target {
                    Target::Event { event, .. } => call!(library, cuEventSynchronize(event.raw)),
                    Target::Everything => call!(library, cuCtxSynchronize()),
                };
                let code = done.err().map_or(0, |error| code(&error));
                // The last user of an event destroys it before the end is known.
                drop(target);
                inbox.put(Brought::Ended(Ended { connection, reply, code }));
            }
        };
        std::thread::Builder::new().name("venice-wait".into()).spawn(run).ok()?;
        Some(sender)
    }
}
