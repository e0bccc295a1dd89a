//! The channels over ports that move frames: the fabric's initiator, pumped by the calling thread.

use std::collections::VecDeque;

use venice_fabric::{
    AccessError, Completion, FabricError, Initiator, RdmaCompletion, RdmaRejected,
};

use super::{ChannelError, ReadPart, WritePart};
use crate::ring::RingDriver;
use crate::spin_policy::{Next, SpinPolicy};
use crate::udp::UdpDriver;
use crate::{PortError, monotonic_ns};

/// Longest sleep while a completion is outstanding. The driver wakes earlier for any event.
const SLEEP_NS: u64 = 1_000_000_000;

/// An initiator together with the port that moves its frames.
pub trait FrameDriver {
    /// Returns the fabric's end.
    fn initiator(&mut self) -> &mut Initiator;

    /// Moves every frame that can move now; returns true if any came in. Never waits.
    ///
    /// # Errors
    /// Fails if the port has failed for good.
    fn pump(&mut self, now_ns: u64) -> Result<bool, PortError>;

    /// Sleeps until there is something to pump, or for `timeout_ns`.
    ///
    /// # Errors
    /// Fails if the port has failed for good.
    fn wait(&mut self, timeout_ns: u64) -> Result<(), PortError>;
}

impl FrameDriver for UdpDriver {
    fn initiator(&mut self) -> &mut Initiator {
        Self::initiator(self)
    }

    fn pump(&mut self, now_ns: u64) -> Result<bool, PortError> {
        Self::pump(self, now_ns)
    }

    fn wait(&mut self, timeout_ns: u64) -> Result<(), PortError> {
        Self::wait(self, monotonic_ns(), timeout_ns)
    }
}

impl FrameDriver for RingDriver {
    fn initiator(&mut self) -> &mut Initiator {
        Self::initiator(self)
    }

    fn pump(&mut self, now_ns: u64) -> Result<bool, PortError> {
        Self::pump(self, now_ns)
    }

    fn wait(&mut self, timeout_ns: u64) -> Result<(), PortError> {
        Self::wait(self, timeout_ns)
    }
}

/// The channels over a driver. Add donors on the driver and mappings on its initiator
/// ([`FramedChannels::driver`]).
#[derive(Debug)]
pub struct FramedChannels<D> {
    driver: D,
    spin: SpinPolicy,
    /// Token of the next blocking access. They count downwards, apart from the caller's tokens.
    next_token: u64,
    /// Completions of other accesses that arrived during a blocking access.
    aside: VecDeque<(u64, Result<(), AccessError>, Vec<u8>)>,
    bulk_aside: VecDeque<RdmaCompletion>,
    /// True if the last poll found nothing: pump the port before the next one.
    drained: bool,
    /// Bytes of the completion last polled from `aside`.
    shown: Vec<u8>,
    /// Buffers of bulk transfers, reused.
    spare: Vec<Vec<u8>>,
}

/// First token of blocking accesses; the caller's tokens are below it.
const FIRST_OWN_TOKEN: u64 = 1 << 63;

