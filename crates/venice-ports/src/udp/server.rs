//! The donor's end: a thread that joins a `Target` to the agent's socket.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use venice_fabric::{GrantedMemory, Target, TargetConfig};
use venice_wire::MAX_FRAME_BYTES;

use super::UdpSocket;
use super::address::AddressBook;
use super::alarm::Alarm;
use super::mmsg::Batch;
use crate::{PortError, monotonic_ns};

/// Longest time to look for the next request before going to sleep.
const MAX_SPIN_NS: u64 = 20_000;
/// Requests that come closer together than this are worth looking out for.
const DENSE_NS: u64 = 40_000;
/// A look and a yield take less than this, unless somebody else runs in between.
const CROWDED_NS: u64 = 10_000;
/// How long not to spin once that was seen.
const CROWDED_PAUSE_NS: u64 = 2_000_000;

/// Serves the accesses of recipients, on a thread of its own, until dropped.
#[derive(Debug)]
pub struct UdpServer {
    shared: Arc<Shared>,
    local: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    wake: OwnedFd,
    stop: AtomicBool,
}

impl UdpServer {
    /// Starts to serve `memory` on `socket`.
    ///
    /// # Errors
    /// When the thread or what it needs cannot be made.
    pub fn start(
        socket: UdpSocket,
        config: TargetConfig,
        memory: impl GrantedMemory + Send + 'static,
    ) -> Result<Self, PortError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(PortError::at("making an eventfd"))?;
        let shared = Arc::new(Shared { wake, stop: AtomicBool::new(false) });
        let local = socket.local_addr();
        let service = Service {
            socket,
            shared: Arc::clone(&shared),
            target: Target::new(config),
            memory,
            addresses: AddressBook::default(),
            incoming: Batch::new(MAX_FRAME_BYTES),
            outgoing: Batch::new(MAX_FRAME_BYTES),
            alarm: Alarm::new()?,
        };
        let thread = std::thread::Builder::new()
            .name("venice-udp".into())
            .spawn(move || service.run())
            .map_err(|_| PortError::System { step: "starting a thread", source: Errno::AGAIN })?;
        Ok(Self { shared, local, thread: Some(thread) })
    }

    /// The address served.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for UdpServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the server's thread owns.
struct Service<M> {
    socket: UdpSocket,
    shared: Arc<Shared>,
    target: Target,
    memory: M,
    addresses: AddressBook,
    incoming: Batch,
    outgoing: Batch,
    alarm: Alarm,
}

impl<M: GrantedMemory> Service<M> {
    fn run(mut self) {
        let mut spin = Spin::default();
        while !self.shared.stop.load(Ordering::Acquire) {
            let now_ns = monotonic_ns();
            match self.pump(now_ns) {
                Ok(true) => spin.busy(now_ns),
                Ok(false) if spin.goes_on(now_ns) => rustix::thread::sched_yield(),
                Ok(false) => self.sleep(now_ns),
                // Out of kernel memory, or the interface is going down: neither is a reason to
                // give up on the recipients, nor to spin.
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        }
    }

    /// Takes one batch, answers it; true when there was any.
    fn pump(&mut self, now_ns: u64) -> rustix::io::Result<bool> {
        if self.target.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            self.target.handle_timeout(now_ns);
        }
        let received = self.incoming.receive(self.socket.as_fd())?;
        for (from, datagram) in self.incoming.datagrams() {
            let from = self.addresses.handle(from);
            self.target.handle_frame(now_ns, from, datagram, &mut self.memory);
        }
        self.transmit(now_ns)?;
        Ok(received > 0)
    }

    fn transmit(&mut self, now_ns: u64) -> rustix::io::Result<()> {
        loop {
            while !self.outgoing.is_full() {
                let buffer = self.outgoing.next_buffer();
                let Some((to, len)) = self.target.poll_transmit(now_ns, buffer) else { break };
                if let Some(to) = self.addresses.address(to) {
                    self.outgoing.push(to, len);
                }
            }
            let more = self.outgoing.is_full();
            if !self.outgoing.is_empty() {
                self.outgoing.send(self.socket.as_fd())?;
            }
            if !more {
                return Ok(());
            }
        }
    }

    fn sleep(&mut self, now_ns: u64) {
        self.alarm.set(now_ns, self.target.poll_timeout());
        let mut fds = [
            PollFd::new(&self.socket, PollFlags::IN),
            PollFd::new(&self.alarm, PollFlags::IN),
            PollFd::new(&self.shared.wake, PollFlags::IN),
        ];
        let _ = poll(&mut fds, None);
    }
}

/// How long to look for more before sleeping. A sleeping thread takes microseconds to wake, which
/// a recipient with one page fault after the other would pay every time; but a spinning one takes
/// the processor from the very program it serves. So it looks out only while requests come
/// densely, yields between looks, and stops as soon as looking was in vain or a yield shows that
/// somebody else wants the processor.
#[derive(Debug, Default)]
struct Spin {
    /// When the last request came.
    last_ns: u64,
    /// When it last looked.
    looked_ns: u64,
    dense: bool,
    crowded_until_ns: u64,
}

impl Spin {
    /// A request came.
    fn busy(&mut self, now_ns: u64) {
        self.dense = now_ns - self.last_ns < DENSE_NS && now_ns >= self.crowded_until_ns;
        self.last_ns = now_ns;
        self.looked_ns = now_ns;
    }

    /// Nothing came: whether to look again.
    fn goes_on(&mut self, now_ns: u64) -> bool {
        if self.dense && now_ns - self.looked_ns > CROWDED_NS {
            self.crowded_until_ns = now_ns + CROWDED_PAUSE_NS;
            self.dense = false;
        }
        self.looked_ns = now_ns;
        self.dense &= now_ns - self.last_ns < MAX_SPIN_NS;
        self.dense
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_while_requests_are_dense_and_not_for_long() {
        let mut spin = Spin::default();
        let start_ns = 1_000_000_000;
        spin.busy(start_ns);
        assert!(!spin.goes_on(start_ns + 1), "one request alone is not dense");
        let second_ns = start_ns + 10_000;
        spin.busy(second_ns);
        assert!(spin.goes_on(second_ns + 9_000));
        assert!(spin.goes_on(second_ns + 18_000));
        assert!(!spin.goes_on(second_ns + MAX_SPIN_NS));
        assert!(!spin.goes_on(second_ns + MAX_SPIN_NS + 1), "it sleeps until the next request");
    }

    #[test]
    fn leaves_the_processor_to_those_who_want_it() {
        let mut spin = Spin::default();
        let start_ns = 1_000_000_000;
        spin.busy(start_ns);
        spin.busy(start_ns + 1_000);
        assert!(!spin.goes_on(start_ns + 1_000 + CROWDED_NS + 1), "somebody else ran");
        spin.busy(start_ns + 20_000);
        assert!(!spin.goes_on(start_ns + 21_000), "not again so soon");
        let later_ns = start_ns + CROWDED_PAUSE_NS + 50_000;
        spin.busy(later_ns);
        spin.busy(later_ns + 10_000);
        assert!(spin.goes_on(later_ns + 11_000));
    }
}
