//! The channels over verbs: single accesses directly, bulk transfers through registered memory.

use std::collections::VecDeque;

use venice_fabric::{
    AccessError, Completion, FabricError, RdmaCompletion, RdmaRejected, ScatterGather,
};

use super::{ChannelError, ReadPart, WritePart};
use crate::spin_policy::{Next, SpinPolicy};
use crate::verbs::{BufferId, Bulk, VerbsDriver, VerbsError};
use crate::{PortError, monotonic_ns};

/// Bytes of a bulk transfer that travel as one piece.
const PIECE_BYTES: usize = 1 << 20;
/// Pieces outstanding at once: while the device fills some, others are copied out.
const PIECES: usize = 4;
/// Most bulk transfers that may be queued.
const MAX_JOBS: usize = 64;
/// Longest sleep while a completion is outstanding. The driver wakes earlier for any event.
const SLEEP_NS: u64 = 1_000_000_000;

/// First token of blocking accesses; the caller's tokens are below it.
const FIRST_OWN_TOKEN: u64 = 1 << 63;
/// Token of piece 0; the others count downwards. The token of posted writes is below all of them.
const LAST_PIECE_TOKEN: u64 = u64::MAX;
const POSTED_TOKEN: u64 = LAST_PIECE_TOKEN - PIECES as u64;

/// The channels over an RDMA device. Add grants and mappings on the driver
/// ([`VerbsChannels::driver`]).
///
/// Bulk transfers are copied once on this side, between the caller's memory and the registered
/// memory that the device reaches, a piece of 1 MiB at a time. [`VerbsDriver::transfer`] copies
/// nothing, for callers that keep their data in its buffers.
#[derive(Debug)]
pub struct VerbsChannels {
    driver: VerbsDriver,
    spin: SpinPolicy,
    next_token: u64,
    /// Single accesses completed and not polled.
    aside: VecDeque<(u64, Result<(), AccessError>, Vec<u8>)>,
    /// Bytes of the completion last polled.
    shown: Vec<u8>,
    /// Number of posted writes outstanding, and the first error among them since the last fence.
    posted: usize,
    posted_error: Option<AccessError>,
    jobs: VecDeque<Job>,
    /// Number of the first entry of `jobs`.
    first_job: u64,
    pieces: [Option<Piece>; PIECES],
    registered: BufferId,
    bulk_aside: VecDeque<RdmaCompletion>,
}

/// A bulk transfer.
#[derive(Debug)]
struct Job {
    token: u64,
    direction: Bulk,
    window_addr: u64,
    buffer: Vec<u8>,
    started: usize,
    under_way: usize,
    result: Result<(), AccessError>,
}

impl Job {
    fn is_over(&self) -> bool {
        self.under_way == 0 && (self.started == self.buffer.len() || self.result.is_err())
    }
}

/// One part of a job, in registered memory.
#[derive(Clone, Copy, Debug)]
struct Piece {
    job: u64,
    offset: usize,
    len: usize,
}

impl VerbsChannels {
    /// Builds the channels over `driver`. Tokens of polled accesses must be below 2⁶³.
    ///
    /// # Errors
    /// Fails if the memory for bulk transfers cannot be registered.
    pub fn new(mut driver: VerbsDriver) -> Result<Self, VerbsError> {
        let registered = driver.add_buffer(PIECES * PIECE_BYTES)?;
        Ok(Self {
            driver,
            spin: SpinPolicy::default(),
            next_token: FIRST_OWN_TOKEN,
            aside: VecDeque::new(),
            shown: Vec::new(),
            posted: 0,
            posted_error: None,
            jobs: VecDeque::new(),
            first_job: 0,
            pieces: [None; PIECES],
            registered,
            bulk_aside: VecDeque::new(),
        })
    }

    /// Returns the driver, for adding grants and mappings.
    pub fn driver(&mut self) -> &mut VerbsDriver {
        &mut self.driver
    }

    fn own_token(&mut self) -> u64 {
        self.next_token = (self.next_token + 1).max(FIRST_OWN_TOKEN);
        if self.next_token >= POSTED_TOKEN {
            self.next_token = FIRST_OWN_TOKEN;
        }
        self.next_token
    }

