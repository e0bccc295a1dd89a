//! Several accelerators as one (Venice, section 5.2.2 and Fig. 11: the library that dispatches tasks to
//! mailboxes).

mod dispatcher;

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use venice_rack::types::ServiceAccess;

pub use self::dispatcher::{Dispatcher, Next};
use crate::mailbox::{
    DonorCounts, Executable, MailboxError, Mailboxes, ResultCode, TaskError, TaskResult, output_len,
};

/// Accelerators that a task may run on until they are lost: then it is taken for the cause.
const MAX_LOSSES: u32 = 2;
/// Interval in which a call looks whether it is to go on.
const LOOK_EVERY: Duration = Duration::from_millis(30);
/// Time for the donor's reason of a loss, from its notice on.
const REASON_WITHIN: Duration = Duration::from_secs(3);
/// Interval of looks for it.
const REASON_EVERY: Duration = Duration::from_millis(10);

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
    /// The caller ended it. Tasks that run already go on.
    #[error("interrupted by the caller")]
    Interrupted,
}

/// Source of donors' reasons of losses: of the accelerator with this number, `None` while there is
/// none.
type Reasons = Box<dyn Fn(usize) -> Option<String> + Send + Sync>;

/// Accelerators that run tasks together. Each has one thread during a call, and as many tasks in
/// flight as it has mailboxes: one is transferred while another runs.
pub struct Pool {
    members: Vec<Member>,
    reasons: Option<Reasons>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("members", &self.members).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Member {
    node: String,
    mailboxes: Mailboxes,
    lost: Option<Loss>,
}

/// Loss of an accelerator, as its recipient has noticed it.
#[derive(Clone, Debug)]
struct Loss {
    why: String,
    at: Instant,
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
        if members.is_empty() {
            return Err(PoolError::Empty);
        }
        Ok(Self { members, reasons: None })
    }

    /// Names a source of the donors' reasons of losses, by the accelerators' places in
    /// [`Pool::open`]; it returns `None` while it has none. Without one, and if it has none within
    /// three seconds of the loss, the reason is what the recipient has noticed.
    pub fn set_reasons(
        &mut self,
        reasons: impl Fn(usize) -> Option<String> + Send + Sync + 'static,
    ) {
        self.reasons = Some(Box::new(reasons));
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
        let members = self.members.iter().enumerate();
        members.filter_map(|(at, it)| Some((it.node.clone(), self.why_lost(at)?))).collect()
    }

    /// Returns the reason of a loss; waits for the donor's.
    fn why_lost(&self, member: usize) -> Option<String> {
        let Loss { why, at } = self.members[member].lost.clone()?;
        let Some(reasons) = &self.reasons else { return Some(why) };
        loop {
            if let Some(reason) = reasons(member) {
                return Some(reason);
            }
            if at.elapsed() >= REASON_WITHIN {
                return Some(why);
            }
            std::thread::sleep(REASON_EVERY);
        }
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
        self.map_while(executable, inputs, outputs, || true)
    }

    /// The same, as long as `goes_on`, which this thread asks each 30 ms. Once it returns false no
    /// more tasks are started; those that run go on, and the next call waits for them.
    ///
    /// # Errors
    /// The errors of [`Pool::map_into`]; [`PoolError::Interrupted`] if `goes_on` has returned false.
    pub fn map_while(
        &mut self,
        executable: &Executable,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        mut goes_on: impl FnMut() -> bool,
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
            working: Mutex::new(self.len()),
            ended: Condvar::new(),
        };
        std::thread::scope(|scope| {
            for (number, member) in self.members.iter_mut().enumerate() {
                if member.lost.is_some() {
                    run.lock().handle_loss(number);
                    continue;
                }
                let run = &run;
                scope.spawn(move || {
                    let _ended = EndsWork(run);
                    run.serve(number, member);
                });
            }
            run.attend(&mut goes_on);
        });
        run.end(self)
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
    failure: Mutex<Option<Failure>>,
    /// Lost accelerators that ran each task.
    lost_at: Mutex<BTreeMap<usize, Vec<usize>>>,
    /// Accelerators whose threads work.
    working: Mutex<usize>,
    /// Notified when one has ended.
    ended: Condvar,
}

/// First failure of a call.
enum Failure {
    Said(PoolError),
    /// These accelerators were lost while they ran the task. Their reasons are looked for when all
    /// threads have ended.
    Losses {
        task: usize,
        members: Vec<usize>,
    },
}

/// Reports the end of a thread, also by a panic.
struct EndsWork<'a, 'b>(&'a Run<'b>);

