//! One end of a link with its port: an initiator or a target, over rings or udp.

use std::os::fd::OwnedFd;

use rustix::event::epoll;
use venice_fabric::{Initiator, LinkConfig, PeerAddr, QPairs, Target, TargetConfig};

use super::landing::Landings;
use crate::ring::{RingDriver, RingPort};
use crate::udp::{UdpDriver, UdpEnd};
use crate::{PortError, monotonic_ns};

/// Interval and time-out of a link without pings: on a ring the socket's end reveals the death of
/// the other side, and a program may pause for hours between two calls.
const NEVER_NS: u64 = 1 << 60;
/// Frames taken in one call.
const FRAMES_PER_PUMP: usize = 256;
/// Interval of checks for the end of the other side while no thread sleeps, in nanoseconds.
const LOOK_FOR_END_NS: u64 = 1_000_000;

/// A connecting end has an initiator, a listening end a target, over either port.
#[derive(Debug)]
pub(crate) enum Link {
    RingCaller(Box<RingDriver>),
    RingListener(Box<RingTarget>),
    UdpCaller(Box<UdpDriver>),
    UdpListener(Box<UdpEnd<Landings>>),
}

/// The accepting end of one ring.
#[derive(Debug)]
pub(crate) struct RingTarget {
    port: RingPort,
    target: Target,
    landings: Landings,
    look_for_end_ns: u64,
    is_over: bool,
}

/// Configures the link of a ring for QPairs.
pub(super) fn ring_link(link: LinkConfig) -> LinkConfig {
    LinkConfig {
        checksum: false,
        replay: false,
        keepalive_ns: NEVER_NS,
        silence_ns: NEVER_NS,
        ..link
    }
}

impl RingTarget {
    pub(super) fn new(port: RingPort, mut config: TargetConfig) -> Self {
        config.link = ring_link(config.link);
        config.link_idle_ns = NEVER_NS;
        config.max_links = 1;
        Self {
            port,
            target: Target::new(config),
            landings: Landings::default(),
            look_for_end_ns: 0,
            is_over: false,
        }
    }

    fn pump(&mut self, now_ns: u64) -> Result<bool, PortError> {
        if self.target.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            self.target.handle_timeout(now_ns);
        }
        if now_ns >= self.look_for_end_ns {
            self.look_for_end_ns = now_ns + LOOK_FOR_END_NS;
            self.port.look_for_end();
        }
        let mut received = 0;
        while received < FRAMES_PER_PUMP
            && let Some(frame) = self.port.receive(now_ns)?
        {
            self.target.handle_frame(now_ns, PeerAddr(0), frame, &mut self.landings);
            received += 1;
        }
        while let Some(buffer) = self.port.reserve()?
            && let Some((_, len_bytes)) = self.target.poll_transmit(now_ns, buffer)
        {
            self.port.commit(now_ns, len_bytes);
        }
        self.port.announce();
        Ok(received > 0)
    }
}

impl Link {
    pub(super) fn qpairs(&mut self) -> &mut QPairs {
        match self {
            Self::RingCaller(driver) => driver.initiator().qpairs_mut(),
            Self::RingListener(end) => end.target.qpairs_mut(),
            Self::UdpCaller(driver) => driver.initiator().qpairs_mut(),
            Self::UdpListener(end) => end.target().qpairs_mut(),
        }
    }

    /// Returns the initiator of a connecting end.
    pub(super) fn initiator(&mut self) -> Option<&mut Initiator> {
        match self {
            Self::RingCaller(driver) => Some(driver.initiator()),
            Self::UdpCaller(driver) => Some(driver.initiator()),
            Self::RingListener(_) | Self::UdpListener(_) => None,
        }
    }

    /// Returns the landing regions of an accepting end.
    pub(super) fn landings(&mut self) -> Option<&mut Landings> {
        match self {
            Self::RingListener(end) => Some(&mut end.landings),
            Self::UdpListener(end) => Some(end.memory()),
            Self::RingCaller(_) | Self::UdpCaller(_) => None,
        }
    }

    /// Moves what can move; returns true if anything came in.
    ///
    /// # Errors
    /// Fails if the port is closed or has failed for good.
    #[inline]
    pub(super) fn pump(&mut self, now_ns: u64) -> Result<bool, PortError> {
        match self {
            Self::RingCaller(driver) => {
                let any = driver.pump(now_ns)?;
                if driver.is_over() { Err(PortError::Closed) } else { Ok(any) }
            }
            Self::RingListener(end) if end.is_over => Err(PortError::Closed),
            Self::RingListener(end) => end.pump(now_ns).inspect_err(|_| end.is_over = true),
            Self::UdpCaller(driver) => driver.pump(now_ns),
            Self::UdpListener(end) => end.drive(now_ns),
        }
    }

    /// True if the end can be dropped without loss of sent bytes.
    pub(super) fn is_settled(&mut self) -> bool {
        match self {
            Self::RingCaller(driver) => driver.initiator().is_settled(),
            Self::RingListener(end) => end.target.is_settled(),
            Self::UdpCaller(driver) => driver.initiator().is_settled(),
            Self::UdpListener(end) => end.target().is_settled(),
        }
    }

    /// Prepares to sleep. `false` if there is something to pump now.
    pub(super) fn prepare_wait(&mut self) -> bool {
        match self {
            Self::RingCaller(driver) => driver.prepare_wait(),
            Self::RingListener(end) => !end.is_over && end.port.prepare_wait(),
            Self::UdpCaller(driver) => {
                driver.arm(monotonic_ns());
                true
            }
            Self::UdpListener(end) => {
                end.arm(monotonic_ns());
                true
            }
        }
    }

    /// Ends a wait, after the sleep or instead of it.
    pub(super) fn finish_wait(&mut self) {
        match self {
            Self::RingCaller(driver) => driver.finish_wait(),
            Self::RingListener(end) => end.port.finish_wait(),
            Self::UdpCaller(_) | Self::UdpListener(_) => {}
        }
    }

    /// Adds the descriptors to sleep on to an epoll.
    pub(super) fn watch(&self, epoll: &OwnedFd) -> Result<(), PortError> {
        let add = |fd| {
            epoll::add(epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .map_err(PortError::at("watching a descriptor"))
        };
        match self {
            Self::RingCaller(driver) => add(driver.fd()),
            Self::RingListener(end) => add(end.port.fd()),
            Self::UdpCaller(driver) => add(driver.fd()).and_then(|()| add(driver.timer_fd())),
            Self::UdpListener(end) => end.fds().into_iter().try_for_each(add),
        }
    }
}
