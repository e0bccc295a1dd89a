//! The recipient's side: fills mailboxes, starts tasks, waits for completions.

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use venice_ports::qpair::QPairSocketError;
use venice_rack::types::ServiceAccess;
use venice_service::{ClientError, ServiceClient, Status};

use super::description::Description;
use super::donor::DonorCounts;
use super::layout::{Attention, MAGIC, MAX_MESSAGE_BYTES, RESULT_BYTES, Shape, VERSION, at};
use super::outcome::TaskResult;
use super::print::print;
use super::service::{AWAIT, COUNTS, DESCRIBE, NAME, OUTPUT, emit_await, parse_counts};
use super::task::{Executable, RequestError, Task};
use crate::region::{Region, RegionError};

/// Time that a wait looks at a mapped completion word before it asks for a message.
const LOOK: Duration = Duration::from_micros(30);

/// Failure of a mailbox, other than that of a task.
#[derive(Debug, thiserror::Error)]
pub enum MailboxError {
    /// The service is absent, or its connection has ended.
    #[error("mailbox: {0}")]
    Service(#[from] ClientError),
    /// The region is absent or lost.
    #[error("mailbox: {0}")]
    Region(#[from] RegionError),
    /// The task has no request.
    #[error("mailbox: {0}")]
    Request(#[from] RequestError),
    /// A buffer of the mailbox is shorter.
    #[error("mailbox: {what} of {bytes} bytes: the accelerator takes {most} at most")]
    TooLong {
        /// Which buffer.
        what: &'static str,
        /// Length in bytes.
        bytes: u64,
        /// Room in bytes.
        most: u64,
    },
    /// The host says what no host of this version says.
    #[error("mailbox: unexpected answer of the host: {0} (protocol error)")]
    Protocol(String),
    /// A task was started in a mailbox whose task has not been waited for, or the reverse.
    #[error("mailbox {mailbox}: {state}")]
    State {
        /// Mailbox.
        mailbox: u32,
        /// State that forbids the call.
        state: &'static str,
    },
}

impl MailboxError {
    /// True if the host is gone, or the way to it.
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Service(error) => !matches!(error, ClientError::NoTime),
            Self::Region(error) => error.is_lost(),
            Self::Protocol(_) => true,
            Self::Request(_) | Self::TooLong { .. } | Self::State { .. } => false,
        }
    }
}

/// The mailboxes of one granted accelerator. One thread uses them at a time, and one program: two
/// would fill the same buffers.
#[derive(Debug)]
pub struct Mailboxes {
    region: Region,
    client: ServiceClient,
    description: Description,
    states: Vec<State>,
    next_id: u64,
    output: TaskOutput,
}

/// Output of tasks on its way to the program's own.
#[derive(Debug, Default)]
struct TaskOutput {
    /// Number behind the last byte that was printed here.
    printed: u64,
    /// Id of the outstanding request.
    asked: Option<u64>,
    answer: Option<Vec<u8>>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the last start.
    sequence: u64,
    is_started: bool,
    /// Id of the outstanding request for its completion.
    asked: Option<u64>,
    /// Completion that came by message, with the length of its message in the return buffer.
    result: Option<Brought>,
    /// Bytes in the request buffer.
    request: Vec<u8>,
}

/// A completion: the result, the length of its message in the return buffer, and the number behind
/// the last byte that tasks have printed.
type Brought = (TaskResult, usize, u64);

impl Mailboxes {
    /// Opens the mailboxes of a grant, of an OpenCL device too. The host answers within `timeout`, more than zero.
    ///
    /// # Errors
    /// Fails if the host is absent, refuses, or speaks another version.
    pub fn open(access: &ServiceAccess, timeout: Duration) -> Result<Self, MailboxError> {
        let named = ServiceAccess { service: NAME.to_owned(), ..access.clone() };
        let mut client = ServiceClient::open(&named, Some(timeout))?;
        let (status, bytes) = client.call(0, DESCRIBE, &[])?;
        if status != Status::OK.0 {
            return Err(MailboxError::Protocol(format!("status {status} to a description")));
        }
        let description = Description::parse(&bytes).map_err(MailboxError::Protocol)?;
        let shape = description.shape;
        let (port, bytes) = (description.udp_port, shape.region_bytes());
        let region = match access.service == NAME {
            true => Region::open(access, port, bytes, timeout)?,
            false => Region::open_beside(access, port, bytes, timeout)?,
        };
        let states = (0..shape.mailboxes).map(|_| State::default()).collect();
        let output = TaskOutput::default();
        let mut opened = Self { region, client, description, states, next_id: 1, output };
        (0..shape.mailboxes).try_for_each(|mailbox| opened.take_over(mailbox))?;
        // From here on a task decides how long a call takes.
        opened.client.set_timeout(None);
        Ok(opened)
    }

