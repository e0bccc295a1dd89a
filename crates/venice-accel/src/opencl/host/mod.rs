//! The OpenCL service: carries out a recipient's commands on one device, inside its host.
//!
//! | file | contents |
//! |---|---|
//! | `execute`, `boxes`, `buffers` | commands on the driver; command buffers |
//! | `build`, `fetch` | the threads that compile, and that fetch from other donors |
//! | `programs`, `parts` | programs that are no source text; parts of the device |
//! | `watch` | ends of commands, from the driver's threads |
//! | `objects` | what connections own |
//! | `tasks`, `beside` | tasks of mailboxes, and their service beside this one |
//! | `describe`, `in_place`, `output` | the device's description; what kernels print |

mod beside;
mod boxes;
mod buffers;
mod build;
mod describe;
mod execute;
mod fetch;
mod in_place;
mod leaving;
mod objects;
mod output;
mod parts;
mod programs;
mod tasks;
mod watch;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Arc;

use opencl_sys::{CL_INVALID_VALUE, cl_device_id, cl_event, cl_platform_id};
use rustix::event::epoll;
use venice_service::wire::MAX_PAYLOAD_BYTES;
use venice_service::{
    Answer, ConnectionId, HostContext, Request, Service, ServiceEntry, ServiceLimits, ServiceUsage,
    Status,
};
use venice_wire::SLAB_BYTES;

use self::beside::OpenClBesideMailboxes;
use self::build::{Build, Builder, Built, Handle, Outcome, Step};
use self::execute::{Executor, done};
use self::fetch::{Fetch, Fetched, Fetcher};
use self::in_place::works_in_region;
use self::leaving::Leaving;
use self::objects::{Kind, Objects, Owned};
use self::output::{Output, TaskOutput};
use self::tasks::TaskExecutor;
use self::watch::{Brought, Ended, Inbox, Watched};
use super::SERVICE;
use super::library::{Library, call};
use super::options::OpenClOptions;
use super::wire::{
    ANSWER_BYTES, AdmitRequest, Blob, BuildKind, BuildRequest, BuildResult, Command, CommandKind,
    Description, FetchRequest, Malformed, Notice, Place, Reader, VERSION, decode, encode, opcode,
};
use crate::mailbox::{Shape, serve_mailboxes_beside};
use crate::region::{RegionHost, Ticket, key_of};
use crate::stream::host::{Activity, Extents, Mail, Opened, activity};

/// The service in the list of a program that hosts it.
pub const ENTRY: ServiceEntry = ServiceEntry { name: SERVICE, make };

/// Requests of a connection that may be outstanding.
const MAX_OUTSTANDING: u32 = 256;
/// Interval of looks for commands that have failed without a word of the driver, in nanoseconds.
const LOOK_NS: u64 = 100_000_000;
/// Bytes of notices beyond which a connection gets no output of kernels, until it reads.
const MAX_OUTPUT_BYTES: usize = 1 << 20;
/// Longest blob of a recipient in bytes.
const MAX_BLOB_BYTES: u64 = 256 << 20;
/// Name of the directory of included files in the scratch directory.
const FILES: &str = "files";

/// The device, and what all connections share.
pub(crate) struct Donor {
    library: &'static Library,
    platform: cl_platform_id,
    device: cl_device_id,
    inbox: Arc<Inbox>,
    region: Arc<RegionHost>,
    extents: RefCell<Extents>,
}

impl Donor {
    /// Returns the address of a range that a connection has reserved.
    fn place(&self, owner: ConnectionId, offset: u64, bytes: u64) -> Option<*mut c_void> {
        if !self.extents.borrow().contains(owner, offset, bytes) {
            return None;
        }
        // SAFETY: reserved ranges lie within the region.
        Some(unsafe { self.region.base().add(offset as usize) }.cast())
    }

    /// Copies bytes out of a message or of the region.
    fn blob(&self, owner: ConnectionId, blob: &Blob<'_>) -> Option<Vec<u8>> {
        match blob {
            Blob::Inline { bytes } => Some(bytes.to_vec()),
            Blob::Region { place: Place { offset, bytes } } => {
                let at = self.place(owner, *offset, *bytes)?;
                if *bytes > MAX_BLOB_BYTES {
                    return None;
                }
                let mut copied = vec![0_u8; *bytes as usize];
                // SAFETY: `place` proves the source; the recipient may write there meanwhile, and
                // any bytes will do.
                unsafe {
                    at.cast::<u8>().copy_to_nonoverlapping(copied.as_mut_ptr(), copied.len())
                };
                Some(copied)
            }
        }
    }

