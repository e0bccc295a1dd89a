//! Several accelerators as one (Venice, section 5.2.2 and Fig. 11: the library that dispatches tasks to
//! mailboxes).

mod dispatcher;

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use venice_rack::types::ServiceAccess;

pub use self::dispatcher::{Dispatcher, Next};
use crate::mailbox::{
    DonorCounts, Executable, MailboxError, Mailboxes, ResultCode, TaskError, output_len,
};

/// Accelerators that a task may run on until they are lost: then it is taken for the cause.
const MAX_LOSSES: u32 = 2;

/// Failure of a pool. It names the node.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The pool is empty.
    #[error("no accelerator with mailboxes: request some")]
    Empty,
    /// An accelerator cannot be reached.
    #[error("accelerator of {node}: {source}")]
    Open {
        /// Its node.
        node: String,
        /// Cause.
        source: Box<MailboxError>,
    },
    /// A task failed on its accelerator.
    #[error("task {task} failed on the accelerator of {node}: {source}")]
    Task {
        /// Number of its input, from 0.
        task: usize,
        /// The node.
        node: String,
        /// Cause.
        source: TaskError,
    },
    /// A task cannot be started.
    #[error("task {task} at the accelerator of {node}: {source}")]
    Refused {
        /// Number of its input, from 0.
        task: usize,
        /// The node.
        node: String,
        /// Cause.
        source: Box<MailboxError>,
    },
    /// All accelerators are lost.
    #[error("all accelerators are lost, the last one of {node}: {why}")]
    Lost {
        /// Node of the last one.
        node: String,
        /// Cause.
        why: String,
    },
    /// An output buffer is shorter than the task's output, or their number is not that of the inputs.
    #[error("outputs: {0}")]
    Outputs(String),
}

/// Accelerators that run tasks together. Each has one thread during a call, and as many tasks in
/// flight as it has mailboxes: one is transferred while another runs.
#[derive(Debug)]
pub struct Pool {
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    node: String,
    mailboxes: Mailboxes,
    /// Reason of its loss.
    lost: Option<String>,
}

/// Counters of an accelerator, with its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberCounts {
    /// The node.
    pub node: String,
    /// The counters; `None`: it is lost.
    pub counts: Option<DonorCounts>,
}

impl Pool {
    /// Opens the accelerators of grants, each with the name of its node. Each host answers within
    /// `timeout`, more than zero.
    ///
    /// # Errors
    /// [`PoolError::Empty`]; [`PoolError::Open`] if one cannot be reached.
    pub fn open(
        grants: impl IntoIterator<Item = (String, ServiceAccess)>,
        timeout: Duration,
    ) -> Result<Self, PoolError> {
        let members =
            grants.into_iter().map(|(node, access)| match Mailboxes::open(&access, timeout) {
                Ok(mailboxes) => Ok(Member { node, mailboxes, lost: None }),
                Err(error) => Err(PoolError::Open { node, source: Box::new(error) }),
            });
        let members = members.collect::<Result<Vec<_>, _>>()?;
        if members.is_empty() { Err(PoolError::Empty) } else { Ok(Self { members }) }
    }

    /// Returns the number of accelerators that are not lost.
    pub fn len(&self) -> usize {
        self.members.iter().filter(|member| member.lost.is_none()).count()
    }

    /// True if all accelerators are lost.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the lost accelerators: node and reason.
    pub fn lost(&self) -> Vec<(String, String)> {
        let lost = |member: &Member| Some((member.node.clone(), member.lost.clone()?));
        self.members.iter().filter_map(lost).collect()
    }

    /// Returns the counters of each accelerator.
    pub fn counts(&mut self) -> Vec<MemberCounts> {
        let counts = |member: &mut Member| {
            member.mailboxes.finish_all().ok()?;
            member.mailboxes.counts().ok()
        };
        let each = self.members.iter_mut().map(|member| {
            let counts = if member.lost.is_none() { counts(member) } else { None };
            MemberCounts { node: member.node.clone(), counts }
        });
        each.collect()
    }

