//! The CUDA service: carries out a recipient's commands on one device, inside its host.
//!
//! Commands go to the driver in the order in which they come. Threads wait for the ends of those that
//! somebody waits for.
//!
//! | file | contents |
//! |---|---|
//! | `execute`, `requests` | commands and requests on the driver |
//! | `objects`, `gates` | what a connection owns |
//! | `waits`, `workers`, `build` | threads that wait, load and free |

mod build;
mod execute;
mod gates;
mod objects;
mod requests;
mod waits;
mod workers;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use venice_service::wire::MAX_PAYLOAD_BYTES;
use venice_service::{
    Answer, ConnectionId, HostContext, Request, Service, ServiceEntry, ServiceLimits, ServiceUsage,
    Status,
};

use self::build::Module;
use self::execute::Done;
use self::objects::{Kernel, Objects};
use self::waits::{Ended, Reply, Waiters};
use self::workers::Worker;
use super::SERVICE;
use super::drivers::REGION_BYTES;
use super::found::{ATTRIBUTES, attribute, describe};
use super::library::{CudaError, Library, call};
use super::options::CudaOptions;
use super::wire::{
    ANSWER_BYTES, Attribute, Blob, Command, Description, Linked, Logs, Notice, Place, Reader,
    VERSION, decode, encode, opcode,
};
use crate::region::{RegionHost, key_of};
use crate::stream::host::{Activity, Extents, Inbox, Mail, Opened, activity};

/// The service in the list of a program that hosts it.
pub const ENTRY: ServiceEntry = ServiceEntry { name: SERVICE, make };

/// Requests of a connection that may be outstanding.
const MAX_OUTSTANDING: u32 = 256;
/// Longest blob of a recipient in bytes.
const MAX_BLOB_BYTES: u64 = REGION_BYTES;
/// Flag of pinned memory that all contexts see.
const PORTABLE: u32 = 1;
/// Code of a wrong argument.
const INVALID_VALUE: i32 = 1;

/// Streams, events, modules and gates that a connection may have.
const MAX_OBJECTS: usize = 1 << 18;
/// Bytes of images that may wait to be loaded or linked.
const MAX_BUILD_BYTES: u64 = 2 * REGION_BYTES;
/// Bytes of notices that may wait for a recipient to ask for them.
const MAX_NOTICE_BYTES: usize = 4 << 20;

/// State of a connection.
#[derive(Default)]
struct Connection {
    mail: Mail,
    objects: Objects,
    /// First error of a command that nobody was told of.
    deferred: i32,
    /// Offset of the words in which the recipient counts bytes.
    words: Option<u64>,
}

/// What threads bring.
enum Brought {
    /// Something has ended.
    Ended(Ended),
    /// Images are loaded or linked.
    Built(Built),
    /// Memory is allocated, or not.
    Allocated(Allocation),
    /// A stream has got to a gate.
    Reached { connection: ConnectionId, gate: u64 },
    /// The objects of an ended connection are released.
    Released { connection: ConnectionId, bytes: u64 },
}

/// Outcome of a load or a link.
struct Built {
    connection: ConnectionId,
    request: u64,
    /// Bytes of the images.
    bytes: u64,
    product: Product,
}

enum Product {
    Module { id: u64, module: Done<Module>, logs: Logs },
    Linked(Linked),
}

/// Outcome of an allocation that had to wait.
struct Allocation {
    connection: ConnectionId,
    request: u64,
    bytes: u64,
    address: Done<u64>,
}

/// The service.
struct Cuda {
    library: &'static Library,
    device: i32,
    region: RegionHost,
    extents: Extents,
    granted_bytes: u64,
    /// Memory of ended connections that is being released.
    releasing_bytes: u64,
    inbox: Arc<Inbox<Brought>>,
    waiters: Waiters,
    builder: Worker,
    freer: Worker,
    /// Frees that have not ended.
    freeing: Arc<AtomicUsize>,
    /// Bytes of images that are being loaded or linked, or wait for that.
    building_bytes: u64,
    connections: BTreeMap<ConnectionId, Connection>,
    kernels: BTreeMap<u64, Kernel>,
    next_kernel: u64,
    answers: VecDeque<(Answer, Vec<u8>)>,
    description: Vec<u8>,
    activity: Activity,
}

/// Threads that have the context of the device.
struct Threads {
    waiters: Waiters,
    builder: Worker,
    freer: Worker,
}