    /// Gives a reserved range back, and its memory to the machine.
    fn give_back(&self, owner: ConnectionId, offset: u64) -> bool {
        let Some(bytes) = self.extents.borrow_mut().give_back(owner, offset) else { return false };
        self.region.discard(offset, bytes as usize)
    }

    /// Stores bytes in a new range of the owner's.
    fn store(&self, owner: ConnectionId, bytes: &[u8]) -> Option<Place> {
        let len = bytes.len() as u64;
        let offset = self.extents.borrow_mut().reserve(owner, len)?;
        let at = self.place(owner, offset, len)?;
        // SAFETY: the range was reserved above, and is as long.
        unsafe { bytes.as_ptr().copy_to_nonoverlapping(at.cast(), bytes.len()) };
        Some(Place { offset, bytes: len })
    }
}

/// State of a connection.
#[derive(Debug, Default)]
struct Connection {
    objects: Objects,
    mail: Mail,
    /// Events of commands that have not ended, as far as is known.
    pending: BTreeSet<u64>,
    /// Launched kernels among them, for their output.
    running: BTreeSet<u64>,
    /// Fetches that have not ended.
    fetches: usize,
    /// Offset of the words in which the recipient counts bytes.
    words: Option<u64>,
}

impl Connection {
    /// Returns a program with a reference of its own, for the builder.
    ///
    /// # Errors
    /// The error of its making, or that of an id that is none.
    fn program(&self, library: &'static Library, id: u64) -> Result<Owned, i32> {
        let raw = self.objects.get(id, Kind::Program)?;
        done(call!(library, clRetainProgram(raw)))?;
        Ok(Owned::new(library, Kind::Program, raw))
    }

    /// True if a command has not ended, as far as is known.
    fn is_busy(&mut self, library: &Library) -> bool {
        !self.pending.is_empty()
            || self.objects.has_last(|event| status_of(library, event).is_some_and(|it| it > 0))
    }

    /// Forgets a command that has ended; returns false if it was not pending.
    fn forget_pending(&mut self, event: u64) -> bool {
        self.running.remove(&event);
        self.pending.remove(&event)
    }

    /// Finds commands that failed with another one: not every driver calls back for them.
    fn find_failed(&mut self, library: &Library) {
        let status_of = |event: &u64| {
            let handle = self.objects.get(*event, Kind::Event).ok()?;
            let status = status_of(library, handle)?;
            (status < 0).then_some((*event, status))
        };
        let failed: Vec<_> = self.pending.iter().filter_map(status_of).collect();
        for (event, status) in failed {
            self.forget_pending(event);
            self.notify(&Notice::Done { event, status, times: None, data: &[] });
        }
    }

    fn notify(&mut self, notice: &Notice<'_>) {
        self.mail.notify(notice);
    }
}

/// The service.
struct OpenCl {
    donor: Donor,
    builder: Builder,
    fetcher: Option<Fetcher>,
    output: Arc<Output>,
    /// Output of the mailboxes' task.
    task_output: Arc<TaskOutput>,
    /// Polls the inbox and the output.
    wake: OwnedFd,
    connections: BTreeMap<ConnectionId, Connection>,
    leaving: Leaving,
    answers: VecDeque<(Answer, Vec<u8>)>,
    description: Vec<u8>,
    /// Time of the next look for failed commands; `None`: nothing is pending.
    look_ns: Option<u64>,
    activity: Activity,
}

