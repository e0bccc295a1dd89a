//! The service `mailbox`: describes an accelerator's mailboxes, is their doorbell, and tells of
//! completions. Tasks and data travel through the region alone.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use venice_ports::{monotonic_ns, random_u64};
use venice_service::{
    Answer, ConnectionId, HostContext, Request, Service, ServiceEntry, ServiceLimits, ServiceUsage,
    Status,
};

use super::description::Description;
use super::device::MailboxDevice;
use super::donor::DonorCounts;
use super::emulated::{EmulatedAccelerator, EmulatedModel};
use super::executor::Executor;
use super::layout::{Attention, Shape};
use super::printed::{PIECE_BYTES, Printed};
use super::waits::Waits;
use crate::region::{RegionHost, key_of};

/// Name of the service.
pub const NAME: &str = "mailbox";
/// Asks for the description of the mailboxes.
pub const DESCRIBE: u16 = 1;
/// Rings the doorbell; answered when a start of a mailbox is completed.
pub const AWAIT: u16 = 2;
/// Asks for the counters.
pub const COUNTS: u16 = 3;
/// Asks for output of tasks, from a byte on.
pub const OUTPUT: u16 = 4;

/// Entry of the service in a host's list. The spec's options describe an emulated accelerator:
/// [`EmulatedModel`].
pub const ENTRY: ServiceEntry = ServiceEntry {
    name: NAME,
    make: |context| {
        let model: EmulatedModel = context.spec.options.parse()?;
        serve_mailboxes(context, Shape::default(), Box::new(EmulatedAccelerator::new(model)))
    },
};

/// Longest sleep of the donor's thread; it then looks whether a doorbell was missed.
const SLEEP: Duration = Duration::from_secs(1);
/// Bounds of the time that the donor's thread looks before it sleeps, in nanoseconds.
const LOOKS_NS: (u64, u64) = (1_000, 50_000);
/// Least time between two log lines about late tasks, in nanoseconds.
const LOG_NS: u64 = 10_000_000_000;
/// Requests of one connection that may be outstanding.
const MAX_OUTSTANDING: u32 = 64;

/// Serves the mailboxes of an accelerator: the region, and a thread that runs the tasks.
///
/// # Errors
/// Says what failed: the region, or the thread.
pub fn serve_mailboxes(
    context: &HostContext<'_>,
    shape: Shape,
    executor: Box<dyn Executor>,
) -> Result<Box<dyn Service>, String> {
    let key = key_of(context.spec.secret.as_bytes());
    serve_in(|bytes| RegionHost::serve(context, key, bytes), shape, executor)
}

/// Serves the mailboxes of an accelerator beside another service of the host, which has a region of
/// its own.
///
/// # Errors
/// The errors of [`serve_mailboxes`].
pub fn serve_mailboxes_beside(
    context: &HostContext<'_>,
    shape: Shape,
    executor: Box<dyn Executor>,
) -> Result<Box<dyn Service>, String> {
    serve_in(|bytes| RegionHost::serve_beside(context, bytes), shape, executor)
}

fn serve_in(
    serve: impl FnOnce(u64) -> Result<RegionHost, String>,
    shape: Shape,
    executor: Box<dyn Executor>,
) -> Result<Box<dyn Service>, String> {
    shape.check()?;
    let system = |step: &str, error: std::io::Error| format!("mailbox: {step}: {error}");
    let region = serve(shape.region_bytes())?;
    let generation = random_u64().map_err(|error| system("random numbers", error.into()))? | 1;
    let functions = executor.functions();
    let udp_port = region.udp_port();
    let description = Description { shape, generation, udp_port, functions }.emit();
    let device = MailboxDevice::new(region, shape, executor, generation)?;
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let bell = eventfd(0, flags).map_err(|error| system("making an eventfd", error.into()))?;
    let shared = Arc::new(Shared {
        bell,
        waits: Mutex::new(Waits::new(shape.mailboxes)),
        progress: Mutex::default(),
        moved: Mutex::default(),
        printed: Mutex::default(),
        is_rung: Mutex::new(false),
        rung: Condvar::new(),
    });
    let theirs = Arc::clone(&shared);
    std::thread::Builder::new()
        .name("venice-mailbox".to_owned())
        .spawn(move || DonorThread { device, shared: theirs, looks: Looks::default() }.run())
        .map_err(|error| system("starting a thread", error))?;
    Ok(Box::new(MailboxService { shared, description, answers: Vec::new() }))
}

