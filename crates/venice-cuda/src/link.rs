//! The link of a device to the host of its grant: a command stream, and copies on their way.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use venice_accel::cuda::wire::{
    Awaited, Command, Description, Field, INLINE_BYTES, Malformed, Notice, Place, Reader, VERSION,
    decode, encode, opcode,
};
use venice_accel::opencl::losses;
use venice_accel::stream::{CommandStream, OpenError, Protocol, Receiver, SessionError};
use venice_rack::types::ServiceAccess;

use crate::call::{Code, DEVICE_UNAVAILABLE, Done, SUCCESS, UNKNOWN, is_sticky, session_code};

/// Longest piece of a copy in bytes.
const PIECE_BYTES: usize = 8 << 20;

const PROTOCOL: Protocol = Protocol { version: VERSION, put_release, thread: "venice-cuda" };

fn put_release(id: u64, into: &mut Vec<u8>) {
    Command::Release { id }.put(into);
}

/// Memory of the device.
#[derive(Clone, Copy, Debug)]
pub struct Allocation {
    pub bytes: u64,
    pub context: usize,
}

/// A copy on its way through the region.
#[derive(Debug)]
struct Copy {
    stream: u64,
    offset: u64,
    /// Where the bytes go; `None`: to the device.
    into: Option<(usize, usize)>,
}

#[derive(Debug, Default)]
struct Copies {
    next: u64,
    pending: BTreeMap<u64, Copy>,
    /// Copies that streams have to wait for beside their own, by events.
    others: HashMap<u64, Vec<u64>>,
}

impl Copies {
    /// Returns the copies that come before the end of a stream's commands.
    fn before(&self, stream: u64) -> Vec<u64> {
        // The default stream waits for the others, and they wait for it.
        let is_before = |copy: &Copy| stream == 0 || copy.stream == stream || copy.stream == 0;
        let own =
            self.pending.iter().filter(|(_, copy)| is_before(copy)).map(|(number, _)| *number);
        let others = self.others.get(&stream).into_iter().flatten().copied();
        own.chain(others.filter(|number| self.pending.contains_key(number))).collect()
    }
}

/// A link.
pub struct Link {
    grant: u64,
    pub stream: Arc<CommandStream>,
    pub description: Description,
    copies: Mutex<Copies>,
    memory: Mutex<BTreeMap<u64, Allocation>>,
    /// Error that all calls return from now on.
    sticky: AtomicI32,
    /// Error of an earlier command that the next wait returns.
    deferred: AtomicI32,
    next_id: AtomicU64,
    /// True after a copy of the program that has waited for nothing, though it should have ended.
    has_unended: AtomicBool,
    /// True once a stream exists that does not wait for the default one.
    has_free_streams: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// Opens a link to the device of a grant.
    ///
    /// # Errors
    /// The errors of [`CommandStream::open`].
    pub fn open(access: &ServiceAccess) -> Result<Arc<Self>, OpenError> {
        let mut described = None;
        let stream = CommandStream::open(access, PROTOCOL, |answer| {
            let told: Description = decode(answer)?;
            let region = (told.region_bytes, told.region_port);
            described = Some(told);
            Ok(region)
        })?;
        let link = Arc::new(Self {
            grant: access.grant.0,
            stream,
            description: described.ok_or(Malformed)?,
            copies: Mutex::default(),
            memory: Mutex::default(),
            sticky: AtomicI32::new(SUCCESS),
            deferred: AtomicI32::new(SUCCESS),
            next_id: AtomicU64::new(1),
            has_unended: AtomicBool::new(false),
            has_free_streams: AtomicBool::new(false),
        });
        link.stream.set_receiver(Arc::new(LinkReceiver(Arc::downgrade(&link))));
        Ok(link)
    }