    /// Reads the head of a mailbox, and continues at its numbers.
    fn take_over(&mut self, mailbox: u32) -> Result<(), MailboxError> {
        let head = self.description.shape.places(mailbox).head;
        let mut bytes = [0; 16];
        self.region.read(head + at::MAGIC, &mut bytes)?;
        let generation = self.description.generation.to_le_bytes();
        let expected = [&MAGIC[..], &VERSION.to_le_bytes(), &generation].concat();
        if bytes[..] != expected {
            return Err(MailboxError::Protocol(format!("head of mailbox {mailbox}")));
        }
        let start = self.region.load_word(head + at::START)?;
        let completion = self.region.load_word(head + at::COMPLETION)?;
        self.states[mailbox as usize].sequence = start.max(completion);
        // What a program before this one has left is not printed.
        let printed = self.region.load_word(head + at::PRINTED)?;
        self.output.printed = self.output.printed.max(printed);
        Ok(())
    }

    /// Returns number and sizes of the mailboxes.
    pub fn shape(&self) -> Shape {
        self.description.shape
    }

    /// Returns the names of the accelerator's functions.
    pub fn functions(&self) -> &[String] {
        &self.description.functions
    }

    /// Returns the region, for callers that fill the buffers in place ([`Region::mapped`]).
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the place of a mailbox's input buffer in the region.
    ///
    /// # Panics
    /// If there is no such mailbox.
    pub fn input_at(&self, mailbox: u32) -> u64 {
        self.description.shape.places(mailbox).input
    }

    /// Returns the place of a mailbox's return buffer in the region.
    ///
    /// # Panics
    /// If there is no such mailbox.
    pub fn output_at(&self, mailbox: u32) -> u64 {
        self.description.shape.places(mailbox).output
    }

    /// Writes `input`, and starts the executable on it. The output has at most `output_bytes`.
    ///
    /// # Errors
    /// [`MailboxError`]; nothing was started unless the host is lost.
    ///
    /// # Panics
    /// If there is no such mailbox.
    pub fn start(
        &mut self,
        mailbox: u32,
        executable: &Executable,
        input: &[u8],
        output_bytes: u64,
    ) -> Result<(), MailboxError> {
        self.check_room("input", input.len() as u64, self.shape().input_bytes)?;
        if !self.states[mailbox as usize].is_started {
            self.region.write(self.input_at(mailbox), input)?;
        }
        self.start_prepared(mailbox, executable, input.len() as u64, output_bytes)
    }

    /// Starts the executable on the input that is in the input buffer already.
    ///
    /// # Errors
    /// The errors of [`Mailboxes::start`].
    ///
    /// # Panics
    /// If there is no such mailbox.
    pub fn start_prepared(
        &mut self,
        mailbox: u32,
        executable: &Executable,
        input_bytes: u64,
        output_bytes: u64,
    ) -> Result<(), MailboxError> {
        let shape = self.shape();
        let places = shape.places(mailbox);
        if self.states[mailbox as usize].is_started {
            return Err(MailboxError::State { mailbox, state: "its task is not completed" });
        }
        self.check_room("input", input_bytes, shape.input_bytes)?;
        self.check_room("output", output_bytes, shape.return_bytes)?;
        let task = Task { executable: executable.clone(), input_bytes, output_bytes };
        let mut request = Vec::new();
        task.emit(&mut request)?;
        self.check_room("request", request.len() as u64, shape.request_bytes)?;
        let state = &mut self.states[mailbox as usize];
        if state.request != request {
            state.request.clear();
            self.region.write(places.request, &request)?;
            self.region.store_word(places.head + at::REQUEST_BYTES, request.len() as u64)?;
            state.request = request;
        }
        state.sequence += 1;
        state.is_started = true;
        self.region.store_word(places.head + at::START, state.sequence)?;
        self.ring_if_asleep(mailbox)
    }

    /// Asks for the completion's message at once, unless the host's thread looks at the start word.
    fn ring_if_asleep(&mut self, mailbox: u32) -> Result<(), MailboxError> {
        fence(Ordering::SeqCst);
        let head = self.shape().places(mailbox).head;
        let is_looking = self.region.is_mapped()
            && self.region.load_word(head + at::ATTENTION)? == Attention::Looking as u64;
        if is_looking { Ok(()) } else { self.ask(mailbox) }
    }