/// State shared by the service and the donor's thread.
struct Shared {
    /// Readable when an answer may be ready.
    bell: OwnedFd,
    waits: Mutex<Waits>,
    progress: Mutex<Progress>,
    /// Bytes of requests with their inputs, and of outputs.
    moved: Mutex<(u64, u64)>,
    printed: Mutex<Printed>,
    is_rung: Mutex<bool>,
    rung: Condvar,
}

/// Counters as of the last completion, and the time from which a task runs.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    counts: DonorCounts,
    running_since_ns: Option<u64>,
}

impl Progress {
    /// Returns the busy time; a task that runs counts until now.
    fn busy_ns(&self, now_ns: u64) -> u64 {
        let running = self.running_since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
        self.counts.busy_ns.saturating_add(running)
    }
}

impl Shared {
    /// Wakes the donor's thread.
    fn ring(&self) {
        *lock(&self.is_rung) = true;
        self.rung.notify_one();
    }

    /// Sleeps until the doorbell rings, or for `most`.
    fn sleep(&self, most: Duration) {
        let asleep = |is_rung: &mut bool| !*is_rung;
        let woken = self.rung.wait_timeout_while(lock(&self.is_rung), most, asleep);
        *woken.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that watches the start words and runs the tasks (Venice, section 5.2.2: the donor's
/// kernel thread).
struct DonorThread {
    device: MailboxDevice<RegionHost>,
    shared: Arc<Shared>,
    looks: Looks,
}

impl DonorThread {
    fn run(mut self) -> ! {
        // A host whose accelerator has failed must end, not fall silent.
        let _abort = AbortOnPanic;
        let (mut logged_late, mut log_ns) = (0, 0);
        loop {
            if self.turn() {
                self.looks.found();
            } else if self.device.poll_timeout().is_some() || !self.looks.again(monotonic_ns()) {
                self.sleep();
            } else {
                std::hint::spin_loop();
            }
            let (late, now_ns) = (self.device.counts().late, monotonic_ns());
            if late > logged_late && now_ns >= log_ns {
                eprintln!("mailbox: {late} tasks took longer to compute than the model's time");
                (logged_late, log_ns) = (late, now_ns + LOG_NS);
            }
        }
    }

    /// Does what can be done now; false if nothing could.
    fn turn(&mut self) -> bool {
        let mut any = self.device.look(monotonic_ns());
        let Self { device, shared, .. } = self;
        let begun = |begin_ns| lock(&shared.progress).running_since_ns = Some(begin_ns);
        if device.compute_from(monotonic_ns, begun) {
            any = true;
            // Before the completion, so that a recipient finds it when the task has ended.
            let output = self.device.take_output();
            let printed = lock(&self.shared.printed).add(&output);
            self.device.set_printed(printed);
        }
        if let Some(completion) = self.device.flag(monotonic_ns()) {
            any = true;
            let counts = self.device.counts();
            *lock(&self.shared.progress) = Progress { counts, running_since_ns: None };
            *lock(&self.shared.moved) = self.device.moved_bytes();
            if lock(&self.shared.waits).handle_completion(&completion) {
                // Fails only when the counter is full: then the service is awake.
                let _ = rustix::io::write(&self.shared.bell, &1u64.to_ne_bytes());
            }
        }
        any
    }

    /// Sleeps until a completion is due or the doorbell rings. A recipient rings if it reads, after
    /// its start, that this thread is asleep.
    fn sleep(&mut self) {
        self.device.set_attention(Attention::Asleep);
        fence(Ordering::SeqCst);
        if !self.device.look(monotonic_ns()) {
            let due_ns = self.device.poll_timeout().unwrap_or(u64::MAX);
            let left = Duration::from_nanos(due_ns.saturating_sub(monotonic_ns()));
            self.shared.sleep(left.min(SLEEP));
        }
        self.device.set_attention(Attention::Looking);
        self.looks.begin();
    }
}

struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// Policy of looking before a sleep: twice as long after a find, half as long after none.
struct Looks {
    most_ns: u64,
    until_ns: Option<u64>,
}

impl Default for Looks {
    fn default() -> Self {
        Self { most_ns: LOOKS_NS.0, until_ns: None }
    }
}

impl Looks {
    fn begin(&mut self) {
        self.until_ns = None;
    }

    fn found(&mut self) {
        self.most_ns = (self.most_ns * 2).min(LOOKS_NS.1);
        self.until_ns = None;
    }

    fn again(&mut self, now_ns: u64) -> bool {
        let may = now_ns < *self.until_ns.get_or_insert(now_ns + self.most_ns);
        if !may {
            self.most_ns = (self.most_ns / 2).max(LOOKS_NS.0);
        }
        may
    }
}

/// The service.
struct MailboxService {
    shared: Arc<Shared>,
    description: Vec<u8>,
    answers: Vec<(Answer, Vec<u8>)>,
}

impl Service for MailboxService {
    fn name(&self) -> &'static str {
        NAME
    }

    fn limits(&self) -> ServiceLimits {
        let max_answer_bytes = self.description.len().max(PIECE_BYTES) as u32;
        ServiceLimits { max_request_bytes: 64, max_answer_bytes, max_outstanding: MAX_OUTSTANDING }
    }

    fn handle_request(&mut self, _now_ns: u64, request: Request<'_>) {
        let Request { connection, id, opcode, payload } = request;
        let (status, bytes) = match opcode {
            DESCRIBE => (Status::OK, self.description.clone()),
            AWAIT => match parse_await(payload) {
                Some((mailbox, sequence)) => {
                    lock(&self.shared.waits).handle_wait((connection, id), mailbox, sequence);
                    self.shared.ring();
                    return;
                }
                None => (Status::MALFORMED, Vec::new()),
            },
            OUTPUT => match payload.try_into().map(u64::from_le_bytes) {
                Ok(first) => (Status::OK, lock(&self.shared.printed).take_from(first)),
                Err(_) => (Status::MALFORMED, Vec::new()),
            },
            COUNTS => (Status::OK, emit_counts(lock(&self.shared.progress).counts)),
            _ => (Status::UNKNOWN_OPCODE, Vec::new()),
        };
        self.answers.push((Answer { connection, id, status }, bytes));
    }

    fn handle_disconnect(&mut self, _now_ns: u64, connection: ConnectionId) {
        self.answers.retain(|(answer, _)| answer.connection != connection);
        lock(&self.shared.waits).handle_disconnect(connection);
    }

    fn handle_wake(&mut self, _now_ns: u64) {
        let _ = rustix::io::read(&self.shared.bell, &mut [0u8; 8]);
    }

    fn poll_answer(&mut self, _now_ns: u64, payload: &mut Vec<u8>) -> Option<Answer> {
        match self.answers.pop() {
            Some((answer, bytes)) => {
                payload.extend_from_slice(&bytes);
                Some(answer)
            }
            None => lock(&self.shared.waits).poll_answer(payload),
        }
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.bell.as_fd())
    }

    /// A task and its bytes count when it has ended, its time while it runs.
    fn usage(&self, now_ns: u64) -> Option<ServiceUsage> {
        let progress = *lock(&self.shared.progress);
        let (stored, loaded) = *lock(&self.shared.moved);
        Some(ServiceUsage {
            busy_ns: Some(progress.busy_ns(now_ns)),
            in_bytes: Some(stored),
            out_bytes: Some(loaded),
            commands: progress.counts.tasks,
        })
    }
}

/// Returns the payload of an [`AWAIT`] request.
pub(crate) fn emit_await(mailbox: u32, sequence: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&mailbox.to_le_bytes());
    bytes[8..].copy_from_slice(&sequence.to_le_bytes());
    bytes
}

