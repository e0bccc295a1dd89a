//! A recipient's side of a command stream: commands go out without waiting, notices come in.
//!
//! Any thread may use one. Whoever waits receives; there is no thread in between. A program that
//! waits for nothing, but wants to be told, starts one by [`CommandStream::receive_always`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use venice_ports::qpair::{QPairMessages, QPairSocketError};
use venice_rack::types::ServiceAccess;
use venice_service::wire::{Entry, MAX_MESSAGE_BYTES, MAX_PAYLOAD_BYTES, Message};
use venice_service::{ClientError, ServiceClient, Status};

use super::arena::Arena;
use super::code::{Field, Malformed};
use super::outbox::{Outbox, POLLS, RequestKind, Unanswered};
use super::wire::{ANSWER_BYTES, Blob, LongRequest, Place, decode, encode, opcode};
use crate::region::{Region, RegionError};

/// Longest wait for a host that has to answer at once.
const OPEN_WITHIN: Duration = Duration::from_secs(10);
/// Pause while the host takes no message and nothing comes from it.
const FULL: Duration = Duration::from_micros(20);
/// Longest wait for ranges of released objects when the region is full.
const LEAVE_WITHIN: Duration = Duration::from_millis(200);
/// Sleep of a waiting thread while another one receives; a check for missed events follows.
const SLEEP: Duration = Duration::from_secs(1);

/// Error of a session.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SessionError {
    /// The host is gone, or what it sends is wrong.
    #[error("lost: {0}")]
    Lost(Arc<str>),
    /// The host refuses.
    #[error("the host refuses ({0:?})")]
    Refused(Status),
    /// The device's memory is full.
    #[error("no room for {bytes} bytes in the memory of the device")]
    NoRoom {
        /// Bytes asked for.
        bytes: u64,
    },
    /// This process is a child of the one that opened the session.
    #[error("the session belongs to the parent of this process")]
    Forked,
}

/// Parts of the protocol in which services differ.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// Version of its messages.
    pub version: u16,
    /// Appends the command that releases an object.
    pub put_release: fn(id: u64, into: &mut Vec<u8>),
    /// Name of the receiving thread.
    pub thread: &'static str,
}

/// Receiver of notices. Calls come from threads that wait, one at a time; they must not wait
/// themselves, nor use the stream but for [`CommandStream::release`], [`CommandStream::free`] and its
/// region.
pub trait Receiver: Send + Sync {
    /// Takes notices, one behind the other.
    ///
    /// # Errors
    /// [`Malformed`]: the stream is lost.
    fn notices(&self, payload: &[u8]) -> Result<(), Malformed>;
    /// Takes the loss of the stream, once.
    fn lost(&self, why: &str);
}

/// A command stream.
pub struct CommandStream {
    protocol: Protocol,
    socket: QPairMessages,
    region: Region,
    process: u32,
    outbox: Mutex<Outbox>,
    submits: AtomicUsize,
    polls: AtomicUsize,
    /// Ids to release with the next commands.
    releases: Mutex<Vec<u64>>,
    has_releases: AtomicBool,
    arena: Mutex<Arena>,
    give_back: Mutex<Vec<u64>>,
    /// Places in the region of released objects that the donor still uses, by id.
    leaving: Mutex<HashMap<u64, u64>>,
    /// Buffer of the receiving thread.
    receiver: Mutex<Vec<u8>>,
    waiting: Mutex<Waiting>,
    changed: Condvar,
    answers: Mutex<HashMap<u64, (Status, Vec<u8>)>>,
    /// Bytes stored in the region and loaded from it.
    moved: [AtomicU64; 2],
    /// Offset in the region at which the host reads them; `None`: it does not.
    words: Option<u64>,
    lost: OnceLock<Arc<str>>,
    receiver_of_notices: OnceLock<Arc<dyn Receiver>>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// True while a thread receives.
    is_received: bool,
    /// Changes with each message.
    generation: u64,
    sleepers: usize,
}