    /// Runs the executable on each input; returns the outputs in the order of the inputs. A task whose
    /// accelerator is lost runs on another one; if that is lost too, the task fails. An output has at most
    /// [`Executable::output_bytes`].
    ///
    /// # Errors
    /// The first failure of a task, [`PoolError::Task`] or [`PoolError::Refused`]; then no more tasks
    /// are started. [`PoolError::Lost`].
    pub fn map<I: AsRef<[u8]> + Sync>(
        &mut self,
        executable: &Executable,
        inputs: &[I],
    ) -> Result<Vec<Vec<u8>>, PoolError> {
        let inputs: Vec<&[u8]> = inputs.iter().map(AsRef::as_ref).collect();
        let room = |input: &&[u8]| vec![0; executable.output_bytes(input.len() as u64) as usize];
        let mut outputs: Vec<Vec<u8>> = inputs.iter().map(room).collect();
        let mut places: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        let lens = self.map_into(executable, &inputs, &mut places)?;
        outputs.iter_mut().zip(lens).for_each(|(output, len)| output.truncate(len));
        Ok(outputs)
    }

    /// Runs the executable on each input, with the output in place; returns the length of each in
    /// bytes. The length of a place is the most that the task may return.
    ///
    /// # Errors
    /// The errors of [`Pool::map`]; [`PoolError::Outputs`] if there are not as many places as inputs.
    pub fn map_into(
        &mut self,
        executable: &Executable,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<Vec<usize>, PoolError> {
        if outputs.len() != inputs.len() {
            let said = format!("{} for {} inputs", outputs.len(), inputs.len());
            return Err(PoolError::Outputs(said));
        }
        let dispatcher = Dispatcher::new(inputs.len(), self.members.len());
        let outputs = outputs.iter_mut().map(|place| Mutex::new((&mut **place, 0))).collect();
        let run = Run {
            executable,
            inputs,
            outputs,
            dispatcher: Mutex::new(dispatcher),
            changed: Condvar::new(),
            failure: Mutex::new(None),
            lost_at: Mutex::default(),
        };
        std::thread::scope(|scope| {
            for (number, member) in self.members.iter_mut().enumerate() {
                if member.lost.is_some() {
                    run.lock().handle_loss(number);
                    continue;
                }
                let run = &run;
                scope.spawn(move || run.serve(number, member));
            }
        });
        run.end(&self.members)
    }
}

/// One call of a pool.
struct Run<'a> {
    executable: &'a Executable,
    inputs: &'a [&'a [u8]],
    /// Place and length of each output.
    outputs: Vec<Mutex<(&'a mut [u8], usize)>>,
    dispatcher: Mutex<Dispatcher>,
    /// Notified when the dispatcher may answer otherwise than before.
    changed: Condvar,
    failure: Mutex<Option<PoolError>>,
    /// Nodes of the lost accelerators that ran each task.
    lost_at: Mutex<BTreeMap<usize, Vec<String>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Run<'_> {
    fn lock(&self) -> MutexGuard<'_, Dispatcher> {
        locked(&self.dispatcher)
    }

    /// Runs tasks on one accelerator until none is left, or it is lost.
    fn serve(&self, number: usize, member: &mut Member) {
        if let Err(error) = self.run_tasks(number, member) {
            member.lost = Some(error.to_string());
            let ran = self.lock().handle_loss(number);
            if let Some((task, losses)) = ran {
                self.note_loss(task, losses, &member.node);
            }
            self.changed.notify_all();
        }
    }

    /// Notes the loss of an accelerator that ran a task. One that has been lost with several fails,
    /// before it ends all others.
    fn note_loss(&self, task: usize, losses: u32, node: &str) {
        let mut lost_at = locked(&self.lost_at);
        let nodes = lost_at.entry(task).or_default();
        nodes.push(node.to_owned());
        if losses >= MAX_LOSSES {
            let said = format!("accelerators were lost while they ran it: of {}", nodes.join(", "));
            let source = TaskError::new(ResultCode::Failed, said);
            self.fail(PoolError::Task { task, node: node.to_owned(), source });
        }
    }

    /// Runs tasks. The error is the accelerator's loss.
    fn run_tasks(&self, number: usize, member: &mut Member) -> Result<(), MailboxError> {
        // What an earlier call left running.
        member.mailboxes.finish_all()?;
        let mailboxes = member.mailboxes.shape().mailboxes;
        let mut free: Vec<u32> = (0..mailboxes).rev().collect();
        let mut in_flight = std::collections::VecDeque::new();
        loop {
            while let Some(mailbox) = free.last().copied() {
                let Some(task) = self.next(number, in_flight.is_empty()) else { break };
                if !self.start(member, mailbox, task)? {
                    return Ok(());
                }
                free.pop();
                in_flight.push_back((mailbox, task));
            }
            let Some((mailbox, task)) = in_flight.pop_front() else { return Ok(()) };
            if self.lock().is_finished() {
                // All others are done: this task is another one's too, or is not wanted.
                return Ok(());
            }
            self.finish(number, member, mailbox, task)?;
            free.push(mailbox);
        }
    }

    /// Returns the next task; waits for one if this worker is idle.
    fn next(&self, number: usize, is_idle: bool) -> Option<usize> {
        let mut dispatcher = self.lock();
        loop {
            match dispatcher.poll_task(number) {
                Next::Task(task) => return Some(task),
                Next::Finished => return None,
                Next::Wait if !is_idle => return None,
                Next::Wait => {
                    let waited = self.changed.wait(dispatcher);
                    dispatcher = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Starts a task; false if it cannot be, on any accelerator like this one.
    fn start(&self, member: &mut Member, mailbox: u32, task: usize) -> Result<bool, MailboxError> {
        let room = locked(&self.outputs[task]).0.len() as u64;
        let started = member.mailboxes.start(mailbox, self.executable, self.inputs[task], room);
        match started {
            Ok(()) => Ok(true),
            Err(error) if error.is_lost() => Err(error),
            Err(error) => {
                let (node, source) = (member.node.clone(), Box::new(error));
                self.fail(PoolError::Refused { task, node, source });
                Ok(false)
            }
        }
    }

    /// Waits for a task and reads its output, unless another accelerator was first.
    fn finish(
        &self,
        number: usize,
        member: &mut Member,
        mailbox: u32,
        task: usize,
    ) -> Result<(), MailboxError> {
        let result = member.mailboxes.wait(mailbox)?;
        if !self.lock().handle_completion(number, task) {
            return Ok(());
        }
        if let Err(source) = result.outcome {
            self.fail(PoolError::Task { task, node: member.node.clone(), source });
            return Ok(());
        }
        let mut output = locked(&self.outputs[task]);
        let len = output_len(&result, output.0.len() as u64)?;
        member.mailboxes.read_output(mailbox, 0, &mut output.0[..len])?;
        output.1 = len;
        drop(output);
        self.lock().handle_output(number, task);
        self.changed.notify_all();
        Ok(())
    }

    fn fail(&self, error: PoolError) {
        locked(&self.failure).get_or_insert(error);
        self.lock().stop();
        self.changed.notify_all();
    }

    fn end(self, members: &[Member]) -> Result<Vec<usize>, PoolError> {
        if let Some(error) = self.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        let dispatcher = self.dispatcher.into_inner().unwrap_or_else(PoisonError::into_inner);
        if !dispatcher.is_done() {
            let last =
                members.iter().rev().find_map(|it| Some((it.node.clone(), it.lost.clone()?)));
            let (node, why) = last.unwrap_or_default();
            return Err(PoolError::Lost { node, why });
        }
        let len = |place: Mutex<(&mut [u8], usize)>| {
            place.into_inner().unwrap_or_else(PoisonError::into_inner).1
        };
        Ok(self.outputs.into_iter().map(len).collect())
    }
}