fn parse_await(payload: &[u8]) -> Option<(u32, u64)> {
    let bytes: &[u8; 16] = payload.try_into().ok()?;
    let mailbox = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
    Some((mailbox, u64::from_le_bytes(bytes[8..].try_into().expect("eight bytes"))))
}

fn emit_counts(counts: DonorCounts) -> Vec<u8> {
    let DonorCounts { tasks, failed, late, busy_ns } = counts;
    [tasks, failed, late, busy_ns].iter().flat_map(|count| count.to_le_bytes()).collect()
}

/// Reads the answer to [`COUNTS`].
pub(crate) fn parse_counts(bytes: &[u8]) -> Option<DonorCounts> {
    let (words, _) = bytes.as_chunks::<8>();
    let [tasks, failed, late, busy_ns] = *<&[[u8; 8]; 4]>::try_from(words).ok()?;
    let [tasks, failed, late, busy_ns] = [tasks, failed, late, busy_ns].map(u64::from_le_bytes);
    Some(DonorCounts { tasks, failed, late, busy_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_task_counts_as_busy() {
        let counts = DonorCounts { busy_ns: 100, ..DonorCounts::default() };
        let idle = Progress { counts, running_since_ns: None };
        assert_eq!(idle.busy_ns(5000), 100);
        let running = Progress { counts, running_since_ns: Some(1000) };
        assert_eq!(running.busy_ns(5000), 4100);
    }
}