impl std::fmt::Debug for CommandStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommandStream").field("lost", &self.lost).finish_non_exhaustive()
    }
}

impl CommandStream {
    /// Opens a stream to the device of a grant. `region_of` reads the description of the device, and
    /// returns the size of the region in bytes and its UDP port.
    ///
    /// # Errors
    /// Fails if the host cannot be reached, refuses, or speaks another version.
    pub fn open(
        access: &ServiceAccess,
        protocol: Protocol,
        region_of: impl FnOnce(&[u8]) -> Result<(u64, Option<u16>), Malformed>,
    ) -> Result<Arc<Self>, OpenError> {
        let mut client = ServiceClient::open(access, Some(OPEN_WITHIN))?;
        let (status, answer) = client.call(1, opcode::DESCRIBE, &encode(&protocol.version))?;
        if status != Status::OK.0 {
            return Err(OpenError::Refused(Status(status)));
        }
        let (bytes, port) = region_of(&answer)?;
        let region = Region::open(access, port, bytes, OPEN_WITHIN)?;
        // A host that has no words does not count.
        let (status, answer) = client.call(2, opcode::COUNT, &[])?;
        let words = if status == Status::OK.0 { decode(&answer).ok() } else { None };
        let (socket, _) = client.into_parts();
        socket.set_timeout(None);
        let stream = Self {
            protocol,
            socket,
            region,
            process: std::process::id(),
            outbox: Mutex::new(Outbox::new()),
            submits: AtomicUsize::new(0),
            polls: AtomicUsize::new(0),
            releases: Mutex::default(),
            has_releases: AtomicBool::new(false),
            arena: Mutex::default(),
            give_back: Mutex::default(),
            leaving: Mutex::default(),
            receiver: Mutex::new(vec![0; MAX_MESSAGE_BYTES]),
            waiting: Mutex::default(),
            changed: Condvar::new(),
            answers: Mutex::default(),
            moved: Default::default(),
            words,
            lost: OnceLock::new(),
            receiver_of_notices: OnceLock::new(),
        };
        Ok(Arc::new(stream))
    }

    /// Sets what is told notices; the first one counts.
    pub fn set_receiver(&self, receiver: Arc<dyn Receiver>) {
        let _ = self.receiver_of_notices.set(receiver);
    }

    /// Returns the region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the reason of the loss, once the host is gone.
    pub fn why_lost(&self) -> Option<&str> {
        self.lost.get().map(|why| &**why)
    }

