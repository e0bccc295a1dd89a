//! The recipient's end: an `Initiator` with a ring to each donor, driven by the calling thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use venice_fabric::{Initiator, InitiatorConfig, LinkConfig, PeerIndex, PeerState};
use venice_wire::{MAX_FRAME_BYTES, NodeId};

use super::RingPort;
use super::port::TOO_SHORT_NS;
use crate::process::Process;
use crate::udp::alarm::Alarm;
use crate::{PortError, monotonic_ns};

/// Most frames taken from one ring in one [`RingDriver::pump`], which bounds the call under any
/// load.
const FRAMES_PER_PUMP: usize = 256;
/// Interval of checks for the end of a donor while no thread sleeps, in nanoseconds.
const LOOK_FOR_END_NS: u64 = 1_000_000;

/// An [`Initiator`] with its rings.
///
/// Start accesses on [`RingDriver::initiator`], then [`RingDriver::pump`] and poll completions;
/// [`RingDriver::wait`] sleeps until there is something to pump. After construction and
/// [`RingDriver::add_peer`] nothing allocates.
///
/// In a forked child the copy is unusable ([`PortError::Forked`]): the parent continues to use the
/// shared rings.
#[derive(Debug)]
pub struct RingDriver {
    initiator: Initiator,
    /// Ports by peer index; `None` once the donor is gone.
    ports: Vec<Option<RingPort>>,
    /// Epoll of all rings and the alarm.
    watch: OwnedFd,
    alarm: Alarm,
    look_for_end_ns: u64,
    process: Process,
}

impl RingDriver {
    /// Makes an initiator without rings. Its links are always set up for a reliable port,
    /// regardless of `config`: no checksum, no replay.
    ///
    /// # Errors
    /// Fails if the system has no descriptor left.
    pub fn new(mut config: InitiatorConfig) -> Result<Self, PortError> {
        config.link = LinkConfig { checksum: false, replay: false, ..config.link };
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(PortError::at("making an epoll descriptor"))?;
        let alarm = Alarm::new()?;
        let driver = Self {
            initiator: Initiator::new(config),
            ports: Vec::new(),
            watch,
            alarm,
            look_for_end_ns: 0,
            process: Process::current()?,
        };
        driver.watch(driver.alarm.as_fd())?;
        Ok(driver)
    }

    /// Adds a donor at the other end of `port` and starts the handshake with it.
    ///
    /// # Errors
    /// Fails if the system cannot watch another descriptor.
    pub fn add_peer(
        &mut self,
        now_ns: u64,
        donor: NodeId,
        port: RingPort,
    ) -> Result<PeerIndex, PortError> {
        self.watch(port.fd())?;
        let peer = self.initiator.add_peer(donor, now_ns);
        assert_eq!(peer.0 as usize, self.ports.len(), "peers are numbered in order, never reused");
        self.ports.push(Some(port));
        Ok(peer)
    }

    fn watch(&self, fd: BorrowedFd<'_>) -> Result<(), PortError> {
        epoll::add(&self.watch, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(PortError::at("watching a descriptor"))
    }

    /// Returns the fabric's end, for starting accesses and polling completions.
    pub fn initiator(&mut self) -> &mut Initiator {
        &mut self.initiator
    }

    /// Moves every frame that can move now, in both directions, and runs the fabric's timers. Never
    /// waits. Returns whether a frame came in. A donor that is gone is marked down.
    ///
    /// # Errors
    /// [`PortError::Forked`] in a forked child.
    pub fn pump(&mut self, now_ns: u64) -> Result<bool, PortError> {
        self.process.check()?;
        if self.initiator.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            self.initiator.handle_timeout(now_ns);
        }
        let looks_for_end = now_ns >= self.look_for_end_ns;
        if looks_for_end {
            self.look_for_end_ns = now_ns + LOOK_FOR_END_NS;
        }
        let mut any = false;
        for (at, entry) in self.ports.iter_mut().enumerate() {
            let Some(port) = entry else { continue };
            let peer = PeerIndex(at as u32);
            if looks_for_end {
                port.look_for_end();
            }
            match exchange(now_ns, &mut self.initiator, peer, port) {
                Ok(received) => any |= received,
                Err(_) => {
                    self.initiator.handle_port_closed(peer);
                    *entry = None;
                    any = true;
                }
            }
        }
        Ok(any)
    }