    /// Sends the request for a completion's message, which is the doorbell too.
    fn ask(&mut self, mailbox: u32) -> Result<(), MailboxError> {
        let state = &mut self.states[mailbox as usize];
        if state.asked.is_some() || state.result.is_some() {
            return Ok(());
        }
        let id = self.next_id;
        self.next_id += 1;
        state.asked = Some(id);
        self.client.request(id, AWAIT, &emit_await(mailbox, state.sequence))?;
        Ok(self.client.flush()?)
    }

    /// Waits for the completion of a mailbox's task, however long it takes. What the task has printed
    /// is on the standard output of this program then.
    ///
    /// # Errors
    /// [`MailboxError::State`] if no task was started; else the host is lost.
    ///
    /// # Panics
    /// If there is no such mailbox.
    pub fn wait(&mut self, mailbox: u32) -> Result<TaskResult, MailboxError> {
        loop {
            if let Some(result) = self.wait_within(mailbox, None)? {
                return Ok(result);
            }
        }
    }

    /// Waits for the completion of a mailbox's task, for at most so long (`None`: without limit);
    /// `None`: the task still runs.
    ///
    /// # Errors
    /// The errors of [`Mailboxes::wait`].
    ///
    /// # Panics
    /// If there is no such mailbox.
    pub fn wait_within(
        &mut self,
        mailbox: u32,
        within: Option<Duration>,
    ) -> Result<Option<TaskResult>, MailboxError> {
        let until = within.map(|within| Instant::now() + within);
        let state = &self.states[mailbox as usize];
        if !state.is_started {
            return Err(MailboxError::State { mailbox, state: "no task was started" });
        }
        if self.region.is_mapped() && state.asked.is_none() && state.result.is_none() {
            let began = Instant::now();
            while began.elapsed() < LOOK {
                if let Some(result) = self.poll_mapped(mailbox)? {
                    return Ok(Some(result));
                }
                std::hint::spin_loop();
            }
        }
        loop {
            let state = &mut self.states[mailbox as usize];
            if let Some(result) = state.result.take() {
                state.is_started = false;
                return self.completed(mailbox, result).map(Some);
            }
            self.ask(mailbox)?;
            if !self.take_answers_until(until)? {
                return Ok(None);
            }
        }
    }

