//! An accelerator with its mailboxes: the protocol joined to memory and executor, for real and for
//! virtual time.

use super::donor::{Completion, DonorCounts, MailboxDonor, Ticket};
use super::executor::{Executor, MailboxMemory, TaskBuffers};
use super::layout::{Attention, MAGIC, Places, Shape, VERSION, at};
use super::outcome::{Outcome, ResultCode, TaskError};
use super::task::{RequestError, Task};

/// An accelerator and its mailboxes.
///
/// Its owner looks, computes and flags, again and again, and sleeps until [`MailboxDevice::poll_timeout`]
/// or a doorbell. It has neither thread nor clock.
pub struct MailboxDevice<M> {
    memory: M,
    shape: Shape,
    donor: MailboxDonor,
    executor: Box<dyn Executor>,
    request: Vec<u8>,
    /// Bytes of inputs and outputs.
    moved: (u64, u64),
    /// Number behind the last byte that tasks have printed.
    printed: u64,
}

impl<M: MailboxMemory> MailboxDevice<M> {
    /// Writes the heads of the mailboxes to `memory`, which is zeroed. `generation` is a number that
    /// no other start of a host has.
    ///
    /// # Errors
    /// Fails if the shape is unsound or larger than the memory.
    pub fn new(
        memory: M,
        shape: Shape,
        executor: Box<dyn Executor>,
        generation: u64,
    ) -> Result<Self, String> {
        shape.check()?;
        for mailbox in 0..shape.mailboxes {
            let head = shape.places(mailbox).head;
            let mut bytes = MAGIC.to_vec();
            bytes.extend_from_slice(&VERSION.to_le_bytes());
            let sizes = [generation, shape.request_bytes, shape.input_bytes, shape.return_bytes];
            sizes.iter().for_each(|size| bytes.extend_from_slice(&size.to_le_bytes()));
            let end = head + shape.mailbox_bytes() - 1;
            if !memory.write(end, &[0]) || !memory.write(head, &bytes) {
                return Err(format!("mailbox {mailbox} leaves the memory"));
            }
        }
        let donor = MailboxDonor::new(shape.mailboxes);
        Ok(Self { memory, shape, donor, executor, request: Vec::new(), moved: (0, 0), printed: 0 })
    }

    /// Looks at all start words; true if a new one was there.
    pub fn look(&mut self, now_ns: u64) -> bool {
        let before = self.donor.is_waiting();
        for mailbox in 0..self.shape.mailboxes {
            let word = self.memory.load_word(self.shape.places(mailbox).head + at::START);
            self.donor.handle_start(now_ns, mailbox, word.unwrap_or(0));
        }
        self.donor.is_waiting() && !before
    }

    /// Computes the next task, if the accelerator is free; false if there is none. `clock` is read
    /// afterwards, in nanoseconds.
    pub fn compute(&mut self, clock: impl FnOnce() -> u64) -> bool {
        self.compute_from(clock, |_| {})
    }

    /// The same; `begun` is told the time from which the task runs, before it is computed.
    pub fn compute_from(&mut self, clock: impl FnOnce() -> u64, begun: impl FnOnce(u64)) -> bool {
        let Some(ticket) = self.donor.poll_task() else { return false };
        self.donor.running_since_ns().map(begun);
        let (outcome, least_ns) = self.run(ticket);
        self.donor.handle_computed(clock(), outcome, least_ns);
        true
    }

    /// Flags the completion that is due and returns it.
    pub fn flag(&mut self, now_ns: u64) -> Option<Completion> {
        let printed = self.printed;
        let completion = Completion { printed, ..self.donor.poll_completion(now_ns)? };
        let Places { head, output, .. } = self.shape.places(completion.ticket.mailbox);
        let is_written = self.memory.write(output, completion.result.log().as_bytes())
            && self.memory.write(head + at::RESULT, &completion.result.emit())
            && self.memory.store_word(head + at::PRINTED, printed)
            && self.memory.store_word(head + at::COMPLETION, completion.ticket.sequence);
        assert!(is_written, "the heads lie in the memory");
        Some(completion)
    }

    /// Tells recipients that map the mailboxes if they have to ring.
    pub fn set_attention(&self, attention: Attention) {
        for mailbox in 0..self.shape.mailboxes {
            let head = self.shape.places(mailbox).head;
            let is_written = self.memory.store_word(head + at::ATTENTION, attention as u64);
            assert!(is_written, "the heads lie in the memory");
        }
    }

