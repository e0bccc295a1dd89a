//! One thread of the server: one socket, one `Target`, and its senders.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use venice_fabric::{GrantedMemory, Target, TargetConfig};

use super::UdpSocket;
use super::alarm::Alarm;
use super::incoming::Incoming;
use super::outgoing::{GATHERED_BYTES, Outgoing};
use super::senders::{PlainSenders, SealedSenders, Senders};
use super::serving::{Serving, serve};
use super::shared::Shared;
use super::traffic::REPORT_INTERVAL_NS;
use super::wait_set::WaitSet;
use super::xdp::Xdp;
use crate::PortError;
use crate::seal::SealKeys;

/// Bytes sent between two looks for requests while recipients compete: one transmission.
const ROUND_BYTES: u64 = GATHERED_BYTES as u64;

/// State of the thread.
pub(crate) struct Queue<M> {
    number: usize,
    socket: UdpSocket,
    shared: Arc<Shared>,
    target: Target,
    memory: M,
    senders: Senders,
    incoming: Incoming,
    outgoing: Outgoing,
    alarm: Alarm,
    wait_set: WaitSet,
    xdp: Option<Xdp>,
    /// Time of the last report of moved bytes, in nanoseconds.
    reported_ns: u64,
    /// True while recipients are being notified of the end of a grant.
    is_notifying: bool,
    /// True if the last round ended with frames left to send.
    is_cut: bool,
}

impl<M: GrantedMemory> Queue<M> {
    pub(super) fn new(
        number: usize,
        socket: UdpSocket,
        shared: Arc<Shared>,
        target: TargetConfig,
        memory: M,
        keys: Option<Arc<dyn SealKeys + Send + Sync>>,
        xdp: Option<Xdp>,
    ) -> Result<Self, PortError> {
        let mut incoming = Incoming::new();
        incoming.set_has_frames(keys.is_none());
        let senders = match keys {
            None => Senders::Plain(PlainSenders::default()),
            Some(keys) => {
                let at = (number, socket.local_addr());
                Senders::Sealed(SealedSenders::new(at, keys, &target))
            }
        };
        let alarm = Alarm::new()?;
        let mut fds = vec![alarm.as_fd(), shared.orders[number].as_fd()];
        fds.extend(xdp.iter().flat_map(Xdp::fds));
        Ok(Self {
            number,
            wait_set: WaitSet::new(&fds)?,
            outgoing: Outgoing::new(socket.offloads().segmentation),
            socket,
            shared,
            target: Target::new(target),
            memory,
            senders,
            incoming,
            alarm,
            xdp,
            reported_ns: 0,
            is_notifying: false,
            is_cut: false,
        })
    }

    /// Makes a queue without a server: its user drives it. `keys`: see [`super::UdpService`].
    pub(crate) fn alone(
        socket: UdpSocket,
        mut target: TargetConfig,
        memory: M,
        keys: Option<Arc<dyn SealKeys + Send + Sync>>,
    ) -> Result<Self, PortError> {
        target.link.checksum &= keys.is_none();
        Self::new(0, socket, Arc::new(Shared::of(1)?), target, memory, keys, None)
    }

    pub(crate) fn target(&mut self) -> &mut Target {
        &mut self.target
    }