impl Threads {
    /// Makes the primary context current, here and in new threads.
    fn start(
        library: &'static Library,
        device: i32,
        inbox: &Arc<Inbox<Brought>>,
    ) -> Result<Self, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let mut context = 0;
        call!(library, cuDevicePrimaryCtxRetain(&raw mut context, device))
            .map_err(|error| text(&error))?;
        call!(library, cuCtxSetCurrent(context)).map_err(|error| text(&error))?;
        let worker = |name| Worker::start(name, library, context, inbox);
        Ok(Self {
            waiters: Waiters::new(library, context, inbox),
            builder: worker("venice-build").map_err(|error| text(&error))?,
            freer: worker("venice-free").map_err(|error| text(&error))?,
        })
    }
}

fn make(context: &HostContext<'_>) -> Result<Box<dyn Service>, String> {
    let options = CudaOptions::parse(&context.spec.options)?;
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let library = Library::load().map_err(|error| text(&error))?;
    let library: &'static Library = Box::leak(Box::new(library));
    let devices = super::found::devices(library).map_err(|error| text(&error))?;
    let found = devices.iter().position(|it| it.uuid == options.uuid);
    let device = found.ok_or("the device is not in the host")? as i32;
    let inbox = Inbox::new().map_err(|error| text(&error))?;
    let Threads { waiters, builder, freer } = Threads::start(library, device, &inbox)?;
    let region = RegionHost::serve(context, key_of(context.spec.secret.as_bytes()), REGION_BYTES)?;
    let told = describe(library, device).map_err(|error| text(&error))?;
    let value = |name| attribute(library, name, device).map(|value| Attribute { name, value });
    let description = Description {
        name: told.name,
        uuid: told.uuid,
        bytes: options.bytes,
        version: told.version,
        pci: told.pci.unwrap_or_default(),
        attributes: ATTRIBUTES.filter_map(value).collect(),
        region_bytes: region.len_bytes(),
        region_port: region.udp_port(),
    };
    Ok(Box::new(Cuda {
        library,
        device,
        extents: Extents::new(region.len_bytes()),
        region,
        granted_bytes: options.bytes,
        releasing_bytes: 0,
        waiters,
        builder,
        freer,
        freeing: Arc::default(),
        building_bytes: 0,
        inbox,
        connections: BTreeMap::new(),
        kernels: BTreeMap::new(),
        next_kernel: 1,
        answers: VecDeque::new(),
        description: encode(&description),
        activity: Activity::default(),
    }))
}

impl Connection {
    /// Has the recipient told of a command that failed.
    fn failed(&mut self, command: &Command<'_>, status: i32) {
        match *command {
            Command::WriteFrom { done, .. }
            | Command::Read { done, .. }
            | Command::WriteRows { done, .. }
            | Command::ReadRows { done, .. } => self.mail.notify(&Notice::Done { done, status }),
            Command::Gate { gate, .. } => self.mail.notify(&Notice::Reached { gate, status }),
            _ if self.deferred == 0 => self.deferred = status,
            _ => {}
        }
    }
}

impl Cuda {
    fn answer(&mut self, connection: ConnectionId, id: u64, status: Status, payload: Vec<u8>) {
        self.answers.push_back((Answer { connection, id, status }, payload));
    }

    /// Carries out the commands of a request.
    fn submit(&mut self, now_ns: u64, connection: ConnectionId, payload: &[u8]) -> Status {
        let (mut reader, mut count) = (Reader::new(payload), 0);
        if self
            .connections
            .get(&connection)
            .is_none_or(|it| it.mail.notice_bytes() > MAX_NOTICE_BYTES)
        {
            return Status::MALFORMED;
        }
        while !reader.is_at_end() {
            let Ok(command) = reader.take::<Command<'_>>() else { return Status::MALFORMED };
            count += 1;
            let done = self.execute(connection, &command);
            let Some(state) = self.connections.get_mut(&connection) else {
                return Status::MALFORMED;
            };
            if let Err(status) = done {
                state.failed(&command, status);
            }
        }
        self.activity.handle_commands(now_ns, count);
        Status::OK
    }

    fn answer_submitted(&mut self, connection: ConnectionId) {
        let Some(state) = self.connections.get_mut(&connection) else { return };
        let held = state.mail.take_held().into_iter();
        let status = Status::OK;
        self.answers.extend(held.map(|id| (Answer { connection, id, status }, Vec::new())));
    }

    /// Returns the address of a range that a connection has reserved.
    fn place(&self, owner: ConnectionId, place: &Place) -> Option<*mut u8> {
        let is_its = self.extents.contains(owner, place.offset, place.bytes);
        is_its.then(|| self.region.at(place.offset, place.bytes as usize))?
    }