    /// Returns the time at which a completion is due; `None`: no task is running.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.donor.poll_timeout()
    }

    /// Returns what tasks have printed since the last call.
    pub fn take_output(&mut self) -> Vec<u8> {
        self.executor.take_output()
    }

    /// Sets the number behind the last byte that tasks have printed, for the next completion.
    pub fn set_printed(&mut self, printed: u64) {
        self.printed = printed;
    }

    /// Returns the counters.
    pub fn counts(&self) -> DonorCounts {
        self.donor.counts()
    }

    /// Returns the bytes of requests with their inputs, and of outputs, so far.
    pub fn moved_bytes(&self) -> (u64, u64) {
        self.moved
    }

    /// Fills a mailbox and starts a task in it, as a recipient does: for a device in memory of the
    /// program's own. False if the input or a buffer is longer than the mailbox's.
    ///
    /// # Errors
    /// [`RequestError`].
    ///
    /// # Panics
    /// If there is no such mailbox.
    pub fn start(&self, mailbox: u32, task: &Task, input: &[u8]) -> Result<bool, RequestError> {
        let places = self.shape.places(mailbox);
        let mut request = Vec::new();
        task.emit(&mut request)?;
        let is_short = request.len() as u64 <= self.shape.request_bytes
            && input.len() as u64 <= self.shape.input_bytes;
        let start = places.head + at::START;
        Ok(is_short
            && self.memory.write(places.input, input)
            && self.memory.write(places.request, &request)
            && self.memory.store_word(places.head + at::REQUEST_BYTES, request.len() as u64)
            && self
                .memory
                .load_word(start)
                .is_some_and(|last| self.memory.store_word(start, last.wrapping_add(1))))
    }

    /// Reads the first bytes of a mailbox's return buffer; false beyond its end.
    ///
    /// # Panics
    /// If there is no such mailbox.
    #[must_use]
    pub fn read_output(&self, mailbox: u32, into: &mut [u8]) -> bool {
        let is_inside = into.len() as u64 <= self.shape.return_bytes;
        is_inside && self.memory.read(self.shape.places(mailbox).output, into)
    }

    /// Returns the memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Runs a task; returns its outcome and its least time.
    fn run(&mut self, ticket: Ticket) -> (Outcome, u64) {
        let places = self.shape.places(ticket.mailbox);
        let task = match self.read_task(places) {
            Ok(task) => task,
            Err(error) => return (Err(error), 0),
        };
        let mut buffers = TaskBuffers {
            memory: &self.memory,
            input_at: places.input,
            input_bytes: task.input_bytes,
            output_at: places.output,
            output_bytes: task.output_bytes,
        };
        let outcome = self.executor.run(&task, &mut buffers);
        let (stored, loaded) = self.moved;
        let request_bytes = self.request.len() as u64;
        self.moved =
            (stored + request_bytes + task.input_bytes, loaded + *outcome.as_ref().unwrap_or(&0));
        (outcome, self.executor.least_time_ns(&task))
    }

    /// Reads and checks the request: once, since the recipient can change it at any time.
    fn read_task(&mut self, places: Places) -> Result<Task, TaskError> {
        let malformed = |said: String| TaskError::new(ResultCode::Malformed, said);
        let len = self.memory.load_word(places.head + at::REQUEST_BYTES).unwrap_or(0);
        if len > self.shape.request_bytes {
            let most = self.shape.request_bytes;
            return Err(malformed(format!("request of {len} bytes: at most {most}")));
        }
        self.request.resize(len as usize, 0);
        if !self.memory.read(places.request, &mut self.request) {
            return Err(malformed("request outside the region".to_owned()));
        }
        let task = Task::parse(&self.request).map_err(|error| malformed(error.to_string()))?;
        for (what, bytes, most) in [
            ("input", task.input_bytes, self.shape.input_bytes),
            ("output", task.output_bytes, self.shape.return_bytes),
        ] {
            if bytes > most {
                return Err(malformed(format!("{what} of {bytes} bytes: at most {most}")));
            }
        }
        Ok(task)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::emulated::EmulatedAccelerator;
    use super::super::executor::PrivateMemory;
    use super::super::outcome::TaskResult;
    use super::super::task::Executable;
    use super::*;

    const SHAPE: Shape =
        Shape { mailboxes: 2, request_bytes: 4096, input_bytes: 8192, return_bytes: 8192 };

    fn device(model: &str) -> MailboxDevice<PrivateMemory> {
        let memory = PrivateMemory::new(SHAPE.region_bytes() as usize);
        let executor = Box::new(EmulatedAccelerator::new(model.parse().unwrap()));
        MailboxDevice::new(memory, SHAPE, executor, 1).unwrap()
    }

    fn start(device: &MailboxDevice<PrivateMemory>, mailbox: u32, sequence: u64, request: &[u8]) {
        let (places, memory) = (SHAPE.places(mailbox), device.memory());
        assert!(memory.write(places.request, request));
        let len = request.len() as u64;
        assert!(memory.store_word(places.head + at::REQUEST_BYTES, len));
        assert!(memory.store_word(places.head + at::START, sequence));
    }

    fn request(executable: Executable, input_bytes: u64, output_bytes: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        Task { executable, input_bytes, output_bytes }.emit(&mut bytes).unwrap();
        bytes
    }

    /// Lets virtual time pass until nothing is due; returns time and result of each completion.
    fn run(device: &mut MailboxDevice<PrivateMemory>, mut now_ns: u64) -> Vec<(u64, TaskResult)> {
        let mut done = Vec::new();
        loop {
            device.look(now_ns);
            device.compute(|| now_ns);
            done.extend(device.flag(now_ns).map(|it| (now_ns, it.result)));
            match device.poll_timeout() {
                Some(due_ns) => now_ns = now_ns.max(due_ns),
                None if device.look(now_ns) || device.donor.is_waiting() => {}
                None => return done,
            }
        }
    }

    #[test]
    fn virtual_time_is_the_models() {
        let mut device = device("sum@1KB/s");
        let ones = 1f32.to_le_bytes().repeat(1000);
        for mailbox in 0..2 {
            assert!(device.memory().write(SHAPE.places(mailbox).input, &ones));
            start(&device, mailbox, 1, &request(Executable::built_in("sum"), 4000, 8));
        }
        let done = run(&mut device, 0);
        let second = 1_000_000_000;
        assert_eq!(done.iter().map(|it| it.0).collect::<Vec<_>>(), [4 * second, 8 * second]);
        assert!(done.iter().all(|it| it.1 == TaskResult { outcome: Ok(8), time_ns: 4 * second }));
        let mut sum = [0; 8];
        assert!(device.memory().read(SHAPE.places(1).output, &mut sum));
        assert_eq!(f64::from_le_bytes(sum), 1000.0);
        let word = device.memory().load_word(SHAPE.places(1).head + at::COMPLETION);
        assert_eq!((word, device.counts().tasks), (Some(1), 2));
    }

    #[test]
    fn unsound_requests_are_refused() {
        let mut device = device("sum@64MB/s");
        let sum = || Executable::built_in("sum");
        let (none, fft) = (Vec::new(), request(Executable::built_in("fft"), 8192, 8192));
        for (sequence, (bytes, len, code)) in [
            (none, None, ResultCode::Malformed),
            (request(sum(), 8193, 8), None, ResultCode::Malformed),
            (request(sum(), 4, u64::MAX), None, ResultCode::Malformed),
            (request(sum(), 4, 8), Some(u64::MAX), ResultCode::Malformed),
            (request(sum(), 4, 8), Some(4097), ResultCode::Malformed),
            (request(sum(), 4, 7), None, ResultCode::OutputTooLong),
            (request(sum(), 5, 8), None, ResultCode::Malformed),
            (fft, None, ResultCode::Unsupported),
        ]
        .into_iter()
        .enumerate()
        {
            start(&device, 0, sequence as u64 + 1, &bytes);
            if let Some(len) = len {
                assert!(device.memory().store_word(at::REQUEST_BYTES, len));
            }
            let (_, result) = run(&mut device, 0).pop().unwrap();
            assert_eq!(result.outcome.unwrap_err().code, code, "request {sequence}");
        }
    }

    proptest! {
        /// Whatever a recipient writes, the device answers each start and goes on.
        #[test]
        fn hostile_memory_is_survived(
            writes in proptest::collection::vec((0u64..10_000, any::<u64>()), 0..40),
            starts in proptest::collection::vec((0u32..2, any::<u64>()), 1..6),
        ) {
            let mut device = device("fft+sum+scale@64MB/s");
            start(&device, 0, 1, &request(Executable::built_in("fft").with_number(512), 8192, 8192));
            for (at, word) in writes {
                assert!(device.memory().store_word(at, word));
            }
            for (mailbox, word) in starts {
                let at = SHAPE.places(mailbox).head + at::START;
                assert!(device.memory().store_word(at, word));
                run(&mut device, 0);
            }
        }
    }
}