    pub(crate) fn memory(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Returns the descriptors to sleep on after [`Queue::arm`].
    pub(crate) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.socket.as_fd(), self.alarm.as_fd()]
    }

    /// Sets the alarm for the fabric's next timer. Call it before each sleep.
    pub(crate) fn arm(&mut self, now_ns: u64) {
        self.alarm.set(now_ns, self.target.poll_timeout());
    }

    /// Moves frames and sends everything pending, for a user that drives the queue itself; returns
    /// true if any came in.
    pub(crate) fn drive(&mut self, now_ns: u64) -> Result<bool, PortError> {
        let at = PortError::at("moving datagrams");
        let any = self.take_batch(now_ns).map_err(&at)?;
        while self.is_cut {
            self.transmit(now_ns).map_err(&at)?;
        }
        Ok(any)
    }

    pub(super) fn run(self) {
        serve(self);
    }

    /// Takes one batch and answers a round; returns true if there was any, or more is to be
    /// answered.
    fn take_batch(&mut self, now_ns: u64) -> rustix::io::Result<bool> {
        let orders = &self.shared.orders[self.number];
        orders.clear_wake();
        if orders.apply(now_ns, &mut self.target) {
            self.is_notifying = true;
            self.senders.end_links_of_forgotten(&mut self.target);
        }
        if self.target.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            self.target.handle_timeout(now_ns);
        }
        let mut any = self.take_by_xdp(now_ns);
        if self.xdp.as_mut().is_none_or(|xdp| xdp.is_socket_due(now_ns)) {
            any |= self.take_from_socket(now_ns)?;
        }
        self.transmit(now_ns)?;
        if self.is_notifying {
            self.is_notifying = self.shared.orders[self.number].update_pending(&self.target);
        }
        if any && now_ns.saturating_sub(self.reported_ns) >= REPORT_INTERVAL_NS {
            self.reported_ns = now_ns;
            self.publish();
        }
        Ok(any || self.is_cut)
    }

    fn take_from_socket(&mut self, now_ns: u64) -> rustix::io::Result<bool> {
        let received = self.incoming.receive(self.socket.as_fd())?;
        if received > 0 {
            self.wait_set.note_batch(self.socket.as_fd());
        }
        if let Some(xdp) = &mut self.xdp
            && self.incoming.is_stream()
        {
            xdp.note_stream(now_ns);
        }
        let Self { incoming, senders, shared, target, memory, .. } = self;
        incoming.for_each(|from, datagram| {
            senders.take(now_ns, from, datagram, shared, |from, frame| {
                target.handle_frame(now_ns, from, frame, memory);
            });
        });
        Ok(received > 0)
    }

    fn take_by_xdp(&mut self, now_ns: u64) -> bool {
        let Self { xdp: Some(xdp), senders, shared, target, memory, .. } = self else {
            return false;
        };
        xdp.take(now_ns, |from, datagram| {
            let mut is_genuine = false;
            senders.take(now_ns, from, datagram, shared, |from, frame| {
                is_genuine = true;
                target.handle_frame(now_ns, from, frame, memory);
            });
            is_genuine
        })
    }

    fn publish(&mut self) {
        self.senders.publish(&self.shared.traffic);
        if let Some(xdp) = &self.xdp {
            *self.shared.xdp.lock().unwrap_or_else(PoisonError::into_inner) = xdp.counts();
        }
    }

    /// Sends one round. A look for requests follows: a recipient with small requests must not wait
    /// until all requests of others are answered.
    fn transmit(&mut self, now_ns: u64) -> rustix::io::Result<()> {
        // With only one recipient, the transmission size is the only bound: an answer covers
        // everything written before, and a writer is faster when several links proceed together.
        let round_bytes = if self.target.is_contended() { ROUND_BYTES } else { u64::MAX };
        let until_bytes = self.target.moved_bytes().saturating_add(round_bytes);
        self.senders.gather(now_ns, until_bytes, &mut self.target, &mut self.outgoing);
        self.is_cut = self.outgoing.is_full() || self.target.moved_bytes() >= until_bytes;
        let target = &self.target;
        let kept = |frame: &_| target.kept(frame);
        if let Some(xdp) = &mut self.xdp {
            xdp.send(now_ns, &mut self.outgoing, kept);
        }
        if !self.outgoing.is_empty() {
            self.outgoing.send_with(self.socket.as_fd(), kept)?;
        }
        Ok(())
    }

    fn wait(&mut self, now_ns: u64) {
        self.alarm.set(now_ns, self.target.poll_timeout());
        if self.wait_set.sleep(self.socket.as_fd()).is_err() {
            // The kernel is short of memory for a moment.
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(xdp) = &mut self.xdp {
            xdp.force_socket_look();
        }
    }
}

impl<M: GrantedMemory> Serving for Queue<M> {
    fn is_over(&self) -> bool {
        self.shared.stop.load(Ordering::Acquire)
    }

    fn pump(&mut self, now_ns: u64) -> rustix::io::Result<bool> {
        self.take_batch(now_ns)
    }

    fn has_more(&self) -> bool {
        self.incoming.is_full() || self.is_cut
    }

    fn sleep(&mut self, now_ns: u64) {
        self.wait(now_ns);
    }
}

impl<M> std::fmt::Debug for Queue<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("socket", &self.socket).finish_non_exhaustive()
    }
}