fn make(context: &HostContext<'_>) -> Result<Box<dyn Service>, String> {
    let options = OpenClOptions::parse(&context.spec.options)?;
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let library = Box::leak(Box::new(Library::load().map_err(|error| text(&error))?));
    let library: &'static Library = library;
    let found = options.find(library).map_err(|error| text(&error))?;
    let (platform, device) = found.ok_or_else(|| {
        format!("no device {} of platform '{}' in the host", options.place, options.platform)
    })?;
    let key = key_of(context.spec.secret.as_bytes());
    let region = Arc::new(RegionHost::serve(context, key, options.bytes)?);
    let inbox = Inbox::new().map_err(|error| text(&error))?;
    let donor = Donor {
        library,
        platform,
        device,
        inbox: Arc::clone(&inbox),
        extents: RefCell::new(Extents::new(region.len_bytes())),
        region,
    };
    let files = context.scratch_dir.join(FILES);
    let is_in_place = works_in_region(&donor);
    let output = Arc::new(Output::take_over().map_err(|error| text(&error))?);
    let outputs = (output, Arc::<TaskOutput>::default());
    let executor = TaskExecutor::new(library, device, is_in_place, outputs.clone())?;
    let executor = Box::new(executor);
    let granted = (options.bytes, is_in_place);
    let service = OpenCl::new(donor, files, granted, outputs).map_err(|error| text(&error))?;
    let mailboxes = serve_mailboxes_beside(context, Shape::default(), executor)?;
    let both = OpenClBesideMailboxes::new(service, mailboxes).map_err(|error| text(&error))?;
    Ok(Box::new(both))
}