    /// Fails once a kernel of the device has failed, or the device is lost.
    pub fn check(&self) -> Done {
        match self.sticky.load(Ordering::Acquire) {
            SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    /// Returns a new id.
    pub fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    fn note(&self, code: Code) {
        if is_sticky(code) {
            let _ =
                self.sticky.compare_exchange(SUCCESS, code, Ordering::AcqRel, Ordering::Relaxed);
        } else if code != SUCCESS {
            let kept = &self.deferred;
            let _ = kept.compare_exchange(SUCCESS, code, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    fn coded<T>(&self, result: Result<T, SessionError>) -> Done<T> {
        result.map_err(|error| {
            let code = session_code(error);
            if is_sticky(code) {
                self.note(code);
            }
            code
        })
    }

    /// Sends a command.
    pub fn submit(&self, command: &Command<'_>) -> Done {
        self.check()?;
        self.coded(self.stream.submit(command))
    }

    /// Makes a request.
    pub fn call<T: for<'a> Field<'a>>(&self, code: u16, payload: &[u8]) -> Done<T> {
        self.check()?;
        let answer = self.coded(self.stream.call(code, payload))?;
        decode(&answer).map_err(|Malformed| UNKNOWN)
    }

    /// Waits for a stream, an event or everything. `copies` come before that end.
    pub fn wait(&self, awaited: &Awaited, copies: &[u64]) -> Done {
        let status: Code = self.call(opcode::WAIT, &encode(awaited))?;
        if is_sticky(status) {
            self.note(status);
            return Err(status);
        }
        self.wait_for_copies(copies)?;
        self.check()?;
        let deferred = self.deferred.swap(SUCCESS, Ordering::AcqRel);
        match if deferred == SUCCESS { status } else { deferred } {
            SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    /// Waits for all commands of a stream.
    pub fn wait_for_stream(&self, id: u64) -> Done {
        let copies = self.copies_before(id);
        self.wait(&Awaited::Stream { id }, &copies)
    }

    /// Waits for everything.
    pub fn wait_for_all(&self) -> Done {
        let copies: Vec<u64> = lock(&self.copies).pending.keys().copied().collect();
        self.wait(&Awaited::Everything {}, &copies)
    }

    /// Returns the copies that come before the end of a stream's commands so far.
    pub fn copies_before(&self, stream: u64) -> Vec<u64> {
        lock(&self.copies).before(stream)
    }

    /// Has a stream wait for copies.
    pub fn put_before(&self, stream: u64, copies: &[u64]) {
        let mut all = lock(&self.copies);
        let pending: Vec<u64> =
            copies.iter().copied().filter(|it| all.pending.contains_key(it)).collect();
        if !pending.is_empty() {
            all.others.entry(stream).or_default().extend(pending);
        }
    }

    /// True if all these copies have ended.
    pub fn have_ended(&self, copies: &[u64]) -> bool {
        let all = lock(&self.copies);
        !copies.iter().any(|number| all.pending.contains_key(number))
    }

    pub fn wait_for_copies(&self, copies: &[u64]) -> Done {
        if self.have_ended(copies) {
            return Ok(());
        }
        self.coded(self.stream.flush())?;
        self.coded(self.stream.wait_until(|| self.have_ended(copies).then_some(())))
    }

    /// Takes a stream that does not wait for the default one into account.
    pub fn add_free_stream(&self) -> Done {
        self.has_free_streams.store(true, Ordering::Release);
        match self.has_unended.swap(false, Ordering::AcqRel) {
            true => self.wait_for_stream(0),
            false => Ok(()),
        }
    }

    /// Copies bytes of the program to the device; they may change when it returns. If `ends` is true
    /// the copy has ended by then, as far as the program can see.
    ///
    /// # Safety
    /// The bytes are readable.
    pub unsafe fn write(
        &self,
        stream: u64,
        to: u64,
        from: *const u8,
        len: usize,
        ends: bool,
    ) -> Done {
        self.check()?;
        self.wait_for_reads_into(from as usize, len)?;
        let mut at = 0;
        while at < len {
            let piece = PIECE_BYTES.min(len - at);
            // SAFETY: promised by the caller.
            let bytes = unsafe { std::slice::from_raw_parts(from.add(at), piece) };
            let to = to + at as u64;
            if piece <= INLINE_BYTES {
                self.submit(&Command::Write { stream, to, data: bytes })?;
            } else {
                let offset = self.allocate(piece as u64)?;
                self.coded(self.stream.write(offset, bytes))?;
                let place = Place { offset, bytes: piece as u64 };
                let done = self.add_copy(Copy { stream, offset, into: None });
                self.submit(&Command::WriteFrom { stream, to, place, done })?;
            }
            at += piece;
        }
        if ends {
            if self.has_free_streams.load(Ordering::Acquire) {
                return self.wait_for_stream(stream);
            }
            self.has_unended.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Copies bytes of the device to the program. They are there when it returns if `ends` is true,
    /// else after the next wait for the stream.
    ///
    /// # Safety
    /// The bytes are writable until then.
    pub unsafe fn read(
        &self,
        stream: u64,
        into: *mut u8,
        from: u64,
        len: usize,
        ends: bool,
    ) -> Done {
        self.check()?;
        let (mut at, mut copies) = (0, Vec::new());
        while at < len {
            let piece = PIECE_BYTES.min(len - at);
            let offset = self.allocate(piece as u64)?;
            let place = Place { offset, bytes: piece as u64 };
            let target = Some((into as usize + at, piece));
            let done = self.add_copy(Copy { stream, offset, into: target });
            let from = from + at as u64;
            self.submit(&Command::Read { stream, from, place, done })?;
            copies.push(done);
            at += piece;
        }
        if !ends {
            return Ok(());
        }
        self.wait_for_copies(&copies)?;
        self.check()?;
        match self.deferred.swap(SUCCESS, Ordering::AcqRel) {
            SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    /// Waits for copies whose bytes are about to be used.
    fn wait_for_reads_into(&self, start: usize, len: usize) -> Done {
        let overlaps = |copy: &Copy| {
            copy.into.is_some_and(|(at, bytes)| at < start + len && start < at + bytes)
        };
        let all = lock(&self.copies);
        let reads =
            all.pending.iter().filter(|(_, copy)| overlaps(copy)).map(|(number, _)| *number);
        let reads: Vec<u64> = reads.collect();
        drop(all);
        self.wait_for_copies(&reads)
    }

    fn add_copy(&self, copy: Copy) -> u64 {
        let mut copies = lock(&self.copies);
        copies.next += 1;
        let number = copies.next;
        copies.pending.insert(number, copy);
        number
    }

    /// Allocates room in the region; waits for copies to end if there is none.
    fn allocate(&self, bytes: u64) -> Done<u64> {
        loop {
            match self.stream.allocate(bytes) {
                Err(SessionError::NoRoom { .. }) => {
                    let first = lock(&self.copies).pending.keys().next().copied();
                    let Some(first) = first else {
                        return Err(session_code(SessionError::NoRoom { bytes }));
                    };
                    self.wait_for_copies(&[first])?;
                }
                allocated => return self.coded(allocated),
            }
        }
    }

    /// Notes memory of the device.
    pub fn add_memory(&self, address: u64, allocation: Allocation) {
        lock(&self.memory).insert(address, allocation);
    }

    /// Forgets memory of the device; false if there is none at this address.
    pub fn remove_memory(&self, address: u64) -> bool {
        lock(&self.memory).remove(&address).is_some()
    }

    /// Returns the memory that begins at or before an address and holds so many bytes from there on.
    pub fn memory_at(&self, address: u64, bytes: u64) -> Option<(u64, Allocation)> {
        let memory = lock(&self.memory);
        let (start, allocation) = memory.range(..=address).next_back()?;
        let end = address.checked_add(bytes)?;
        (end <= start + allocation.bytes && address < start + allocation.bytes)
            .then_some((*start, *allocation))
    }

    /// Takes the memory that was allocated in a context.
    pub fn take_memory_of(&self, context: usize) -> Vec<u64> {
        let mut memory = lock(&self.memory);
        let its: Vec<u64> =
            memory.iter().filter(|(_, it)| it.context == context).map(|(at, _)| *at).collect();
        memory.retain(|at, _| !its.contains(at));
        its
    }

    fn ended(&self, done: u64, status: Code) {
        let Some(copy) = lock(&self.copies).pending.get(&done).map(|it| (it.offset, it.into))
        else {
            return;
        };
        let (offset, into) = copy;
        if let (Some((at, len)), SUCCESS) = (into, status) {
            // SAFETY: the program keeps the bytes writable until it has waited.
            let into = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, len) };
            let _ = self.stream.region().read(offset, into);
            self.stream.note_moved(0, len as u64);
        }
        self.note(status);
        self.stream.free(offset);
        let mut copies = lock(&self.copies);
        copies.pending.remove(&done);
        let Copies { pending, others, .. } = &mut *copies;
        others.retain(|_, all| {
            all.retain(|number| pending.contains_key(number));
            !all.is_empty()
        });
    }

    fn tell_loss(&self, why: &str) {
        let dir = std::env::var_os(losses::VARIABLE);
        let is_noted = dir.is_some_and(|dir| losses::note(dir.as_ref(), self.grant, why).is_ok());
        if !is_noted {
            let name = &self.description.name;
            let _ = writeln!(std::io::stderr(), "venice: accelerator {name} is lost: {why}");
        }
    }
}

/// Takes the notices of a link.
struct LinkReceiver(Weak<Link>);

impl Receiver for LinkReceiver {
    fn notices(&self, payload: &[u8]) -> Result<(), Malformed> {
        let Some(link) = self.0.upgrade() else { return Ok(()) };
        let mut reader = Reader::new(payload);
        while !reader.is_at_end() {
            let Notice::Done { done, status } = reader.take()?;
            link.ended(done, status);
        }
        Ok(())
    }

    fn lost(&self, why: &str) {
        let Some(link) = self.0.upgrade() else { return };
        link.note(DEVICE_UNAVAILABLE);
        link.tell_loss(why);
        lock(&link.copies).pending.clear();
    }
}