    /// Sends a command, at once or with later ones. One that is too long for a message goes through
    /// the region, and is waited for.
    ///
    /// # Errors
    /// [`SessionError::Lost`], [`SessionError::Forked`]; for a long one those of
    /// [`CommandStream::call`].
    pub fn submit<'a>(&self, command: &impl Field<'a>) -> Result<(), SessionError> {
        self.submit_all(std::slice::from_ref(command))
    }

    /// Sends commands that nothing may come between.
    ///
    /// # Errors
    /// The errors of [`CommandStream::submit`].
    pub fn submit_all<'a>(&self, commands: &[impl Field<'a>]) -> Result<(), SessionError> {
        self.check()?;
        let mut outbox = lock(&self.outbox);
        self.add_releases(&mut outbox);
        for command in commands {
            match outbox.add_command(command) {
                Ok(submits) => {
                    self.submits.fetch_add(submits, Ordering::Relaxed);
                }
                Err(encoded) => {
                    drop(outbox);
                    self.call(opcode::SUBMIT, &encoded)?;
                    outbox = lock(&self.outbox);
                }
            }
        }
        if !outbox.is_due(self.unanswered()) {
            // What was answered meanwhile makes room.
            self.receive_ready()?;
        }
        while outbox.has_commands() && outbox.is_due(self.unanswered()) {
            self.send(&mut outbox)?;
        }
        Ok(())
    }

    /// Releases an object with the next commands.
    pub fn release(&self, id: u64) {
        lock(&self.releases).push(id);
        self.has_releases.store(true, Ordering::Release);
    }

    /// Sends all commands.
    ///
    /// # Errors
    /// The errors of [`CommandStream::submit`].
    pub fn flush(&self) -> Result<(), SessionError> {
        self.check()?;
        let mut outbox = lock(&self.outbox);
        self.add_releases(&mut outbox);
        self.send(&mut outbox)
    }

    /// Makes a request behind the commands so far, and waits for its answer.
    ///
    /// # Errors
    /// The errors of [`CommandStream::submit`]; [`SessionError::Refused`]; those of
    /// [`CommandStream::allocate`] for a payload that is too long for a message.
    pub fn call(&self, code: u16, payload: &[u8]) -> Result<Vec<u8>, SessionError> {
        if payload.len() <= MAX_PAYLOAD_BYTES {
            return self.call_in_message(code, payload);
        }
        let place = self.stage(payload)?;
        let offset = place.offset;
        let answer = self.call_in_message(opcode::LONG, &encode(&LongRequest { code, place }));
        self.free(offset);
        answer
    }

    fn call_in_message(&self, code: u16, payload: &[u8]) -> Result<Vec<u8>, SessionError> {
        let id = self.request(RequestKind::Call, code, payload)?;
        let (status, answer) = self.wait_until(|| lock(&self.answers).remove(&id))?;
        if status == Status::OK { Ok(answer) } else { Err(SessionError::Refused(status)) }
    }

    /// Makes a request whose answer is a blob, and returns the bytes.
    ///
    /// # Errors
    /// The errors of [`CommandStream::call`].
    pub fn call_long(&self, code: u16, payload: &[u8]) -> Result<Vec<u8>, SessionError> {
        let answer = self.call(code, payload)?;
        match decode::<Blob<'_>>(&answer) {
            Ok(Blob::Inline { bytes }) => Ok(bytes.to_vec()),
            Ok(Blob::Region { place: Place { bytes, .. } }) if bytes > self.region.len_bytes() => {
                Err(self.lose("malformed answer"))
            }
            Ok(Blob::Region { place: Place { offset, bytes } }) => {
                let mut long = vec![0; bytes as usize];
                let read = self.read(offset, &mut long);
                self.request(RequestKind::Posted, opcode::GIVE_BACK, &encode(&offset))?;
                read?;
                Ok(long)
            }
            Err(Malformed) => Err(self.lose("malformed answer")),
        }
    }

    pub(crate) fn request(
        &self,
        kind: RequestKind,
        code: u16,
        payload: &[u8],
    ) -> Result<u64, SessionError> {
        self.check()?;
        let mut outbox = lock(&self.outbox);
        self.add_releases(&mut outbox);
        let (id, submits) = outbox.add_request(kind, code, payload);
        self.submits.fetch_add(submits, Ordering::Relaxed);
        self.send(&mut outbox)?;
        Ok(id)
    }

    /// Waits until `look` finds something; receives meanwhile.
    ///
    /// # Errors
    /// [`SessionError::Lost`], [`SessionError::Forked`].
    pub fn wait_until<T>(&self, mut look: impl FnMut() -> Option<T>) -> Result<T, SessionError> {
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            self.check()?;
            let mut waiting = lock(&self.waiting);
            let generation = waiting.generation;
            if !waiting.is_received {
                waiting.is_received = true;
                drop(waiting);
                let received = self.receive(&mut look);
                let mut waiting = lock(&self.waiting);
                waiting.is_received = false;
                waiting.generation += 1;
                if waiting.sleepers > 0 {
                    self.changed.notify_all();
                }
                drop(waiting);
                match received? {
                    Some(found) => return Ok(found),
                    None => continue,
                }
            }
            if let Some(found) = look() {
                return Ok(found);
            }
            if waiting.generation == generation {
                waiting.sleepers += 1;
                let woken = self.changed.wait_timeout(waiting, SLEEP);
                waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
                waiting.sleepers -= 1;
            }
        }
    }

    /// Takes in what has come, without waiting.
    ///
    /// # Errors
    /// [`SessionError::Lost`], [`SessionError::Forked`].
    pub fn receive_ready(&self) -> Result<(), SessionError> {
        self.check()?;
        let Ok(mut buffer) = self.receiver.try_lock() else { return Ok(()) };
        loop {
            match self.socket.try_recv(&mut buffer) {
                Ok(0) => return Err(self.lose("the host has closed the connection")),
                Ok(len) => self.take(&buffer[..len])?,
                Err(QPairSocketError::WouldBlock) => return Ok(()),
                Err(error) => return Err(self.lose(&error.to_string())),
            }
        }
    }

    /// Waits for a message unless `look` finds something; takes it and those behind it in.
    fn receive<T>(&self, look: &mut impl FnMut() -> Option<T>) -> Result<Option<T>, SessionError> {
        self.renew_polls()?;
        {
            let mut buffer = lock(&self.receiver);
            // Another thread may have taken in what this one waits for: under the lock no more.
            if let Some(found) = look() {
                return Ok(Some(found));
            }
            match self.socket.recv(&mut buffer) {
                Ok(0) => return Err(self.lose("the host has closed the connection")),
                Ok(len) => self.take(&buffer[..len])?,
                Err(error) => return Err(self.lose(&error.to_string())),
            }
        }
        self.receive_ready()?;
        Ok(None)
    }

    /// Asks for notices if few requests for them are outstanding.
    fn renew_polls(&self) -> Result<(), SessionError> {
        if self.polls.load(Ordering::Relaxed) >= POLLS / 4 {
            return Ok(());
        }
        let mut outbox = lock(&self.outbox);
        self.send(&mut outbox)
    }

    /// Starts a thread that receives whenever no other one does, for callbacks.
    pub fn receive_always(self: &Arc<Self>) {
        let session = Arc::downgrade(self);
        let receive = move || {
            while let Some(session) = session.upgrade() {
                let until = std::cell::Cell::new(0);
                let looked = session.wait_until(|| {
                    until.set(until.get() + 1);
                    // Lets go of the session from time to time.
                    (until.get() > 64).then_some(())
                });
                if looked.is_err() {
                    return;
                }
            }
        };
        // Without the thread callbacks come when the program waits for something else.
        let _ = std::thread::Builder::new().name(self.protocol.thread.into()).spawn(receive);
    }

    /// Takes a message in.
    fn take(&self, bytes: &[u8]) -> Result<(), SessionError> {
        match Message::parse(bytes) {
            Ok(Message::Answers(batch)) => {
                batch.entries().try_for_each(|entry| self.take_answer(&entry))
            }
            Ok(Message::Closed(code)) => Err(self.lose(&code.to_string())),
            Ok(_) | Err(_) => Err(self.lose("malformed message")),
        }
    }

    fn take_answer(&self, entry: &Entry<'_>) -> Result<(), SessionError> {
        let status = Status(entry.code);
        match RequestKind::of(entry.id) {
            RequestKind::Submit => {
                self.submits.fetch_sub(1, Ordering::Relaxed);
                match status {
                    Status::OK => Ok(()),
                    status => Err(self.lose(&format!("the host refuses a command ({status:?})"))),
                }
            }
            RequestKind::Poll => {
                self.polls.fetch_sub(1, Ordering::Relaxed);
                self.take_notices(entry.payload)
            }
            RequestKind::Posted => Ok(()),
            RequestKind::Call => {
                lock(&self.answers).insert(entry.id, (status, entry.payload.to_vec()));
                Ok(())
            }
        }
    }

    fn take_notices(&self, payload: &[u8]) -> Result<(), SessionError> {
        let Some(receiver) = self.receiver_of_notices.get() else { return Ok(()) };
        receiver.notices(payload).map_err(|Malformed| self.lose("malformed notice"))
    }

    /// Sends all that is in the outbox.
    fn send(&self, outbox: &mut MutexGuard<'_, Outbox>) -> Result<(), SessionError> {
        let (submits, polls) = outbox.finish(self.unanswered());
        self.submits.fetch_add(submits, Ordering::Relaxed);
        self.polls.fetch_add(polls, Ordering::Relaxed);
        while let Some(message) = outbox.message() {
            match self.socket.try_send(message) {
                Ok(()) => outbox.sent(),
                Err(QPairSocketError::WouldBlock) => {
                    // The host takes nothing while its own answers are not read.
                    self.receive_ready()?;
                    std::thread::sleep(FULL);
                }
                Err(error) => return Err(self.lose(&error.to_string())),
            }
        }
        Ok(())
    }

    fn add_releases(&self, outbox: &mut Outbox) {
        if !self.has_releases.swap(false, Ordering::Acquire) {
            return;
        }
        for id in std::mem::take(&mut *lock(&self.releases)) {
            let submits = outbox.add_encoded(|into| (self.protocol.put_release)(id, into));
            self.submits.fetch_add(submits, Ordering::Relaxed);
        }
    }

    fn unanswered(&self) -> Unanswered {
        Unanswered {
            submits: self.submits.load(Ordering::Relaxed),
            polls: self.polls.load(Ordering::Relaxed),
        }
    }

    /// Allocates a range of the region. If it is full, waits a moment for what the donor may give
    /// back of released objects.
    ///
    /// # Errors
    /// [`SessionError::NoRoom`]; those of [`CommandStream::call`].
    pub fn allocate(&self, bytes: u64) -> Result<u64, SessionError> {
        let was_leaving = self.is_leaving();
        let allocated = self.allocate_now(bytes);
        if !was_leaving || !matches!(allocated, Err(SessionError::NoRoom { .. })) {
            return allocated;
        }
        self.call(opcode::SYNC, &[])?;
        let since = Instant::now();
        while self.is_leaving() && since.elapsed() < LEAVE_WITHIN {
            self.receive_ready()?;
            std::thread::sleep(FULL);
        }
        self.allocate_now(bytes)
    }

    fn is_leaving(&self) -> bool {
        !lock(&self.leaving).is_empty()
    }

    fn allocate_now(&self, bytes: u64) -> Result<u64, SessionError> {
        for offset in std::mem::take(&mut *lock(&self.give_back)) {
            self.request(RequestKind::Posted, opcode::GIVE_BACK, &encode(&offset))?;
        }
        if let Some(offset) = lock(&self.arena).allocate(bytes) {
            return Ok(offset);
        }
        for wanted in [Arena::wanted(bytes), bytes.next_multiple_of(4096)] {
            let answer = match self.call(opcode::RESERVE, &encode(&wanted)) {
                Ok(answer) => answer,
                Err(SessionError::Refused(_)) => continue,
                Err(error) => return Err(error),
            };
            let offset = decode(&answer).map_err(|_| self.lose("malformed answer"))?;
            let mut arena = lock(&self.arena);
            arena.add(offset, wanted);
            if let Some(offset) = arena.allocate(bytes) {
                return Ok(offset);
            }
        }
        Err(SessionError::NoRoom { bytes })
    }

    /// Frees a range.
    pub fn free(&self, offset: u64) {
        let given = lock(&self.arena).free(offset);
        lock(&self.give_back).extend(given);
    }

    /// Releases an object, and frees its range once the donor has told that it uses it no more.
    pub fn free_later(&self, id: u64, offset: u64) {
        lock(&self.leaving).insert(id, offset);
        self.release(id);
    }

    /// Frees the range of a released object, which the donor uses no more.
    pub fn free_left(&self, id: u64) {
        let offset = lock(&self.leaving).remove(&id);
        if let Some(offset) = offset {
            self.free(offset);
        }
    }

    /// Copies bytes to where a command finds them: into the message if they are short.
    ///
    /// # Errors
    /// The errors of [`CommandStream::allocate`].
    pub fn stage(&self, bytes: &[u8]) -> Result<Place, SessionError> {
        let len = bytes.len() as u64;
        let offset = self.allocate(len)?;
        self.write(offset, bytes)?;
        Ok(Place { offset, bytes: len })
    }

    /// Stores bytes in the region.
    ///
    /// # Errors
    /// [`SessionError::Lost`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), SessionError> {
        self.region.write(offset, bytes).map_err(|error| self.lose(&error.to_string()))?;
        self.note_moved(bytes.len() as u64, 0);
        Ok(())
    }

    /// Reads bytes of the region.
    ///
    /// # Errors
    /// [`SessionError::Lost`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SessionError> {
        self.region.read(offset, into).map_err(|error| self.lose(&error.to_string()))?;
        self.note_moved(0, into.len() as u64);
        Ok(())
    }

    /// Counts bytes stored in the region and loaded from it, for the usage that the donor tells.
    pub fn note_moved(&self, stored: u64, loaded: u64) {
        let Some(words) = self.words else { return };
        for (at, (count, more)) in (words..).step_by(8).zip(self.moved.iter().zip([stored, loaded]))
        {
            if more > 0 {
                let count = count.fetch_add(more, Ordering::Relaxed) + more;
                // A host that is gone is noticed by what matters.
                let _ = self.region.post(at, &count.to_le_bytes());
            }
        }
    }

    /// Makes a request with long bytes; `encode` gets the blob that stands for them.
    ///
    /// # Errors
    /// The errors of [`CommandStream::call_long`].
    pub fn with_blob<T>(
        &self,
        bytes: &[u8],
        with: impl FnOnce(Blob<'_>) -> Result<T, SessionError>,
    ) -> Result<T, SessionError> {
        if bytes.len() <= ANSWER_BYTES {
            return with(Blob::Inline { bytes });
        }
        let place = self.stage(bytes)?;
        let offset = place.offset;
        let done = with(Blob::Region { place });
        self.free(offset);
        done
    }

    /// Sends a command with long bytes; `make` gets the blob that stands for them.
    ///
    /// # Errors
    /// The errors of [`CommandStream::with_blob`].
    pub fn submit_with_blob<'a, C: Field<'a>>(
        &self,
        bytes: &'a [u8],
        make: impl FnOnce(Blob<'a>) -> C,
    ) -> Result<(), SessionError> {
        if bytes.len() <= ANSWER_BYTES {
            return self.submit(&make(Blob::Inline { bytes }));
        }
        let place = self.stage(bytes)?;
        let offset = place.offset;
        // The place has another use once the donor has its bytes.
        let sent = self
            .submit(&make(Blob::Region { place }))
            .and_then(|()| self.call(opcode::SYNC, &[]).map(drop));
        self.free(offset);
        sent
    }

    fn check(&self) -> Result<(), SessionError> {
        if self.process != std::process::id() {
            return Err(SessionError::Forked);
        }
        match self.lost.get() {
            Some(why) => Err(SessionError::Lost(Arc::clone(why))),
            None => Ok(()),
        }
    }

    /// Notes the loss, and tells of it once.
    pub(crate) fn lose(&self, why: &str) -> SessionError {
        let mut is_first = false;
        let why = self.lost.get_or_init(|| {
            is_first = true;
            why.into()
        });
        if is_first {
            if let Some(receiver) = self.receiver_of_notices.get() {
                receiver.lost(why);
            }
            let mut waiting = lock(&self.waiting);
            waiting.generation += 1;
            self.changed.notify_all();
        }
        SessionError::Lost(Arc::clone(why))
    }
}

/// Error of opening a session.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The host cannot be reached, or refuses.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Its region cannot be reached.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The host does not describe its device.
    #[error("the host does not describe its device ({0:?}): it has another release")]
    Refused(Status),
    /// The description is malformed.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