impl<D: FrameDriver> FramedChannels<D> {
    /// Builds the channels over `driver`. Tokens of polled accesses must be below 2⁶³.
    pub fn new(driver: D) -> Self {
        Self {
            driver,
            spin: SpinPolicy::default(),
            next_token: u64::MAX,
            aside: VecDeque::new(),
            bulk_aside: VecDeque::new(),
            drained: true,
            shown: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Returns the driver, for adding donors and mappings.
    pub fn driver(&mut self) -> &mut D {
        &mut self.driver
    }

    fn own_token(&mut self) -> u64 {
        self.next_token = self.next_token.wrapping_sub(1) | FIRST_OWN_TOKEN;
        self.next_token
    }

    /// Moves frames; returns true if any came in.
    fn pump(&mut self, now_ns: u64) -> Result<bool, PortError> {
        let any = self.driver.pump(now_ns)?;
        if any {
            self.spin.found(now_ns);
        }
        Ok(any)
    }

    /// Spins, yields or sleeps when nothing has arrived.
    fn back_off(&mut self, now_ns: u64) -> Result<(), PortError> {
        match self.spin.nothing(now_ns) {
            Next::Look => std::hint::spin_loop(),
            Next::Yield => rustix::thread::sched_yield(),
            Next::Sleep => self.driver.wait(SLEEP_NS)?,
        }
        Ok(())
    }

    /// Starts an access; waits for room if necessary.
    fn start(
        &mut self,
        mut begin: impl FnMut(&mut Initiator, u64) -> Result<(), FabricError>,
    ) -> Result<(), ChannelError> {
        loop {
            let now_ns = monotonic_ns();
            match begin(self.driver.initiator(), now_ns) {
                Err(FabricError::WouldBlock) => {}
                started => return Ok(started?),
            }
            let any = self.pump(now_ns)?;
            let before = self.aside.len();
            self.take_completions(None, &mut []);
            if !any && self.aside.len() == before {
                self.back_off(now_ns)?;
            }
        }
    }

    /// Waits for the completion of `token`; copies its bytes to the front of `into`.
    fn finish(&mut self, token: u64, into: &mut [u8]) -> Result<(), ChannelError> {
        loop {
            let now_ns = monotonic_ns();
            let any = self.pump(now_ns)?;
            // A fence with no outstanding write before it completes without a frame.
            if let Some(result) = self.take_completions(Some(token), into) {
                return Ok(result?);
            }
            if !any {
                self.back_off(now_ns)?;
            }
        }
    }

    /// Takes all completions; puts those of other tokens aside.
    fn take_completions(
        &mut self,
        token: Option<u64>,
        into: &mut [u8],
    ) -> Option<Result<(), AccessError>> {
        let mut found = None;
        while let Some(done) = self.driver.initiator().poll_completion() {
            if Some(done.token) == token {
                into[..done.data.len()].copy_from_slice(done.data);
                found = Some(done.result);
            } else {
                self.aside.push_back((done.token, done.result, done.data.to_vec()));
            }
        }
        found
    }
}

/// CRMA, blocking: see [`super::Channels`].
impl<D: FrameDriver> FramedChannels<D> {
    pub(super) fn read(&mut self, addr: u64, into: &mut [u8]) -> Result<(), ChannelError> {
        let (token, len) = (self.own_token(), into.len() as u32);
        self.start(|initiator, now_ns| initiator.read(now_ns, token, addr, len))?;
        self.finish(token, into)
    }

    pub(super) fn write(&mut self, addr: u64, from: &[u8]) -> Result<(), ChannelError> {
        let token = self.own_token();
        self.start(|initiator, now_ns| initiator.write(now_ns, token, addr, from))?;
        self.finish(token, &mut [])
    }

    pub(super) fn post(&mut self, addr: u64, from: &[u8]) -> Result<(), ChannelError> {
        self.start(|initiator, now_ns| initiator.post(now_ns, addr, from))?;
        // Sends a posted write without waiting for the next call.
        self.pump(monotonic_ns())?;
        Ok(())
    }

    pub(super) fn fence(&mut self) -> Result<(), ChannelError> {
        let token = self.own_token();
        self.start(|initiator, now_ns| initiator.fence(now_ns, token))?;
        self.finish(token, &mut [])
    }

    pub(super) fn fetch_add(&mut self, addr: u64, add: u64) -> Result<u64, ChannelError> {
        let (token, mut old) = (self.own_token(), [0; 8]);
        self.start(|initiator, now_ns| initiator.fetch_add(now_ns, token, addr, add))?;
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
        self.start(|initiator, now_ns| initiator.compare_swap(now_ns, token, addr, expected, new))?;
        self.finish(token, &mut old)?;
        Ok(u64::from_le_bytes(old))
    }
}

/// RDMA, blocking: see [`super::Channels`].
impl<D: FrameDriver> FramedChannels<D> {
    pub(super) fn rdma_read_scattered(
        &mut self,
        parts: &mut [ReadPart<'_>],
    ) -> Result<(), ChannelError> {
        let lens: Vec<_> = parts.iter().map(|part| (part.window_addr, part.into.len())).collect();
        self.bulk(
            &lens,
            |initiator, token, _at, addr, buffer| {
                initiator.rdma_read(monotonic_ns(), token, addr, buffer)
            },
            |at, buffer| parts[at].into.copy_from_slice(buffer),
        )
    }

    pub(super) fn rdma_write_gathered(
        &mut self,
        parts: &[WritePart<'_>],
    ) -> Result<(), ChannelError> {
        let lens: Vec<_> = parts.iter().map(|part| (part.window_addr, part.from.len())).collect();
        self.bulk(
            &lens,
            |initiator, token, at, addr, mut buffer| {
                buffer.copy_from_slice(parts[at].from);
                initiator.rdma_write(monotonic_ns(), token, addr, buffer)
            },
            |_, _| {},
        )
    }

    /// Starts a descriptor for each part as room allows, and waits for all that were accepted.
    fn bulk(
        &mut self,
        parts: &[(u64, usize)],
        mut begin: impl FnMut(&mut Initiator, u64, usize, u64, Vec<u8>) -> Result<(), RdmaRejected>,
        mut finished: impl FnMut(usize, &[u8]),
    ) -> Result<(), ChannelError> {
        // Part `at` has token `first_token - at`.
        let first_token = self.own_token();
        self.next_token -= parts.len() as u64;
        let (mut started, mut done, mut result) = (0, 0, Ok(()));
        while done < started || (started < parts.len() && result.is_ok()) {
            while started < parts.len() && result.is_ok() {
                let (addr, len) = parts[started];
                let mut buffer = self.spare.pop().unwrap_or_default();
                buffer.resize(len, 0);
                let token = first_token - started as u64;
                match begin(self.driver.initiator(), token, started, addr, buffer) {
                    Ok(()) => started += 1,
                    Err(RdmaRejected { error, buffer, .. }) => {
                        self.spare.push(buffer);
                        if error == FabricError::WouldBlock {
                            break;
                        }
                        result = Err(ChannelError::from(error));
                    }
                }
            }
            let now_ns = monotonic_ns();
            let (any, before) = (self.pump(now_ns)?, done);
            while let Some(completion) = self.driver.initiator().poll_rdma_completion() {
                if completion.token < FIRST_OWN_TOKEN {
                    self.bulk_aside.push_back(completion);
                    continue;
                }
                // A part that failed because of its port may leave others outstanding: their
                // answers are ignored.
                let at = first_token.checked_sub(completion.token);
                if let Some(at) = at.filter(|&at| at < started as u64) {
                    done += 1;
                    match completion.result {
                        Ok(()) => finished(at as usize, &completion.buffer),
                        Err(error) => result = result.and(Err(error.into())),
                    }
                }
                self.spare.push(completion.buffer);
            }
            if !any && done == before {
                self.back_off(now_ns)?;
            }
        }
        self.spare.truncate(SPARE_BUFFERS);
        result
    }
}

/// Buffers kept for the next bulk transfers.
const SPARE_BUFFERS: usize = 4;

/// Polled accesses: see [`super::Channels`].
impl<D: FrameDriver> FramedChannels<D> {
    pub(super) fn start_read(
        &mut self,
        token: u64,
        addr: u64,
        len: u32,
    ) -> Result<(), FabricError> {
        check_token(token);
        self.driver.initiator().read(monotonic_ns(), token, addr, len)
    }

    pub(super) fn start_write(
        &mut self,
        token: u64,
        addr: u64,
        from: &[u8],
    ) -> Result<(), FabricError> {
        check_token(token);
        self.driver.initiator().write(monotonic_ns(), token, addr, from)
    }

    pub(super) fn start_fetch_add(
        &mut self,
        token: u64,
        addr: u64,
        add: u64,
    ) -> Result<(), FabricError> {
        check_token(token);
        self.driver.initiator().fetch_add(monotonic_ns(), token, addr, add)
    }

    pub(super) fn start_compare_swap(
        &mut self,
        token: u64,
        addr: u64,
        expected: u64,
        new: u64,
    ) -> Result<(), FabricError> {
        check_token(token);
        self.driver.initiator().compare_swap(monotonic_ns(), token, addr, expected, new)
    }

    pub(super) fn start_rdma_read(
        &mut self,
        token: u64,
        addr: u64,
        buffer: Vec<u8>,
    ) -> Result<(), RdmaRejected> {
        check_token(token);
        self.driver.initiator().rdma_read(monotonic_ns(), token, addr, buffer)
    }

    pub(super) fn start_rdma_write(
        &mut self,
        token: u64,
        addr: u64,
        buffer: Vec<u8>,
    ) -> Result<(), RdmaRejected> {
        check_token(token);
        self.driver.initiator().rdma_write(monotonic_ns(), token, addr, buffer)
    }

    pub(super) fn poll(&mut self) -> Result<Option<Completion<'_>>, PortError> {
        if let Some((token, result, data)) = self.aside.pop_front() {
            self.shown = data;
            return Ok(Some(Completion { token, result, data: &self.shown }));
        }
        self.pump_if_drained()?;
        let completion = self.driver.initiator().poll_completion();
        self.drained = completion.is_none();
        Ok(completion)
    }

    pub(super) fn poll_rdma(&mut self) -> Result<Option<RdmaCompletion>, PortError> {
        if let Some(completion) = self.bulk_aside.pop_front() {
            return Ok(Some(completion));
        }
        self.pump_if_drained()?;
        let completion = self.driver.initiator().poll_rdma_completion();
        self.drained = completion.is_none();
        Ok(completion)
    }

    /// Moves frames only after all completions of the last ones were polled.
    fn pump_if_drained(&mut self) -> Result<(), PortError> {
        if self.drained {
            self.pump(monotonic_ns())?;
        }
        Ok(())
    }

    pub(super) fn wait(&mut self, timeout_ns: u64) -> Result<(), PortError> {
        self.driver.wait(timeout_ns)
    }
}

fn check_token(token: u64) {
    assert!(token < FIRST_OWN_TOKEN, "tokens of polled accesses are below 2^63");
}