impl Drop for EndsWork<'_, '_> {
    fn drop(&mut self) {
        *locked(&self.0.working) -= 1;
        self.0.ended.notify_all();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Run<'_> {
    fn lock(&self) -> MutexGuard<'_, Dispatcher> {
        locked(&self.dispatcher)
    }

    /// Waits until all threads have ended; ends them if the call is not to go on.
    fn attend(&self, goes_on: &mut impl FnMut() -> bool) {
        let mut working = locked(&self.working);
        while *working > 0 {
            let waited = self.ended.wait_timeout(working, LOOK_EVERY);
            let (still, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            drop(still);
            if timeout.timed_out() && !goes_on() {
                return self.fail(Failure::Said(PoolError::Interrupted));
            }
            working = locked(&self.working);
        }
    }

    /// Runs tasks on one accelerator until none is left, or it is lost.
    fn serve(&self, number: usize, member: &mut Member) {
        if let Err(error) = self.run_tasks(number, member) {
            member.lost = Some(Loss { why: error.to_string(), at: Instant::now() });
            let ran = self.lock().handle_loss(number);
            if let Some((task, losses)) = ran {
                self.note_loss(task, losses, number);
            }
            self.changed.notify_all();
        }
    }

    /// Notes the loss of an accelerator that ran a task. One that has been lost with several fails,
    /// before it ends all others.
    fn note_loss(&self, task: usize, losses: u32, member: usize) {
        let mut lost_at = locked(&self.lost_at);
        let members = lost_at.entry(task).or_default();
        members.push(member);
        if losses >= MAX_LOSSES {
            self.fail(Failure::Losses { task, members: members.clone() });
        }
    }

    /// Runs tasks. The error is the accelerator's loss.
    fn run_tasks(&self, number: usize, member: &mut Member) -> Result<(), MailboxError> {
        let mailboxes = member.mailboxes.shape().mailboxes;
        // What an earlier call left running.
        for mailbox in
            (0..mailboxes).filter(|it| member.mailboxes.is_started(*it)).collect::<Vec<_>>()
        {
            if self.wait(member, mailbox)?.is_none() {
                return Ok(());
            }
        }
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
                self.fail(Failure::Said(PoolError::Refused { task, node, source }));
                Ok(false)
            }
        }
    }

    /// Waits for a task's completion; `None`: nothing is awaited any more.
    fn wait(&self, member: &mut Member, mailbox: u32) -> Result<Option<TaskResult>, MailboxError> {
        loop {
            let result = member.mailboxes.wait_within(mailbox, Some(LOOK_EVERY))?;
            if result.is_some() || self.lock().is_finished() {
                return Ok(result);
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
        let Some(result) = self.wait(member, mailbox)? else { return Ok(()) };
        if !self.lock().handle_completion(number, task) {
            return Ok(());
        }
        if let Err(source) = result.outcome {
            let node = member.node.clone();
            self.fail(Failure::Said(PoolError::Task { task, node, source }));
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

    fn fail(&self, failure: Failure) {
        locked(&self.failure).get_or_insert(failure);
        self.lock().stop();
        self.changed.notify_all();
    }

    fn end(self, pool: &Pool) -> Result<Vec<usize>, PoolError> {
        let reason = |at: usize| pool.why_lost(at).unwrap_or_default();
        let node = |at: usize| pool.members[at].node.clone();
        match self.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(Failure::Said(error)) => return Err(error),
            Some(Failure::Losses { task, members }) => {
                let each = members.iter().map(|at| format!("of {} ({})", node(*at), reason(*at)));
                let each: Vec<_> = each.collect();
                let said = format!("accelerators were lost while they ran it: {}", each.join(", "));
                let source = TaskError::new(ResultCode::Failed, said);
                let node = members.last().map(|at| node(*at)).unwrap_or_default();
                return Err(PoolError::Task { task, node, source });
            }
            None => {}
        }
        let dispatcher = self.dispatcher.into_inner().unwrap_or_else(PoisonError::into_inner);
        if !dispatcher.is_done() {
            let last = pool.members.iter().rposition(|it| it.lost.is_some());
            let last = last.map(|at| (node(at), reason(at)));
            let (node, why) = last.unwrap_or_default();
            return Err(PoolError::Lost { node, why });
        }
        let len = |place: Mutex<(&mut [u8], usize)>| {
            place.into_inner().unwrap_or_else(PoisonError::into_inner).1
        };
        Ok(self.outputs.into_iter().map(len).collect())
    }
}