impl OpenCl {
    fn new(
        donor: Donor,
        files: PathBuf,
        (granted_bytes, is_in_place): (u64, bool),
        (output, task_output): (Arc<Output>, Arc<TaskOutput>),
    ) -> std::io::Result<Self> {
        let inbox = Arc::clone(&donor.inbox);
        let files_dir = files.display().to_string();
        let builder = Builder::start(donor.library, donor.device, files, Arc::clone(&inbox))?;
        let fetcher = Fetcher::start(&donor.region, &inbox)?;
        let wake = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for fd in [inbox.bell(), output.fd()] {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&wake, fd, data, epoll::EventFlags::IN)?;
        }
        let description = Description {
            device: describe::device(donor.library, donor.device, granted_bytes),
            platform: describe::platform(donor.library, donor.platform),
            formats: describe::formats(donor.library, donor.device),
            region_bytes: donor.region.len_bytes(),
            region_port: donor.region.udp_port(),
            files_dir,
            has_placed_buffers: is_in_place,
            can_fetch: fetcher.is_some(),
        };
        Ok(Self {
            donor,
            builder,
            fetcher,
            output,
            task_output,
            wake,
            connections: BTreeMap::new(),
            leaving: Leaving::default(),
            answers: VecDeque::new(),
            description: encode(&description),
            look_ns: None,
            activity: Activity::default(),
        })
    }

    fn answer(&mut self, connection: ConnectionId, id: u64, status: Status, payload: Vec<u8>) {
        self.answers.push_back((Answer { connection, id, status }, payload));
    }

    /// Carries out the commands of a request.
    fn submit(&mut self, now_ns: u64, connection: ConnectionId, payload: &[u8]) -> Status {
        let Some(state) = self.connections.get_mut(&connection) else { return Status::MALFORMED };
        let (mut fails_others, mut enqueued) = (false, 0);
        let mut reader = Reader::new(payload);
        while !reader.is_at_end() {
            let Ok(command) = reader.take::<Command<'_>>() else { return Status::MALFORMED };
            let (queue, event) = (command.queue, command.event);
            let is_launch =
                matches!(command.kind, CommandKind::Launch { .. } | CommandKind::Replay { .. });
            fails_others |= matches!(command.kind, CommandKind::SetUserEvent { status: ..0, .. });
            enqueued += u64::from(command.kind.is_work());
            let objects = &mut state.objects;
            let mut executor = Executor { donor: &self.donor, connection, objects };
            match executor.execute(command) {
                Ok(()) if event != 0 => {
                    state.pending.insert(event);
                    if is_launch {
                        state.running.insert(event);
                    }
                }
                Ok(()) => {}
                Err((_, status)) if event != 0 => {
                    state.notify(&Notice::Done { event, status, times: None, data: &[] });
                }
                Err((id, status)) => state.notify(&Notice::Failed { queue, id, status }),
            }
        }
        self.activity.handle_commands(now_ns, enqueued);
        if fails_others {
            state.find_failed(self.donor.library);
        }
        Status::OK
    }

    /// Answers a submission later, with the next notice or with others.
    fn hold_answer(&mut self, connection: ConnectionId, id: u64) {
        let Some(state) = self.connections.get_mut(&connection) else { return };
        if state.mail.hold(id) {
            self.answer_submitted(connection);
        }
    }

    fn answer_submitted(&mut self, connection: ConnectionId) {
        let Some(state) = self.connections.get_mut(&connection) else { return };
        let status = Status::OK;
        let held = state
            .mail
            .take_held()
            .into_iter()
            .map(|id| (Answer { connection, id, status }, Vec::new()));
        self.answers.extend(held);
    }

    fn reserve(&mut self, connection: ConnectionId, payload: &[u8]) -> (Status, Vec<u8>) {
        let Ok(bytes) = decode::<u64>(payload) else { return (Status::MALFORMED, Vec::new()) };
        match self.donor.extents.borrow_mut().reserve(connection, bytes) {
            Some(offset) => (Status::OK, encode(&offset)),
            None => (Status::BUSY, Vec::new()),
        }
    }

    /// Reserves the words in which a recipient counts bytes.
    fn count(&mut self, connection: ConnectionId) -> (Status, Vec<u8>) {
        let Some(state) = self.connections.get_mut(&connection) else {
            return (Status::MALFORMED, Vec::new());
        };
        let words = state.words.or_else(|| {
            let mut extents = self.donor.extents.borrow_mut();
            extents.reserve(activity::WORDS_OWNER, activity::WORDS_BYTES)
        });
        state.words = words;
        words.map_or((Status::BUSY, Vec::new()), |at| (Status::OK, encode(&at)))
    }

    /// Notes that the device is idle, if no command is left; plans another look else.
    fn settle(&mut self, now_ns: u64) {
        if !self.activity.is_busy() {
            return;
        }
        let library = self.donor.library;
        if self.connections.values_mut().any(|state| state.is_busy(library)) {
            self.activity.look_again(now_ns);
        } else {
            self.activity.handle_idle(now_ns);
        }
    }

    fn admit(&self, connection: ConnectionId, payload: &[u8]) -> Status {
        let Ok(AdmitRequest { number, place: Place { offset, bytes } }) = decode(payload) else {
            return Status::MALFORMED;
        };
        let is_own = bytes > 0 && self.donor.place(connection, offset, bytes).is_some();
        if is_own && self.donor.region.admit(number, offset, bytes) {
            Status::OK
        } else {
            Status::MALFORMED
        }
    }

    fn revoke(&self, payload: &[u8]) -> Status {
        match decode(payload) {
            Ok(number) => {
                self.donor.region.revoke(number);
                Status::OK
            }
            Err(Malformed) => Status::MALFORMED,
        }
    }

    /// Gives a fetch to the thread; returns the answer if there is one at once.
    fn fetch(&mut self, connection: ConnectionId, request: u64, payload: &[u8]) -> Option<Status> {
        let Ok(asked) = decode::<FetchRequest<'_>>(payload) else { return Some(Status::MALFORMED) };
        let (Ok(address), Place { offset, bytes }) = (asked.address.parse(), asked.place) else {
            return Some(Status::MALFORMED);
        };
        let is_whole = asked.window_bytes.is_multiple_of(SLAB_BYTES);
        if !is_whole || self.donor.place(connection, offset, bytes).is_none() {
            return Some(Status::MALFORMED);
        }
        let FetchRequest { number, window_bytes, start, key, seal, .. } = asked;
        let ticket = Ticket { number, address, window_bytes, start, key, seal };
        let fetch = Fetch { connection, request, ticket, offset, bytes };
        let is_taken = self.fetcher.as_ref().is_some_and(|fetcher| fetcher.put(fetch));
        let Some(state) = self.connections.get_mut(&connection).filter(|_| is_taken) else {
            return Some(Status::BUSY);
        };
        state.fetches += 1;
        None
    }

    fn fetched(&mut self, fetched: Fetched) {
        let Fetched { connection, request, failed } = fetched;
        match self.connections.get_mut(&connection) {
            Some(state) => {
                state.fetches -= 1;
                self.answer(connection, request, Status::OK, encode(&failed));
            }
            None => self.handle_farewell(connection),
        }
    }

    /// Gives a build to the builder. Returns the answer if there is one at once.
    fn build(&mut self, connection: ConnectionId, request: u64, payload: &[u8]) -> Option<Status> {
        let Ok(asked) = decode::<BuildRequest<'_>>(payload) else { return Some(Status::MALFORMED) };
        let build = self.build_of(connection, request, &asked);
        match build.map(|build| self.builder.put(build)) {
            Ok(Ok(())) => None,
            Ok(Err(_)) => Some(Status::BUSY),
            Err(status) => {
                let outcome = Outcome::Program(BuildResult::without_program(status), None);
                self.built(Built { connection, request, outcome });
                None
            }
        }
    }

    fn build_of(
        &self,
        connection: ConnectionId,
        request: u64,
        asked: &BuildRequest<'_>,
    ) -> Result<Build, i32> {
        let state = self.connections.get(&connection).ok_or(CL_INVALID_VALUE)?;
        let program = |id| state.program(self.donor.library, id);
        let step = match &asked.kind {
            BuildKind::Build {} => Step::Build(program(asked.id)?),
            BuildKind::Compile {} => {
                let names = asked.names.iter().cloned();
                let headers = names.zip(&asked.headers).map(|(name, id)| Ok((name, program(*id)?)));
                let headers = headers.collect::<Result<_, i32>>()?;
                Step::Compile { program: program(asked.id)?, headers }
            }
            BuildKind::Link { context, inputs } => {
                let context = Handle(state.objects.get(*context, Kind::Context)?);
                let inputs = inputs.iter().map(|id| program(*id)).collect::<Result<_, i32>>()?;
                Step::Link { context, inputs }
            }
        };
        let files = asked.files.iter().map(|file| {
            let text = self.donor.blob(connection, &file.text).ok_or(CL_INVALID_VALUE)?;
            Ok((file.name.to_owned(), text))
        });
        let files = files.collect::<Result<_, i32>>()?;
        let options = asked.options.to_owned();
        Ok(Build { connection, request, id: asked.id, step, options, files })
    }

    /// Asks the builder for a binary: a driver may compile for it.
    fn binary(&mut self, connection: ConnectionId, request: u64, payload: &[u8]) -> Option<Status> {
        let Ok(id) = decode::<u64>(payload) else { return Some(Status::MALFORMED) };
        let Some(state) = self.connections.get(&connection) else { return Some(Status::MALFORMED) };
        match state.program(self.donor.library, id) {
            Ok(program) => {
                let step = Step::Binary(program);
                let (options, files) = (String::new(), Vec::new());
                let build = Build { connection, request, id, step, options, files };
                self.builder.put(build).err().map(|_| Status::BUSY)
            }
            Err(code) => {
                self.built(Built { connection, request, outcome: Outcome::Binary(Err(code)) });
                None
            }
        }
    }

    /// Answers a build.
    fn built(&mut self, built: Built) {
        let Built { connection, request, outcome } = built;
        let Some(state) = self.connections.get_mut(&connection) else { return };
        let bytes = match outcome {
            Outcome::Program(mut result, linked) => {
                if let Some((id, program)) = linked
                    && let Err(code) = state.objects.add(id, Kind::Program, Ok(program))
                {
                    result.status = code;
                }
                encode(&result)
            }
            Outcome::Binary(Ok(binary)) => encode(&Some(&binary[..])),
            Outcome::Binary(Err(_)) => encode(&None::<&[u8]>),
        };
        let answer = if bytes.len() <= ANSWER_BYTES {
            encode(&Blob::Inline { bytes: &bytes })
        } else {
            match self.donor.store(connection, &bytes) {
                Some(place) => encode(&Blob::Region { place }),
                None => return self.answer(connection, request, Status::BUSY, Vec::new()),
            }
        };
        self.answer(connection, request, Status::OK, answer);
    }

    fn ended(&mut self, ended: Ended) {
        let Ended { command, status } = ended;
        if command.is_last {
            return self.handle_farewell(command.connection);
        }
        let times =
            (command.has_times && status == 0).then(|| command.times(self.donor.library)).flatten();
        let Some(state) = self.connections.get_mut(&command.connection) else { return };
        let data = if command.is_read && status == 0 { &command.data[..] } else { &[] };
        if command.event != 0 {
            // It may have been found to have failed before.
            if !state.forget_pending(command.event) {
                return;
            }
            state.notify(&Notice::Done { event: command.event, status, times, data });
        } else if status < 0 {
            state.notify(&Notice::Failed { queue: command.queue, id: 0, status });
        }
    }

    /// Sends what kernels have printed to the connection that runs some, else to the task of a
    /// mailbox, else to the oldest connection.
    fn take_output(&mut self) {
        let running = self.connections.values_mut().find(|state| !state.running.is_empty());
        let has_running = running.is_some();
        if !has_running && self.task_output.collect(&self.output) {
            return;
        }
        let state = match running {
            Some(state) => Some(state),
            None => self.connections.values_mut().next(),
        };
        if !has_running && state.is_none() {
            // Nobody is there to read it.
            while self.output.next().is_some() {}
            return;
        }
        let Some(state) = state else { return };
        while state.mail.notice_bytes() < MAX_OUTPUT_BYTES {
            let Some(bytes) = self.output.next() else { return };
            state.notify(&Notice::Output { bytes: &bytes });
        }
    }

    /// Lets the last commands of a connection that is gone end before its memory has another use.
    fn leave(&mut self, now_ns: u64, connection: ConnectionId, state: &Connection) {
        let mut queues = state.fetches;
        for queue in state.objects.queues() {
            let mut event: cl_event = null_mut();
            let marked = done(call!(
                self.donor.library,
                clEnqueueMarkerWithWaitList(queue, 0, std::ptr::null(), &raw mut event)
            ));
            let _ = call!(self.donor.library, clFlush(queue));
            if marked.is_err() {
                continue;
            }
            let last = Watched {
                connection,
                event: 0,
                queue: 0,
                handle: Owned::new(self.donor.library, Kind::Event, event),
                has_times: false,
                steps: Vec::new(),
                data: Vec::new(),
                is_read: false,
                is_last: true,
            };
            queues +=
                usize::from(watch::watch(self.donor.library, &self.donor.inbox, last).is_ok());
        }
        if self.leaving.add(now_ns, connection, queues) {
            self.remove_ranges(connection);
        }
    }

    fn handle_farewell(&mut self, connection: ConnectionId) {
        if self.leaving.handle_end(connection) {
            self.remove_ranges(connection);
        }
    }

    /// Ends the host when commands of a program that is gone hold up all others: a driver can end no
    /// kernel, and nobody could use the device any more.
    fn end_if_held_up(&mut self, now_ns: u64, is_pending: bool) {
        if !is_pending {
            self.leaving.handle_progress(now_ns);
        } else if self.leaving.hold_up_others(now_ns) {
            eprintln!("a kernel of a program that has ended holds up the device");
            std::process::exit(1);
        }
    }

    fn remove_ranges(&mut self, connection: ConnectionId) {
        for (offset, bytes) in self.donor.extents.borrow_mut().remove_owner(connection) {
            let _ = self.donor.region.discard(offset, bytes as usize);
        }
    }

    /// Moves notices into an answer.
    fn poll_notices(&mut self, payload: &mut Vec<u8>) -> Option<Answer> {
        let mut states = self.connections.iter_mut();
        let (connection, id) =
            states.find_map(|(of, state)| Some((*of, state.mail.take_notices(payload)?)))?;
        self.answer_submitted(connection);
        Some(Answer { connection, id, status: Status::OK })
    }
}

