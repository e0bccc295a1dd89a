//! The link of a device to the host of its grant: a command stream, and copies on their way.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use venice_accel::cuda::wire::{
    Awaited, Command, Description, Field, INLINE_BYTES, Malformed, Notice, Place, Reader, Rows,
    VERSION, decode, encode, opcode,
};
use venice_accel::opencl::losses;
use venice_accel::stream::{CommandStream, OpenError, Protocol, Receiver, SessionError};
use venice_rack::types::ServiceAccess;

use crate::addresses::{self, Taken};
use crate::call::{Code, DEVICE_UNAVAILABLE, Done, SUCCESS, UNKNOWN, is_sticky, session_code};
use crate::gates::Gates;
use crate::pool::Pool;

/// Longest piece of a copy in bytes.
pub const PIECE_BYTES: usize = 8 << 20;

/// Interval of looks for a failure while functions of the program are awaited.
const LOOK_EVERY: Duration = Duration::from_millis(100);

const PROTOCOL: Protocol = Protocol { version: VERSION, put_release, thread: "venice-cuda" };

fn put_release(id: u64, into: &mut Vec<u8>) {
    Command::Release { id }.put(into);
}

/// Memory of the device.
#[derive(Clone, Copy, Debug)]
pub struct Allocation {
    pub bytes: u64,
    /// 0: a global variable of a module.
    pub context: usize,
    /// 0: allocated without a stream.
    pub pool: usize,
}

/// Rows of the program that a copy fills.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub at: usize,
    pub pitch: usize,
    pub width: usize,
    pub rows: usize,
}

impl Target {
    /// Returns the length from the first byte to the last one.
    fn span(&self) -> usize {
        self.pitch * self.rows.saturating_sub(1) + self.width
    }
}

