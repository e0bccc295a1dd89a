//! Frames through shared memory: an initiator in this thread, a target on another core, and a pair
//! of rings between them, which can emulate a slower link.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, Result};
use venice_fabric::{LinkConfig, LinkModel, PeerAddr, PeerIndex, QPairConfig, Target};
use venice_memory::donor::SharedGrants;
use venice_ports::monotonic_ns;
use venice_ports::ring::{RingConfig, RingDriver, RingPort};

use super::frames::{FrameBed, link_up, pump_until};
use super::lent::{DONOR, GRANT, KEY, WINDOW, answer_mailbox, donor, lent, recipient};
use super::talk::{Role, SERVICE, Talker};
use super::{Bed, MEMORY_BYTES};
use crate::channels::measure::Ends;
use crate::channels::path::FarEnd;
use crate::channels::raw::Waiting;
use crate::channels::series::Operation;

/// Bytes of each ring.
const RING_BYTES: usize = 1 << 20;
/// Turns of the far end between two checks of its stop flag.
const TURNS: u32 = 1 << 10;

/// A recipient, and a donor's thread that serves memory and one QPair.
pub(in crate::channels) struct RingBed {
    near: FrameBed<RingDriver>,
    peer: PeerIndex,
    _far: FarEnd,
    /// Bytes of messages that have arrived at the far end.
    arrived: Arc<AtomicU64>,
}

impl RingBed {
    /// Joins both ends. The calling thread is the near one. The far end performs `role` on the
    /// QPair that [`RingBed::connect`] makes.
    ///
    /// # Errors
    /// When memory or threads cannot be made, or no link comes up.
    pub(super) fn lay(
        ends: Ends,
        model: Option<LinkModel>,
        far: Talker,
        waiting: Waiting,
    ) -> Result<Self> {
        let config = RingConfig { ring_bytes: RING_BYTES, link: model };
        let (near_port, far_port) = RingPort::pair(&config)?;
        let arrived = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&arrived);
        let serve = move |(port, target, lent): (RingPort, Target, SharedGrants),
                          stop: &AtomicBool| {
            // A broken ring is detected at the near end.
            let _ = Donor { port, target, lent, talker: far, counter }.serve(stop);
        };
        let prepare = move || {
            let mut config = donor()?;
            config.link = LinkConfig { checksum: false, replay: false, ..config.link };
            Ok(((), (far_port, Target::new(config), lent()?)))
        };
        let (far, ()) = FarEnd::start(None, ends.far_cpu, prepare, serve)?;
        let mut driver = RingDriver::new(recipient()?)?;
        let peer = driver.add_peer(monotonic_ns(), DONOR, near_port)?;
        driver.initiator().map_window(WINDOW, MEMORY_BYTES as u64, peer, 0, GRANT, KEY)?;
        link_up(&mut driver, peer)?;
        Ok(Self { near: FrameBed::new(driver, waiting), peer, _far: far, arrived })
    }

    /// Connects `talker` to the far end's.
    ///
    /// # Errors
    /// When the far end does not accept.
    pub(super) fn connect(&mut self, talker: &mut Talker, config: QPairConfig) -> Result<()> {
        let peer = self.peer;
        let driver = &mut self.near.driver;
        let now_ns = monotonic_ns();
        driver
            .initiator()
            .qpair_connect(now_ns, peer, SERVICE, config)
            .context("no QPair can be made")?;
        pump_until(driver, Waiting::Spin, |driver, _| {
            talker.settle(driver.initiator().qpairs_mut())?;
            Ok(talker.is_connected().then_some(()))
        })
    }

    pub(super) fn driver(&mut self) -> &mut RingDriver {
        &mut self.near.driver
    }

    /// Returns the bytes of messages that have arrived at the far end.
    pub(super) fn arrived_bytes(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    /// Returns the same as a shared counter, to be read while the bed is in use.
    pub(super) fn arrived(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.arrived)
    }

    /// Joins both ends; the far end only lends memory.
    ///
    /// # Errors
    /// When memory or threads cannot be made, or no link comes up.
    pub(in crate::channels) fn lend(ends: Ends, model: Option<LinkModel>) -> Result<Self> {
        let silent = Talker::new(Role::Idle, QPairConfig::default().end, 0);
        Self::lay(ends, model, silent, Waiting::Spin)
    }
}

/// The far end.
struct Donor {
    port: RingPort,
    target: Target,
    lent: SharedGrants,
    talker: Talker,
    counter: Arc<AtomicU64>,
}

impl Donor {
    fn serve(mut self, stop: &AtomicBool) -> Result<()> {
        let from = PeerAddr(0);
        self.target.qpairs_mut().listen(SERVICE, 1)?;
        while !stop.load(Ordering::Relaxed) {
            self.port.look_for_end();
            for _ in 0..TURNS {
                let now_ns = monotonic_ns();
                if self.target.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
                    self.target.handle_timeout(now_ns);
                }
                let mut any = false;
                while let Some(frame) = self.port.receive(now_ns)? {
                    self.target.handle_frame(now_ns, from, frame, &mut self.lent);
                    any = true;
                }
                answer_mailbox(&mut self.lent);
                any |= self.talker.act(now_ns, self.target.qpairs_mut(), &mut self.lent)?;
                while let Some(buffer) = self.port.reserve()?
                    && let Some((_, len)) = self.target.poll_transmit(now_ns, buffer)
                {
                    self.port.commit(now_ns, len);
                }
                self.port.announce();
                if any {
                    self.counter.store(self.talker.received_bytes, Ordering::Relaxed);
                } else {
                    std::hint::spin_loop();
                }
            }
        }
        Ok(())
    }
}

impl Bed for RingBed {
    fn once(&mut self, operation: Operation, len: usize) -> Result<()> {
        self.near.once(operation, len)
    }

    fn many(&mut self, operation: Operation, len: usize) -> Result<u64> {
        self.near.many(operation, len)
    }

    fn settle(&mut self) -> Result<()> {
        self.near.settle()
    }
}