    /// Takes answers; false if none has come until then.
    fn take_answers_until(&mut self, until: Option<Instant>) -> Result<bool, MailboxError> {
        let Some(until) = until else { return self.take_answers().map(|()| true) };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        self.client.set_timeout(Some(left));
        let taken = self.take_answers();
        self.client.set_timeout(None);
        match taken {
            Ok(()) => Ok(true),
            Err(MailboxError::Service(ClientError::QPair(QPairSocketError::TimedOut))) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// True if a task was started in a mailbox and not waited for.
    ///
    /// # Panics
    /// If there is no such mailbox.
    pub fn is_started(&self, mailbox: u32) -> bool {
        self.states[mailbox as usize].is_started
    }

    /// Waits for the tasks that are started, and drops their results.
    ///
    /// # Errors
    /// Fails if the host is lost.
    pub fn finish_all(&mut self) -> Result<(), MailboxError> {
        for mailbox in 0..self.shape().mailboxes {
            if self.states[mailbox as usize].is_started {
                self.wait(mailbox)?;
            }
        }
        Ok(())
    }

    /// Reads the completion of a mapped mailbox, if it is flagged.
    fn poll_mapped(&mut self, mailbox: u32) -> Result<Option<TaskResult>, MailboxError> {
        let head = self.shape().places(mailbox).head;
        let state = &mut self.states[mailbox as usize];
        if self.region.load_word(head + at::COMPLETION)? < state.sequence {
            return Ok(None);
        }
        let mut bytes = [0; RESULT_BYTES + MAX_MESSAGE_BYTES];
        self.region.read(head + at::RESULT, &mut bytes)?;
        state.is_started = false;
        let (result, log_bytes, _) = parse_result(&bytes)?;
        let printed = self.region.load_word(head + at::PRINTED)?;
        self.completed(mailbox, (result, log_bytes, printed)).map(Some)
    }

    /// Completes a result by the message that is in the return buffer, and prints what is new.
    fn completed(
        &mut self,
        mailbox: u32,
        (mut result, log_bytes, printed): Brought,
    ) -> Result<TaskResult, MailboxError> {
        self.print_until(printed)?;
        if let Err(error) = &mut result.outcome
            && log_bytes > 0
        {
            let mut log = vec![0; log_bytes];
            self.read_output(mailbox, 0, &mut log)?;
            error.message = String::from_utf8_lossy(&log).into_owned();
        }
        Ok(result)
    }

    /// Takes output of tasks up to a number, and prints it.
    fn print_until(&mut self, printed: u64) -> Result<(), MailboxError> {
        while self.output.printed < printed {
            let id = self.next_id;
            self.next_id += 1;
            self.output.asked = Some(id);
            self.client.request(id, OUTPUT, &self.output.printed.to_le_bytes())?;
            self.client.flush()?;
            let piece = loop {
                match self.output.answer.take() {
                    Some(piece) => break piece,
                    None => self.take_answers()?,
                }
            };
            print(&piece);
            self.output.printed += piece.len() as u64;
            if piece.is_empty() {
                // Another program has taken it.
                self.output.printed = printed;
            }
        }
        Ok(())
    }

    fn take_answers(&mut self) -> Result<(), MailboxError> {
        for answer in self.client.answers()?.entries() {
            if self.output.asked == Some(answer.id) {
                self.output.asked = None;
                self.output.answer = Some(answer.payload.to_vec());
                continue;
            }
            let of_id = |state: &&mut State| state.asked == Some(answer.id);
            let state = self.states.iter_mut().find(of_id);
            let unexpected = || MailboxError::Protocol(format!("answer {}", answer.id));
            let state = state.ok_or_else(unexpected)?;
            let split = answer.payload.split_first_chunk::<8>();
            match split.filter(|_| answer.code == Status::OK.0) {
                Some((word, result)) if u64::from_le_bytes(*word) >= state.sequence => {
                    state.asked = None;
                    state.result = Some(parse_result(result)?);
                }
                _ => return Err(unexpected()),
            }
        }
        Ok(())
    }

    /// Reads output of a completed task.
    ///
    /// # Errors
    /// [`MailboxError::Region`] beyond the return buffer's end, and if the host is lost.
    ///
    /// # Panics
    /// If there is no such mailbox.
    pub fn read_output(
        &self,
        mailbox: u32,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), MailboxError> {
        let end = offset.saturating_add(into.len() as u64);
        self.check_room("output", end, self.shape().return_bytes)?;
        Ok(self.region.read(self.output_at(mailbox) + offset, into)?)
    }

    /// Runs a task in the first mailbox and waits for it; returns its result, and the output.
    ///
    /// # Errors
    /// The errors of [`Mailboxes::start`] and [`Mailboxes::wait`].
    pub fn run(
        &mut self,
        executable: &Executable,
        input: &[u8],
        output_bytes: u64,
    ) -> Result<(TaskResult, Vec<u8>), MailboxError> {
        self.start(0, executable, input, output_bytes)?;
        let result = self.wait(0)?;
        let mut output = vec![0; output_len(&result, output_bytes)?];
        self.read_output(0, 0, &mut output)?;
        Ok((result, output))
    }

    /// Returns the counters of the host.
    ///
    /// # Errors
    /// Fails if the host is lost, and while tasks are started ([`MailboxError::State`]).
    pub fn counts(&mut self) -> Result<DonorCounts, MailboxError> {
        if let Some(mailbox) = self.states.iter().position(|state| state.asked.is_some()) {
            let mailbox = mailbox as u32;
            return Err(MailboxError::State { mailbox, state: "its task is not completed" });
        }
        let id = self.next_id;
        self.next_id += 1;
        let (_, bytes) = self.client.call(id, COUNTS, &[])?;
        parse_counts(&bytes).ok_or_else(|| MailboxError::Protocol("counters".to_owned()))
    }

    fn check_room(&self, what: &'static str, bytes: u64, most: u64) -> Result<(), MailboxError> {
        if bytes > most { Err(MailboxError::TooLong { what, bytes, most }) } else { Ok(()) }
    }
}

fn parse_result(bytes: &[u8]) -> Result<Brought, MailboxError> {
    let result = TaskResult::parse(bytes);
    let result = result.map_err(|error| MailboxError::Protocol(error.to_string()))?;
    let log_bytes = result.log_bytes(bytes);
    Ok((result, log_bytes, TaskResult::printed_in(bytes).unwrap_or(0)))
}

/// Returns the length of a task's output; 0 if it failed.
///
/// # Errors
/// [`MailboxError::Protocol`] if the host claims more than was allowed.
pub fn output_len(result: &TaskResult, most: u64) -> Result<usize, MailboxError> {
    match &result.outcome {
        Ok(bytes) if *bytes <= most => Ok(*bytes as usize),
        Ok(bytes) => Err(MailboxError::Protocol(format!("output of {bytes} bytes"))),
        Err(_) => Ok(0),
    }
}