/// A copy on its way through the region.
#[derive(Debug)]
struct Copy {
    stream: u64,
    offset: u64,
    /// Where the bytes go; `None`: to the device.
    into: Option<Target>,
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
    /// Functions that streams are to call.
    pub gates: Arc<Gates>,
    /// Pools of memory.
    pools: Mutex<Vec<Weak<Pool>>>,
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
            gates: Arc::default(),
            pools: Mutex::default(),
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
            let kept = &self.sticky;
            if kept.compare_exchange(SUCCESS, code, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.gates.handle_failure(code);
            }
        } else if code != SUCCESS {
            let kept = &self.deferred;
            let _ = kept.compare_exchange(SUCCESS, code, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    fn coded<T>(&self, result: Result<T, SessionError>) -> Done<T> {
        result.map_err(|error| self.failed(error))
    }

    /// Returns the code of an error; a loss is kept.
    pub fn failed(&self, error: SessionError) -> Code {
        let code = session_code(error);
        if is_sticky(code) {
            self.note(code);
        }
        code
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
        self.trim_pools();
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

    /// Waits until streams have called the functions so far: they may fill memory that is about to be
    /// used. A stream that has failed calls none.
    ///
    /// # Errors
    /// The errors of [`Link::submit`].
    pub fn wait_for_gates(&self) -> Done {
        let Some(last) = self.gates.last() else { return Ok(()) };
        while !self.gates.wait(last, LOOK_EVERY) {
            let status: Code = self.call(opcode::QUERY, &encode(&Awaited::Stream { id: 0 }))?;
            if is_sticky(status) {
                self.note(status);
                return Err(status);
            }
        }
        Ok(())
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
        if ends { self.end_write(stream) } else { Ok(()) }
    }

    /// Has a copy of the program have ended, as far as the program can see.
    ///
    /// # Errors
    /// The errors of [`Link::submit`].
    pub fn end_write(&self, stream: u64) -> Done {
        if self.has_free_streams.load(Ordering::Acquire) {
            return self.wait_for_stream(stream);
        }
        self.has_unended.store(true, Ordering::Release);
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
            let target = Target { at: into as usize + at, pitch: piece, width: piece, rows: 1 };
            let done = self.add_copy(Copy { stream, offset, into: Some(target) });
            let from = from + at as u64;
            self.submit(&Command::Read { stream, from, place, done })?;
            copies.push(done);
            at += piece;
        }
        if ends { self.finish_copies(&copies) } else { Ok(()) }
    }

    fn finish_copies(&self, copies: &[u64]) -> Done {
        self.wait_for_copies(copies)?;
        self.check()?;
        match self.deferred.swap(SUCCESS, Ordering::AcqRel) {
            SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    /// Copies rows without gaps to rows of the device: at most [`PIECE_BYTES`].
    ///
    /// # Errors
    /// The errors of [`Link::submit`].
    pub fn write_rows(&self, stream: u64, to: Rows, width: usize, bytes: &[u8]) -> Done {
        self.check()?;
        let offset = self.allocate(bytes.len() as u64)?;
        self.coded(self.stream.write(offset, bytes))?;
        let place = Place { offset, bytes: bytes.len() as u64 };
        let done = self.add_copy(Copy { stream, offset, into: None });
        self.submit(&Command::WriteRows { stream, to, width: width as u64, place, done })
    }

    /// Copies rows of the device to the program: at most [`PIECE_BYTES`]. They are there when it
    /// returns if `ends` is true, else after the next wait for the stream.
    ///
    /// # Errors
    /// The errors of [`Link::submit`].
    pub fn read_rows(&self, stream: u64, into: Target, from: Rows, ends: bool) -> Done {
        self.check()?;
        let bytes = (into.width * into.rows) as u64;
        let offset = self.allocate(bytes)?;
        let place = Place { offset, bytes };
        let done = self.add_copy(Copy { stream, offset, into: Some(into) });
        self.submit(&Command::ReadRows { stream, from, width: into.width as u64, place, done })?;
        if ends { self.finish_copies(&[done]) } else { Ok(()) }
    }

    /// Waits for copies whose bytes are about to be used.
    pub fn wait_for_reads_into(&self, start: usize, len: usize) -> Done {
        let overlaps = |copy: &Copy| {
            copy.into.is_some_and(|it| it.at < start + len && start < it.at + it.span())
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

    /// Notes memory of the device, whose addresses are reserved.
    pub fn add_memory(&self, address: u64, allocation: Allocation) {
        lock(&self.memory).insert(address, allocation);
    }

    /// Reserves the addresses of new memory.
    ///
    /// # Errors
    /// Other memory of the program has them.
    pub fn reserve(&self, address: u64, bytes: u64) -> Result<(), Taken> {
        addresses::reserve(self.grant, address, bytes)
    }

    /// Forgets memory that begins at an address; its addresses stay reserved.
    pub fn take_memory(&self, address: u64) -> Option<Allocation> {
        lock(&self.memory).remove(&address)
    }

    /// Forgets memory, and frees it.
    ///
    /// # Errors
    /// The errors of [`Link::submit`].
    pub fn free_memory(&self, address: u64, allocation: &Allocation) -> Done {
        addresses::release(address, allocation.bytes);
        self.submit(&Command::Free { address })
    }

    /// Adds a pool whose free memory is given back at waits.
    pub fn add_pool(&self, pool: &Arc<Pool>) {
        let mut pools = lock(&self.pools);
        pools.retain(|it| it.strong_count() > 0);
        pools.push(Arc::downgrade(pool));
    }

    /// Returns the pools.
    pub fn pools(&self) -> Vec<Arc<Pool>> {
        lock(&self.pools).iter().filter_map(Weak::upgrade).collect()
    }

    fn trim_pools(&self) {
        for pool in self.pools() {
            pool.trim_to_threshold();
        }
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
    pub fn take_memory_of(&self, context: usize) -> Vec<(u64, Allocation)> {
        let mut memory = lock(&self.memory);
        let (its, others) = std::mem::take(&mut *memory)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(_, it)| it.context == context);
        *memory = others;
        its.into_iter().collect()
    }

    fn ended(&self, done: u64, status: Code) {
        let Some(copy) = lock(&self.copies).pending.get(&done).map(|it| (it.offset, it.into))
        else {
            return;
        };
        let (offset, into) = copy;
        if let (Some(target), SUCCESS) = (into, status) {
            self.fetch(offset, &target);
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

    /// Brings what was read into the memory of the program.
    fn fetch(&self, offset: u64, target: &Target) {
        let Target { at, pitch, width, rows } = *target;
        if rows == 1 || pitch == width {
            // SAFETY: the program keeps the bytes writable until it has waited.
            let into = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, width * rows) };
            let _ = self.stream.region().read(offset, into);
        } else {
            let mut all = vec![0; width * rows];
            let _ = self.stream.region().read(offset, &mut all);
            for (row, bytes) in all.chunks_exact(width).enumerate() {
                let into = (at + row * pitch) as *mut u8;
                // SAFETY: as above.
                unsafe { into.copy_from_nonoverlapping(bytes.as_ptr(), width) };
            }
        }
        self.stream.note_moved(0, (width * rows) as u64);
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
            match reader.take()? {
                Notice::Done { done, status } => link.ended(done, status),
                Notice::Reached { gate, status } => link.gates.handle_reached(gate, status),
            }
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