    fn blob(&self, owner: ConnectionId, blob: &Blob<'_>) -> Option<Vec<u8>> {
        match blob {
            Blob::Inline { bytes } => Some(bytes.to_vec()),
            Blob::Region { place } => {
                let at = self.place(owner, place).filter(|_| place.bytes <= MAX_BLOB_BYTES)?;
                let mut copied = vec![0_u8; place.bytes as usize];
                // SAFETY: `place` proves the source; any bytes will do.
                unsafe { at.copy_to_nonoverlapping(copied.as_mut_ptr(), copied.len()) };
                Some(copied)
            }
        }
    }

    fn reserve(&mut self, owner: ConnectionId, payload: &[u8]) -> (Status, Vec<u8>) {
        let Ok(bytes) = decode::<u64>(payload) else { return (Status::MALFORMED, Vec::new()) };
        let Some(offset) = self.extents.reserve(owner, bytes) else {
            return (Status::BUSY, Vec::new());
        };
        if let Some(at) = self.region.at(offset, bytes as usize) {
            // Without it copies are slower, and wait.
            let _ = call!(self.library, cuMemHostRegister_v2(at.cast(), bytes as usize, PORTABLE));
        }
        (Status::OK, encode(&offset))
    }

    fn give_back(&mut self, owner: ConnectionId, offset: u64) -> bool {
        let Some(bytes) = self.extents.give_back(owner, offset) else { return false };
        self.discard(offset, bytes);
        true
    }

    fn discard(&self, offset: u64, bytes: u64) {
        if let Some(at) = self.region.at(offset, bytes as usize) {
            let _ = call!(self.library, cuMemHostUnregister(at.cast()));
        }
        let _ = self.region.discard(offset, bytes as usize);
    }

    fn count(&mut self, connection: ConnectionId) -> (Status, Vec<u8>) {
        let Some(state) = self.connections.get_mut(&connection) else {
            return (Status::MALFORMED, Vec::new());
        };
        let reserve = || self.extents.reserve(activity::WORDS_OWNER, activity::WORDS_BYTES);
        state.words = state.words.or_else(reserve);
        state.words.map_or((Status::BUSY, Vec::new()), |at| (Status::OK, encode(&at)))
    }

    /// Releases what an ended connection had.
    fn released(&mut self, connection: ConnectionId, bytes: u64) {
        self.releasing_bytes -= bytes;
        for (offset, bytes) in self.extents.remove_owner(connection) {
            self.discard(offset, bytes);
        }
        let library = self.library;
        if self.connections.is_empty() && call!(library, cuCtxSynchronize()).is_err() {
            self.reset();
        }
    }

    /// Makes a new context in the place of one in which a kernel has failed.
    fn reset(&mut self) {
        let library = self.library;
        let _ = call!(library, cuDevicePrimaryCtxReset_v2(self.device));
        // Without threads the next program is told the error of the old ones.
        if let Ok(threads) = Threads::start(library, self.device, &self.inbox) {
            (self.waiters, self.builder, self.freer) =
                (threads.waiters, threads.builder, threads.freer);
        }
    }

    /// Takes what a thread brings.
    fn take(&mut self, brought: Brought) {
        match brought {
            Brought::Ended(ended) => self.ended(ended),
            Brought::Built(built) => self.built(built),
            Brought::Allocated(allocation) => self.allocated(allocation),
            Brought::Reached { connection, gate } => {
                if let Some(state) = self.connections.get_mut(&connection) {
                    state.mail.notify(&Notice::Reached { gate, status: 0 });
                }
            }
            Brought::Released { connection, bytes } => self.released(connection, bytes),
        }
    }

    /// Answers what has ended.
    fn ended(&mut self, ended: Ended) {
        let Ended { connection, reply, code } = ended;
        let Some(state) = self.connections.get_mut(&connection) else { return };
        // An error of an earlier command comes first.
        let deferred = std::mem::take(&mut state.deferred);
        let status = if deferred != 0 { deferred } else { code };
        match reply {
            Reply::Answer(id) => self.answer(connection, id, Status::OK, encode(&status)),
            Reply::Notice(done) => state.mail.notify(&Notice::Done { done, status }),
        }
    }

    /// Answers with a long text, by the region if need be.
    fn answer_long(&mut self, connection: ConnectionId, bytes: &[u8]) -> (Status, Vec<u8>) {
        if bytes.len() <= ANSWER_BYTES {
            return (Status::OK, encode(&Blob::Inline { bytes }));
        }
        let len = bytes.len() as u64;
        let Some(offset) = self.extents.reserve(connection, len) else {
            return (Status::BUSY, Vec::new());
        };
        let place = Place { offset, bytes: len };
        match self.region.write(offset, bytes) {
            true => (Status::OK, encode(&Blob::Region { place })),
            false => (Status::BUSY, Vec::new()),
        }
    }
}