    /// Takes completions and advances bulk transfers; returns true if there was any completion.
    /// Copies the bytes of the access `token` to the front of `into` and returns its result; puts
    /// others aside.
    fn pump(
        &mut self,
        token: Option<u64>,
        into: &mut [u8],
    ) -> (bool, Option<Result<(), AccessError>>) {
        let (mut any, mut found) = (false, None);
        while let Some(done) = self.driver.poll_completion() {
            any = true;
            if Some(done.token) == token {
                into[..done.data.len()].copy_from_slice(done.data);
                found = Some(done.result);
            } else if done.token == POSTED_TOKEN {
                self.posted -= 1;
                self.posted_error = self.posted_error.or(done.result.err());
            } else if done.token > POSTED_TOKEN {
                let (piece, result) = ((LAST_PIECE_TOKEN - done.token) as usize, done.result);
                self.piece_over(piece, result);
            } else {
                self.aside.push_back((done.token, done.result, done.data.to_vec()));
            }
        }
        self.start_pieces();
        if any {
            self.spin.found(monotonic_ns());
        }
        (any, found)
    }

    /// Spins, yields or sleeps when nothing has arrived.
    fn back_off(&mut self) -> Result<(), PortError> {
        match self.spin.nothing(monotonic_ns()) {
            Next::Look => std::hint::spin_loop(),
            Next::Yield => rustix::thread::sched_yield(),
            Next::Sleep => self.driver.wait(SLEEP_NS)?,
        }
        Ok(())
    }

    /// Starts an access; waits for room if necessary.
    fn start(
        &mut self,
        mut begin: impl FnMut(&mut VerbsDriver) -> Result<(), FabricError>,
    ) -> Result<(), ChannelError> {
        loop {
            match begin(&mut self.driver) {
                Err(FabricError::WouldBlock) => {}
                started => return Ok(started?),
            }
            if !self.pump(None, &mut []).0 {
                self.back_off()?;
            }
        }
    }

    /// Waits for the completion of `token`.
    fn finish(&mut self, token: u64, into: &mut [u8]) -> Result<(), ChannelError> {
        loop {
            match self.pump(Some(token), into) {
                (_, Some(result)) => return Ok(result?),
                (true, None) => {}
                (false, None) => self.back_off()?,
            }
        }
    }
}

/// CRMA, blocking: see [`super::Channels`].
impl VerbsChannels {
    pub(super) fn read(&mut self, addr: u64, into: &mut [u8]) -> Result<(), ChannelError> {
        let (token, len) = (self.own_token(), into.len() as u32);
        self.start(|driver| driver.read(token, addr, len))?;
        self.finish(token, into)
    }

    pub(super) fn write(&mut self, addr: u64, from: &[u8]) -> Result<(), ChannelError> {
        let token = self.own_token();
        self.start(|driver| driver.write(token, addr, from))?;
        self.finish(token, &mut [])
    }

    pub(super) fn post(&mut self, addr: u64, from: &[u8]) -> Result<(), ChannelError> {
        self.start(|driver| driver.write(POSTED_TOKEN, addr, from))?;
        self.posted += 1;
        Ok(())
    }

    pub(super) fn fence(&mut self) -> Result<(), ChannelError> {
        while self.posted > 0 {
            if !self.pump(None, &mut []).0 {
                self.back_off()?;
            }
        }
        self.posted_error.take().map_or(Ok(()), |error| Err(error.into()))
    }

    pub(super) fn fetch_add(&mut self, addr: u64, add: u64) -> Result<u64, ChannelError> {
        let (token, mut old) = (self.own_token(), [0; 8]);
        self.start(|driver| driver.fetch_add(token, addr, add))?;
        self.finish(token, &mut old)?;
        Ok(u64::from_le_bytes(old))
    }