impl Service for OpenCl {
    fn name(&self) -> &'static str {
        SERVICE
    }

    fn limits(&self) -> ServiceLimits {
        let most = MAX_PAYLOAD_BYTES as u32;
        ServiceLimits {
            max_request_bytes: most,
            max_answer_bytes: most,
            max_outstanding: MAX_OUTSTANDING,
        }
    }

    fn handle_connect(&mut self, _now_ns: u64, connection: ConnectionId) {
        self.connections.insert(connection, Connection::default());
    }

    fn handle_request(&mut self, now_ns: u64, request: Request<'_>) {
        let Request { connection, id, opcode, payload } = request;
        let opened = Opened::of(opcode, payload, |blob| self.donor.blob(connection, blob));
        let Some(Opened { code, payload, is_long }) = opened else {
            return self.answer(connection, id, Status::MALFORMED, Vec::new());
        };
        let payload = &*payload;
        self.look_ns.get_or_insert(now_ns + LOOK_NS);
        let (status, answer) = match code {
            opcode::ADMIT => (self.admit(connection, payload), Vec::new()),
            opcode::REVOKE => (self.revoke(payload), Vec::new()),
            opcode::FETCH => match self.fetch(connection, id, payload) {
                None => return,
                Some(status) => (status, Vec::new()),
            },
            opcode::DESCRIBE => match decode::<u16>(payload) {
                Ok(VERSION) => (Status::OK, self.description.clone()),
                Ok(_) | Err(_) => (Status::MALFORMED, Vec::new()),
            },
            opcode::SUBMIT => match self.submit(now_ns, connection, payload) {
                Status::OK if !is_long => return self.hold_answer(connection, id),
                status => (status, Vec::new()),
            },
            opcode::POLL => {
                if let Some(state) = self.connections.get_mut(&connection) {
                    state.mail.poll(id);
                }
                return;
            }
            opcode::RESERVE => self.reserve(connection, payload),
            opcode::GIVE_BACK => match decode::<u64>(payload) {
                Ok(offset) if self.donor.give_back(connection, offset) => (Status::OK, Vec::new()),
                Ok(_) | Err(_) => (Status::MALFORMED, Vec::new()),
            },
            opcode::CREATE_PROGRAM => self.create_program(connection, payload),
            opcode::BUILD => match self.build(connection, id, payload) {
                None => return,
                Some(status) => (status, Vec::new()),
            },
            opcode::BINARY => match self.binary(connection, id, payload) {
                None => return,
                Some(status) => (status, Vec::new()),
            },
            opcode::SYNC => (Status::OK, Vec::new()),
            opcode::PARTITION => self.partition(connection, payload),
            opcode::COUNT => self.count(connection),
            _ => (Status::UNKNOWN_OPCODE, Vec::new()),
        };
        self.answer(connection, id, status, answer);
    }

    fn handle_disconnect(&mut self, now_ns: u64, connection: ConnectionId) {
        self.answers.retain(|(answer, _)| answer.connection != connection);
        if let Some(state) = self.connections.remove(&connection) {
            self.activity.handle_end(activity::moved(&self.donor.region, state.words));
            if let Some(words) = state.words {
                self.donor.give_back(activity::WORDS_OWNER, words);
            }
            self.leave(now_ns, connection, &state);
        }
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        if self.activity.poll_look().is_some_and(|at_ns| at_ns <= now_ns) {
            self.settle(now_ns);
        }
        if self.look_ns.is_none_or(|at_ns| at_ns > now_ns) {
            return;
        }
        let library = self.donor.library;
        self.connections.values_mut().for_each(|state| state.find_failed(library));
        let is_pending = self.connections.values().any(|state| !state.pending.is_empty());
        self.end_if_held_up(now_ns, is_pending);
        self.look_ns = is_pending.then_some(now_ns + LOOK_NS);
    }

    fn poll_timeout(&self) -> Option<u64> {
        [self.look_ns, self.activity.poll_look()].into_iter().flatten().min()
    }

    fn handle_wake(&mut self, now_ns: u64) {
        // What a kernel prints comes before its end.
        let brought = self.donor.inbox.take();
        self.take_output();
        for brought in brought {
            match brought {
                Brought::Ended(ended) => {
                    if !ended.command.is_last {
                        self.leaving.handle_progress(now_ns);
                    }
                    self.ended(ended);
                }
                Brought::Freed { connection, id } => {
                    if let Some(state) = self.connections.get_mut(&connection) {
                        state.notify(&Notice::Freed { id });
                    }
                }
                Brought::Built(built) => self.built(built),
                Brought::Fetched(fetched) => self.fetched(fetched),
            }
        }
        self.settle(now_ns);
    }

    fn poll_answer(&mut self, _now_ns: u64, payload: &mut Vec<u8>) -> Option<Answer> {
        if let Some((answer, bytes)) = self.answers.pop_front() {
            payload.extend_from_slice(&bytes);
            return Some(answer);
        }
        self.poll_notices(payload)
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.as_fd())
    }

    fn usage(&self, now_ns: u64) -> Option<ServiceUsage> {
        let states = self.connections.values();
        let moved = states.map(|state| activity::moved(&self.donor.region, state.words));
        Some(self.activity.usage(now_ns, moved))
    }
}

/// Returns the status of a command; `None` if the driver does not tell.
fn status_of(library: &Library, event: cl_event) -> Option<i32> {
    let mut status = 0;
    let at = (&raw mut status).cast();
    let name = opencl_sys::CL_EVENT_COMMAND_EXECUTION_STATUS;
    let asked = call!(library, clGetEventInfo(event, name, size_of::<i32>(), at, null_mut()));
    done(asked).ok().map(|()| status)
}