impl Service for Cuda {
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
        let opened = Opened::of(opcode, payload, |blob| self.blob(connection, blob));
        let Some(Opened { code, payload, is_long }) = opened else {
            return self.answer(connection, id, Status::MALFORMED, Vec::new());
        };
        let payload = &*payload;
        let (status, answer) = match code {
            opcode::DESCRIBE => match decode::<u16>(payload) {
                Ok(VERSION) => (Status::OK, self.description.clone()),
                Ok(_) | Err(_) => (Status::MALFORMED, Vec::new()),
            },
            opcode::SUBMIT => match self.submit(now_ns, connection, payload) {
                Status::OK if !is_long => {
                    let state = self.connections.get_mut(&connection);
                    if state.is_some_and(|state| state.mail.hold(id)) {
                        self.answer_submitted(connection);
                    }
                    return;
                }
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
                Ok(offset) if self.give_back(connection, offset) => (Status::OK, Vec::new()),
                Ok(_) | Err(_) => (Status::MALFORMED, Vec::new()),
            },
            opcode::SYNC => (Status::OK, Vec::new()),
            opcode::COUNT => self.count(connection),
            opcode::WAIT => match self.wait(connection, id, payload) {
                Ok(()) => return,
                Err(status) => status,
            },
            opcode::LOAD => match self.load(connection, id, payload) {
                Some(answer) => answer,
                None => return,
            },
            opcode::LINK => match self.link(connection, id, payload) {
                Some(answer) => answer,
                None => return,
            },
            opcode::ALLOCATE => match self.allocate(connection, id, payload) {
                Some(answer) => answer,
                None => return,
            },
            opcode::ALLOCATE_ORDERED => match self.allocate_ordered(connection, id, payload) {
                Some(answer) => answer,
                None => return,
            },
            opcode::OCCUPANCY => self.occupancy(connection, payload),
            opcode::LIMIT => self.limit(payload),
            opcode::QUERY => self.query(connection, payload),
            opcode::GLOBAL => self.global(connection, payload),
            opcode::ELAPSED => self.elapsed(connection, payload),
            opcode::FREE_BYTES => (Status::OK, encode(&self.free_bytes())),
            _ => (Status::UNKNOWN_OPCODE, Vec::new()),
        };
        self.answer(connection, id, status, answer);
    }

    fn handle_disconnect(&mut self, _now_ns: u64, connection: ConnectionId) {
        self.answers.retain(|(answer, _)| answer.connection != connection);
        let Some(state) = self.connections.remove(&connection) else { return };
        self.activity.handle_end(activity::moved(&self.region, state.words));
        if let Some(words) = state.words {
            self.give_back(activity::WORDS_OWNER, words);
        }
        self.kernels.retain(|_, kernel| kernel.connection != connection);
        state.objects.gates.values().for_each(|gate| gate.open());
        let bytes = state.objects.memory_bytes();
        self.releasing_bytes += bytes;
        // Its last commands use its memory and its part of the region until they have ended.
        self.freer.give(move |library| {
            let _ = call!(library, cuCtxSynchronize());
            state.objects.release_all(library);
            Some(Brought::Released { connection, bytes })
        });
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        if self.activity.poll_look().is_some_and(|at_ns| at_ns <= now_ns) {
            self.settle(now_ns);
        }
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.activity.poll_look()
    }

    fn handle_wake(&mut self, now_ns: u64) {
        for brought in self.inbox.take() {
            self.take(brought);
        }
        self.settle(now_ns);
    }

    fn poll_answer(&mut self, _now_ns: u64, payload: &mut Vec<u8>) -> Option<Answer> {
        if let Some((answer, bytes)) = self.answers.pop_front() {
            payload.extend_from_slice(&bytes);
            return Some(answer);
        }
        let mut states = self.connections.iter_mut();
        let (connection, id) =
            states.find_map(|(of, state)| Some((*of, state.mail.take_notices(payload)?)))?;
        self.answer_submitted(connection);
        Some(Answer { connection, id, status: Status::OK })
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.inbox.bell())
    }

    fn usage(&self, now_ns: u64) -> Option<ServiceUsage> {
        let states = self.connections.values();
        let moved = states.map(|state| activity::moved(&self.region, state.words));
        Some(self.activity.usage(now_ns, moved))
    }
}

/// Returns the code of an error for the recipient.
fn code_of(error: &CudaError) -> i32 {
    super::library::code(error)
}