    pub(super) fn compare_swap(
        &mut self,
        addr: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64, ChannelError> {
        let (token, mut old) = (self.own_token(), [0; 8]);
        self.start(|driver| driver.compare_swap(token, addr, expected, new))?;
        self.finish(token, &mut old)?;
        Ok(u64::from_le_bytes(old))
    }
}

/// RDMA: jobs are cut into pieces, one job after the other.
impl VerbsChannels {
    /// Starts as many pieces as fit into the registered memory.
    fn start_pieces(&mut self) {
        let mut number = self.first_job;
        while let Some(free) = self.pieces.iter().position(Option::is_none) {
            let Some(job) = self.jobs.get_mut((number - self.first_job) as usize) else { break };
            if job.result.is_err() || job.started == job.buffer.len() {
                number += 1;
                continue;
            }
            let addr = job.window_addr + job.started as u64;
            let room = self.driver.room_at(addr).unwrap_or(1).min(PIECE_BYTES as u64) as usize;
            let (offset, len) = (job.started, room.min(job.buffer.len() - job.started));
            let (start, token) = (free * PIECE_BYTES, LAST_PIECE_TOKEN - free as u64);
            if job.direction == Bulk::Write {
                let memory = self.driver.buffer(self.registered).cast::<u8>();
                let bytes = &job.buffer[offset..offset + len];
                // SAFETY: a piece of the registered memory that no transfer uses.
                unsafe { memory.add(start).copy_from_nonoverlapping(bytes.as_ptr(), len) };
            }
            let (direction, registered) = (job.direction, self.registered);
            match self.driver.transfer(token, direction, addr, registered, start, len) {
                Ok(()) => {
                    job.started += len;
                    job.under_way += 1;
                    self.pieces[free] = Some(Piece { job: number, offset, len });
                }
                Err(FabricError::WouldBlock) => break,
                Err(FabricError::PeerDown(reason)) => {
                    job.result = Err(AccessError::PeerDown(reason))
                }
                Err(FabricError::Revoked { .. }) => job.result = Err(AccessError::Revoked),
                Err(_) => job.result = Err(AccessError::NotMapped),
            }
        }
        self.retire_jobs();
    }

    fn piece_over(&mut self, index: usize, result: Result<(), AccessError>) {
        let Piece { job, offset, len } =
            self.pieces[index].take().expect("the access is outstanding");
        let job = &mut self.jobs[(job - self.first_job) as usize];
        job.under_way -= 1;
        job.result = job.result.and(result);
        if job.direction == Bulk::Read && result.is_ok() {
            let memory = self.driver.buffer(self.registered).cast::<u8>();
            let into = &mut job.buffer[offset..offset + len];
            // SAFETY: the transfer into this piece of the registered memory has ended.
            unsafe {
                into.as_mut_ptr().copy_from_nonoverlapping(memory.add(index * PIECE_BYTES), len);
            }
        }
    }

    /// Retires completed jobs, in the order they were started.
    fn retire_jobs(&mut self) {
        while self.jobs.front().is_some_and(Job::is_over) {
            let Some(Job { token, result, buffer, .. }) = self.jobs.pop_front() else { return };
            self.first_job += 1;
            let lists = ScatterGather::default();
            self.bulk_aside.push_back(RdmaCompletion { token, result, buffer, lists });
        }
    }

    fn start_job(
        &mut self,
        token: u64,
        direction: Bulk,
        window_addr: u64,
        buffer: Vec<u8>,
    ) -> Result<(), RdmaRejected> {
        let len_bytes = buffer.len() as u64;
        let error = if len_bytes == 0 || window_addr.checked_add(len_bytes).is_none() {
            FabricError::BadLength { window_addr, len_bytes }
        } else if self.jobs.len() + self.bulk_aside.len() >= MAX_JOBS {
            FabricError::WouldBlock
        } else {
            let (started, under_way, result) = (0, 0, Ok(()));
            let job = Job { token, direction, window_addr, buffer, started, under_way, result };
            self.jobs.push_back(job);
            self.start_pieces();
            return Ok(());
        };
        Err(RdmaRejected { error, buffer, lists: ScatterGather::default() })
    }

    /// Waits for the job `token`; puts others aside.
    fn finish_job(&mut self, token: u64) -> Result<Vec<u8>, ChannelError> {
        loop {
            let at = self.bulk_aside.iter().position(|done| done.token == token);
            if let Some(done) = at.and_then(|at| self.bulk_aside.remove(at)) {
                return done.result.map(|()| done.buffer).map_err(ChannelError::from);
            }
            if !self.pump(None, &mut []).0 {
                self.back_off()?;
            }
        }
    }

