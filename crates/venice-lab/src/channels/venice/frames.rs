//! Accesses that travel in frames: an initiator, and a driver that moves its frames.

use anyhow::{Context, Result, anyhow, bail};
use venice_fabric::{FabricError, Initiator, PeerIndex, PeerState};
use venice_ports::monotonic_ns;
use venice_ports::ring::RingDriver;
use venice_ports::udp::UdpDriver;

use super::Bed;
use super::lent::WINDOW;
use crate::channels::raw::Waiting;
use crate::channels::series::Operation;
use venice_measure::interrupt;

/// Outstanding CRMA accesses.
const ACCESSES: usize = 64;
/// Outstanding bytes of bulk transfers, and the most descriptors.
const BULK_BYTES: usize = 8 << 20;
const DESCRIPTORS: usize = 32;
/// Time after which an access counts as failed.
const PATIENCE_NS: u64 = 30_000_000_000;
/// Polls without a frame before the first clock read.
const LOOKS: u32 = 1 << 12;
/// Longest wait of a sleeping end without a check for Ctrl-C.
const NAP_NS: u64 = 50_000_000;

/// Moves the frames of an initiator.
pub(super) trait Driver {
    fn initiator(&mut self) -> &mut Initiator;
    fn pump(&mut self, now_ns: u64) -> Result<()>;
    fn wait(&mut self, timeout_ns: u64) -> Result<()>;
}

impl Driver for UdpDriver {
    fn initiator(&mut self) -> &mut Initiator {
        self.initiator()
    }

    fn pump(&mut self, now_ns: u64) -> Result<()> {
        self.pump(now_ns).map(drop).context("the udp port failed")
    }

    fn wait(&mut self, timeout_ns: u64) -> Result<()> {
        self.wait(monotonic_ns(), timeout_ns).context("the udp port failed")
    }
}

impl Driver for RingDriver {
    fn initiator(&mut self) -> &mut Initiator {
        self.initiator()
    }

    fn pump(&mut self, now_ns: u64) -> Result<()> {
        self.pump(now_ns).map(drop).context("the ring failed")
    }

    fn wait(&mut self, timeout_ns: u64) -> Result<()> {
        self.wait(timeout_ns).context("the ring failed")
    }
}

/// Pumps until `done` has an answer.
///
/// # Errors
/// When it fails, when the port does, on an interrupt, and after a timeout.
pub(super) fn pump_until<D: Driver, T>(
    driver: &mut D,
    waiting: Waiting,
    mut done: impl FnMut(&mut D, u64) -> Result<Option<T>>,
) -> Result<T> {
    let (mut looks, mut begun_ns) = (0u32, None);
    loop {
        let now_ns = monotonic_ns();
        driver.pump(now_ns)?;
        if let Some(answer) = done(driver, now_ns)? {
            return Ok(answer);
        }
        if waiting == Waiting::Sleep {
            driver.wait(NAP_NS)?;
        }
        looks += 1;
        if looks.is_multiple_of(LOOKS) || waiting == Waiting::Sleep {
            interrupt::check()?;
            let begun_ns = *begun_ns.get_or_insert(now_ns);
            if now_ns - begun_ns > PATIENCE_NS {
                bail!("the other end does not answer");
            }
        }
    }
}

/// Waits until the link is up.
///
/// # Errors
/// The same as [`pump_until`].
pub(super) fn link_up(driver: &mut impl Driver, peer: PeerIndex) -> Result<()> {
    pump_until(driver, Waiting::Spin, |driver, _| {
        Ok((driver.initiator().peer_state(peer) == PeerState::Up).then_some(()))
    })
}

/// A recipient whose accesses travel in frames.
pub(in crate::channels) struct FrameBed<D> {
    pub(super) driver: D,
    waiting: Waiting,
    under_way: usize,
    bytes: Vec<u8>,
    /// Buffers of completed bulk transfers.
    spare: Vec<Vec<u8>>,
}

impl<D: Driver> FrameBed<D> {
    /// Creates it around a driver whose link is up.
    pub(super) fn new(driver: D, waiting: Waiting) -> Self {
        Self { driver, waiting, under_way: 0, bytes: vec![0xa5; 4096], spare: Vec::new() }
    }

    /// Starts an access; returns true if it was accepted.
    fn start(&mut self, operation: Operation, len: usize) -> Result<bool> {
        let now_ns = monotonic_ns();
        let initiator = self.driver.initiator();
        let begun = match operation {
            Operation::Read => initiator.read(now_ns, 0, WINDOW, len as u32),
            Operation::Write => initiator.write(now_ns, 0, WINDOW, &self.bytes[..len]),
            Operation::Atomic => initiator.fetch_add(now_ns, 0, WINDOW, 1),
            Operation::BulkRead | Operation::BulkWrite => {
                let mut buffer = self.spare.pop().unwrap_or_default();
                buffer.resize(len, 0xa5);
                let begun = if operation == Operation::BulkRead {
                    initiator.rdma_read(now_ns, 0, WINDOW, buffer)
                } else {
                    initiator.rdma_write(now_ns, 0, WINDOW, buffer)
                };
                begun.map_err(|rejected| {
                    self.spare.push(rejected.buffer);
                    rejected.error
                })
            }
            other => bail!("{} is not an access", other.title()),
        };
        match begun {
            Ok(()) => {
                self.under_way += 1;
                Ok(true)
            }
            Err(FabricError::WouldBlock) => Ok(false),
            Err(error) => Err(error).context("an access was not taken"),
        }
    }

    /// Waits until an access completes; returns how many did.
    fn finish_some(&mut self) -> Result<usize> {
        let Self { driver, waiting, spare, .. } = self;
        let over = pump_until(driver, *waiting, |driver, _| {
            let mut over = 0;
            let initiator = driver.initiator();
            while let Some(done) = initiator.poll_completion() {
                done.result.map_err(|error| anyhow!("an access failed: {error}"))?;
                over += 1;
            }
            while let Some(done) = initiator.poll_rdma_completion() {
                done.result.map_err(|error| anyhow!("a bulk transfer failed: {error}"))?;
                spare.push(done.buffer);
                over += 1;
            }
            Ok((over > 0).then_some(over))
        })?;
        self.under_way -= over;
        Ok(over)
    }
}

impl<D: Driver> Bed for FrameBed<D> {
    fn once(&mut self, operation: Operation, len: usize) -> Result<()> {
        if !self.start(operation, len)? {
            bail!("an idle channel takes no access");
        }
        self.finish_some().map(drop)
    }

    fn many(&mut self, operation: Operation, len: usize) -> Result<u64> {
        let limit = match operation {
            Operation::BulkRead | Operation::BulkWrite => (BULK_BYTES / len).clamp(2, DESCRIPTORS),
            _ => ACCESSES,
        };
        while self.under_way < limit && self.start(operation, len)? {}
        Ok(self.finish_some()? as u64 * len as u64)
    }

    fn settle(&mut self) -> Result<()> {
        while self.under_way > 0 {
            self.finish_some()?;
        }
        Ok(())
    }
}
