//! Costs of an operating system, in instructions.
//!
//! DIABLO runs whole kernels, so the paper states no costs; it states what they lead to. The profile
//! `linux-2.6.39` is chosen so that the paper's statements hold: a core of 2 GHz receives at most
//! 1.8 Gb/s with blocking threads (section 4.1), most requests to memcached take less than 100 µs
//! (Figure 10). `linux-3.5.7` has its ratio to it from Figure 14 (the mean is almost halved). The
//! proportions between operations are those of published measurements of Linux (Larsen et al.,
//! "Architectural breakdown of end-to-end latency in a TCP/IP network", 2009; Li et al., "Quantifying
//! the cost of context switch", 2007).

use std::path::Path;

use serde::{Deserialize, Serialize};
use venice_simkernel::units::Picos;

use super::config::{BadValue, SocketBuffers};
use super::noise::Noise;
use super::profile::Profile;
use crate::config::{Named, Presets};

/// Costs and settings of an operating system. Costs are instructions, unless a time is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Kernel {
    /// Entry to and return from any system call.
    pub system_call: u32,
    /// Change from one thread to another.
    pub context_switch: u32,
    /// Makes a thread runnable.
    pub wake_up: u32,
    /// An idle core begins to run after this time: it leaves its sleep state, and for another core's
    /// thread an interrupt goes there.
    pub idle_exit: Picos,
    /// Interrupt of the network card, up to the start of the poll.
    pub interrupt: u32,
    /// A received datagram, from the ring to its socket.
    pub udp_receive: u32,
    /// A received segment with data, from the ring to its socket.
    pub tcp_receive: u32,
    /// A received segment without data.
    pub tcp_ack: u32,
    /// A sent datagram, from the socket to the ring.
    pub udp_send: u32,
    /// A sent segment with data, from the socket to the ring.
    pub tcp_send: u32,
    /// A sent segment without data.
    pub tcp_send_ack: u32,
    /// The part of `recvmsg(2)` above the packets.
    pub receive_call: u32,
    /// The part of `sendmsg(2)` above the packets.
    pub send_call: u32,
    /// A thousand bytes that are copied between kernel and program.
    pub copy_kilobyte: u32,
    /// `epoll_wait(2)`, without the ready descriptors.
    pub epoll_wait: u32,
    /// Each ready descriptor that it returns.
    pub epoll_ready: u32,
    /// `epoll_ctl(2)`.
    pub epoll_control: u32,
    /// `connect(2)`, without its segments.
    pub connect: u32,
    /// `accept(2)`, `accept4(2)`.
    pub accept: u32,
    /// `fcntl(2)`.
    pub file_control: u32,
    /// `futex(2)`, when a lock is contended.
    pub futex: u32,
    /// A timer that expires.
    pub timer: u32,
    /// A thread that sleeps until a time is woken this much later (`PR_SET_TIMERSLACK`).
    pub timer_slack: Picos,
    /// A thread runs at most this long while others wait (`sched_latency_ns`).
    pub time_slice: Picos,
    /// A woken thread takes the core of one that has run at least this long
    /// (`sched_wakeup_granularity_ns`).
    pub wake_up_granularity: Picos,
    /// Buffers of sockets.
    pub sockets: SocketBuffers,
    /// Work that no program asked for.
    pub noise: Noise,
}

impl Default for Kernel {
    fn default() -> Self {
        Self::linux_2_6_39()
    }
}

impl Presets for Kernel {
    const PRESETS: &'static [Named<Self>] =
        &[("linux-2.6.39", Self::linux_2_6_39), ("linux-3.5.7", Self::linux_3_5_7)];
    const WRITTEN_BY: Option<&'static str> = Some("venice sim calibrate");

    fn read(path: &Path) -> Result<Self, String> {
        Profile::read(path).map(|profile| profile.kernel.values).map_err(|error| error.to_string())
    }
}

impl Kernel {
    /// Linux 2.6.39.
    pub fn linux_2_6_39() -> Self {
        Self {
            system_call: 500,
            context_switch: 4_000,
            wake_up: 2_000,
            idle_exit: Picos(Picos::MICRO),
            interrupt: 4_000,
            udp_receive: 9_000,
            tcp_receive: 9_000,
            tcp_ack: 5_000,
            udp_send: 11_000,
            tcp_send: 9_000,
            tcp_send_ack: 5_000,
            receive_call: 3_500,
            send_call: 3_500,
            copy_kilobyte: 600,
            epoll_wait: 2_500,
            epoll_ready: 400,
            epoll_control: 1_500,
            connect: 8_000,
            accept: 6_000,
            file_control: 500,
            futex: 1_200,
            timer: 2_000,
            timer_slack: Picos(0),
            time_slice: Picos(4_000 * Picos::MICRO),
            wake_up_granularity: Picos(1_000 * Picos::MICRO),
            sockets: SocketBuffers::default(),
            noise: Noise::default(),
        }
    }

    /// Linux 3.5.7.
    pub fn linux_3_5_7() -> Self {
        let mut kernel = Self::linux_2_6_39();
        for (_, cost) in kernel.costs_mut() {
            *cost = *cost * 45 / 100;
        }
        Self { wake_up_granularity: Picos(500 * Picos::MICRO), ..kernel }
    }

    /// Checks all bounds.
    pub(super) fn check(&self) -> Result<(), BadValue> {
        for (key, cost) in self.clone().costs_mut() {
            BadValue::unless(*cost <= 100_000_000, key, *cost, "at most 100000000 instructions")?;
        }
        for (key, time) in [("idle-exit", self.idle_exit), ("timer-slack", self.timer_slack)] {
            BadValue::unless(time.0 <= Picos::SECOND, key, time, "at most 1s")?;
        }
        BadValue::unless(self.time_slice.0 > 0, "time-slice", self.time_slice, "above 0")?;
        let backlog = self.sockets.backlog;
        BadValue::unless(backlog > 0, "sockets.backlog", backlog, "above 0")
    }

    /// Returns all costs in instructions, with their keys.
    pub fn costs_mut(&mut self) -> [(&'static str, &mut u32); 21] {
        [
            ("system-call", &mut self.system_call),
            ("context-switch", &mut self.context_switch),
            ("wake-up", &mut self.wake_up),
            ("interrupt", &mut self.interrupt),
            ("udp-receive", &mut self.udp_receive),
            ("tcp-receive", &mut self.tcp_receive),
            ("tcp-ack", &mut self.tcp_ack),
            ("udp-send", &mut self.udp_send),
            ("tcp-send", &mut self.tcp_send),
            ("tcp-send-ack", &mut self.tcp_send_ack),
            ("receive-call", &mut self.receive_call),
            ("send-call", &mut self.send_call),
            ("copy-kilobyte", &mut self.copy_kilobyte),
            ("epoll-wait", &mut self.epoll_wait),
            ("epoll-ready", &mut self.epoll_ready),
            ("epoll-control", &mut self.epoll_control),
            ("connect", &mut self.connect),
            ("accept", &mut self.accept),
            ("file-control", &mut self.file_control),
            ("futex", &mut self.futex),
            ("timer", &mut self.timer),
        ]
    }
}