    fn blocking_job(
        &mut self,
        direction: Bulk,
        addr: u64,
        mut buffer: Vec<u8>,
    ) -> Result<Vec<u8>, ChannelError> {
        let token = self.own_token();
        loop {
            match self.start_job(token, direction, addr, buffer) {
                Ok(()) => return self.finish_job(token),
                Err(RdmaRejected { error: FabricError::WouldBlock, buffer: back, .. }) => {
                    buffer = back;
                    if !self.pump(None, &mut []).0 {
                        self.back_off()?;
                    }
                }
                Err(RdmaRejected { error, .. }) => return Err(error.into()),
            }
        }
    }

    pub(super) fn rdma_read_scattered(
        &mut self,
        parts: &mut [ReadPart<'_>],
    ) -> Result<(), ChannelError> {
        for part in parts {
            let buffer = vec![0; part.into.len()];
            part.into.copy_from_slice(&self.blocking_job(Bulk::Read, part.window_addr, buffer)?);
        }
        Ok(())
    }

    pub(super) fn rdma_write_gathered(
        &mut self,
        parts: &[WritePart<'_>],
    ) -> Result<(), ChannelError> {
        for part in parts {
            self.blocking_job(Bulk::Write, part.window_addr, part.from.to_vec())?;
        }
        Ok(())
    }
}

/// Polled accesses: see [`super::Channels`].
impl VerbsChannels {
    pub(super) fn start_read(
        &mut self,
        token: u64,
        addr: u64,
        len: u32,
    ) -> Result<(), FabricError> {
        check_token(token);
        self.driver.read(token, addr, len)
    }

    pub(super) fn start_write(
        &mut self,
        token: u64,
        addr: u64,
        from: &[u8],
    ) -> Result<(), FabricError> {
        check_token(token);
        self.driver.write(token, addr, from)
    }

    pub(super) fn start_fetch_add(
        &mut self,
        token: u64,
        addr: u64,
        add: u64,
    ) -> Result<(), FabricError> {
        check_token(token);
        self.driver.fetch_add(token, addr, add)
    }

    pub(super) fn start_compare_swap(
        &mut self,
        token: u64,
        addr: u64,
        expected: u64,
        new: u64,
    ) -> Result<(), FabricError> {
        check_token(token);
        self.driver.compare_swap(token, addr, expected, new)
    }

    pub(super) fn start_rdma_read(
        &mut self,
        token: u64,
        addr: u64,
        buffer: Vec<u8>,
    ) -> Result<(), RdmaRejected> {
        check_token(token);
        self.start_job(token, Bulk::Read, addr, buffer)
    }

    pub(super) fn start_rdma_write(
        &mut self,
        token: u64,
        addr: u64,
        buffer: Vec<u8>,
    ) -> Result<(), RdmaRejected> {
        check_token(token);
        self.start_job(token, Bulk::Write, addr, buffer)
    }

    pub(super) fn poll(&mut self) -> Result<Option<Completion<'_>>, PortError> {
        if self.aside.is_empty() {
            self.pump(None, &mut []);
        }
        let Some((token, result, data)) = self.aside.pop_front() else { return Ok(None) };
        self.shown = data;
        Ok(Some(Completion { token, result, data: &self.shown }))
    }

    pub(super) fn poll_rdma(&mut self) -> Result<Option<RdmaCompletion>, PortError> {
        if self.bulk_aside.is_empty() {
            self.pump(None, &mut []);
        }
        Ok(self.bulk_aside.pop_front())
    }

    pub(super) fn wait(&mut self, timeout_ns: u64) -> Result<(), PortError> {
        if self.aside.is_empty() && self.bulk_aside.is_empty() {
            self.driver.wait(timeout_ns)?;
        }
        Ok(())
    }
}

fn check_token(token: u64) {
    assert!(token < FIRST_OWN_TOKEN, "tokens of polled accesses are below 2^63");
}