    /// True if all donors are gone.
    pub(crate) fn is_over(&self) -> bool {
        !self.ports.is_empty() && self.ports.iter().all(Option::is_none)
    }

    /// Sleeps until a frame comes, a donor is gone, one of the fabric's timers is due or
    /// `timeout_ns` have passed, whichever is first; it may return earlier. Pump afterwards in any
    /// case.
    ///
    /// # Errors
    /// [`PortError::Forked`] in a forked child.
    pub fn wait(&mut self, timeout_ns: u64) -> Result<(), PortError> {
        self.process.check()?;
        if self.prepare_wait() {
            let timeout = Timespec {
                tv_sec: (timeout_ns / 1_000_000_000) as i64,
                tv_nsec: (timeout_ns % 1_000_000_000) as i64,
            };
            // The result is irrelevant: the caller checks again.
            let _ = poll(&mut [PollFd::new(&self.watch, PollFlags::IN)], Some(&timeout));
        }
        self.finish_wait();
        Ok(())
    }

    /// Prepares to poll [`RingDriver::fd`] for input, for callers that wait for more than this
    /// driver. `false`: do not sleep, there is something to pump. In either case call
    /// [`RingDriver::finish_wait`] afterwards.
    pub fn prepare_wait(&mut self) -> bool {
        if !self.process.is_current() {
            return false;
        }
        let now_ns = monotonic_ns();
        let mut due_ns = self.initiator.poll_timeout();
        for port in self.ports.iter_mut().flatten() {
            let sleeps = port.prepare_wait();
            match port.next_delivery_ns() {
                None if !sleeps => return false,
                Some(at_ns) if at_ns < now_ns + TOO_SHORT_NS => return false,
                held_ns => due_ns = due_ns.into_iter().chain(held_ns).min(),
            }
        }
        self.alarm.set(now_ns, due_ns);
        true
    }

    /// Ends a wait; see [`RingDriver::prepare_wait`].
    pub fn finish_wait(&mut self) {
        if self.process.is_current() {
            self.ports.iter_mut().flatten().for_each(RingPort::finish_wait);
        }
    }

    /// Returns the descriptor to poll for input after [`RingDriver::prepare_wait`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Returns the time of the next action that is due even if nothing comes in, in nanoseconds of
    /// [`crate::monotonic_ns`]: a timer of the fabric, or the arrival of a frame over an emulated
    /// link.
    pub fn poll_timeout(&self) -> Option<u64> {
        let deliveries = self.ports.iter().flatten().filter_map(RingPort::next_delivery_ns);
        self.initiator.poll_timeout().into_iter().chain(deliveries).min()
    }
}

/// Moves frames between one ring and the initiator. Returns whether any came in.
fn exchange(
    now_ns: u64,
    initiator: &mut Initiator,
    peer: PeerIndex,
    port: &mut RingPort,
) -> Result<bool, PortError> {
    let mut received = 0;
    while received < FRAMES_PER_PUMP
        && let Some(frame) = port.receive(now_ns)?
    {
        initiator.handle_frame(now_ns, peer, frame);
        received += 1;
    }
    while let Some(buffer) = port.reserve()?
        && let Some(len_bytes) = initiator.poll_transmit_to(now_ns, peer, buffer)
    {
        port.commit(now_ns, len_bytes);
    }
    port.announce();
    if let PeerState::Down { .. } = initiator.peer_state(peer) {
        return Err(PortError::Closed);
    }
    Ok(received > 0)
}

const _: () = assert!(super::RING_FRAME_BYTES >= MAX_FRAME_BYTES, "a ring carries any frame");
