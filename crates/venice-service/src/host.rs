//! The host process: listens, carries messages between recipients and the service.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use venice_fabric::QPairError;
use venice_ports::monotonic_ns;
use venice_ports::qpair::{
    QPairAddress, QPairListener, QPairMessages, QPairSeal, QPairSocketError,
};
use venice_ports::seal::SealedAs;
use venice_ports::spin_policy::{Next, SpinPolicy};
use venice_wire::{KeyName, SealKey};

use crate::confine::{HostEnd, Places, launch};
use crate::connections::{HostConnections, MAX_STRANGERS};
use crate::entry::{HostContext, ServiceEntry};
use crate::gate::Report;
use crate::service::{ConnectionId, Service};
use crate::spec::{EndpointSpec, HostLimits, RING_SOCKET};
use crate::usage::UsagePage;
use crate::wire::{MAX_MESSAGE_BYTES, QPAIR_SERVICE, qpair_end};

/// Exit code of a host that could not start; the reason is in a report.
const NOT_STARTED: u8 = 125;
/// Connections accepted and not yet served; more wait in the listeners' backlogs.
const ACCEPTED_AHEAD: usize = 4;
/// Connections that have not requested their QPair; a further one takes the place of the oldest.
const MAX_WAITING: usize = 16;
/// Descriptors of the host beside those of connections: listeners, wake-ups, standard ones.
const OWN_DESCRIPTORS: u32 = 32;
/// Messages taken from one connection before the next one has its turn.
const MESSAGES_PER_TURN: usize = 16;
/// Longest sleep in nanoseconds; a check for missed events follows.
const SLEEP_NS: u64 = 1_000_000_000;
/// Least time between two lines about wrong secrets, in nanoseconds.
const LOG_NS: u64 = 1_000_000_000;
/// Least time between two writes of the usage, in nanoseconds.
const USAGE_NS: u64 = 50_000_000;
/// Pause after a listener failed for want of descriptors or memory.
const FULL: Duration = Duration::from_millis(100);

/// Runs a service host by the order on standard input: the whole of the hidden subcommand
/// `venice service-host`, which only supervisors start. Call it before any thread starts.
///
/// Returns when the host fails; else it runs until it is killed.
pub fn host_main(services: &[ServiceEntry]) -> ExitCode {
    // The first reading finds the kernel's clock in this process; once confined each would be a
    // system call.
    monotonic_ns();
    let end = match launch() {
        Ok(end) => end,
        Err(error) => {
            eprintln!("service host: no order on standard input: {error}");
            return ExitCode::from(NOT_STARTED);
        }
    };
    let Err(why) = serve(end, services);
    eprintln!("service host: {why}");
    ExitCode::from(NOT_STARTED)
}

fn serve(end: HostEnd, services: &[ServiceEntry]) -> Result<std::convert::Infallible, String> {
    let start = || -> Result<_, String> {
        let spec = &end.order.spec;
        let entry = services.iter().find(|entry| entry.name == spec.service);
        let entry =
            entry.ok_or_else(|| format!("no service '{}' in this program", spec.service))?;
        let service = (entry.make)(&HostContext {
            spec,
            endpoint_dir: &end.places.endpoint,
            scratch_dir: &end.places.scratch,
        })?;
        let wrong = Arc::default();
        let (listeners, ports) = listen(&end, &wrong)?;
        let connections =
            HostConnections::new(service, spec.secret, usize::from(spec.limits.connections.max(1)));
        let host = Host::new(connections, listeners, wrong).map_err(|error| error.to_string())?;
        end.filters.seal()?;
        Ok((host, ports))
    };
    let (mut host, ports) = match start() {
        Ok(started) => started,
        Err(why) => {
            let _ = end.gate.send_report(&Report::Failed(why.clone()), &[]);
            return Err(why);
        }
    };
    let started = end.gate.send_report(&Report::Started(ports), &[]);
    started.map_err(|error| format!("reporting the start: {error}"))?;
    // From here on nothing leads from the service to the supervisor but standard error, and the page
    // of its counters.
    host.usage = Some(UsagePage::new(end.usage));
    drop((end.order, end.gate, end.filters));
    host.run().map_err(|error| error.to_string())
}

/// Listens at all endpoints; returns the ports of those of UDP too. Counts callers with a wrong
/// secret in `wrong`.
fn listen(end: &HostEnd, wrong: &Arc<AtomicU64>) -> Result<(Vec<QPairListener>, Vec<u16>), String> {
    let (mut listeners, mut ports) = (Vec::new(), Vec::new());
    for spec in &end.order.spec.endpoints {
        let named = |error: QPairSocketError| format!("listening: {error}");
        let address = qpair_address(spec, &end.places);
        let mut listener = QPairListener::bind(&address, QPAIR_SERVICE).map_err(named)?;
        listener.set_end(qpair_end());
        listener.set_max_waiting(MAX_WAITING);
        let (secret, wrong) = (end.order.spec.secret, Arc::clone(wrong));
        listener.set_admission(move |shown| {
            let is_right = secret.matches(shown);
            wrong.fetch_add(u64::from(!is_right), Ordering::Relaxed);
            is_right
        });
        match (&address, listener.local_addr()) {
            (QPairAddress::Ring { path, .. }, _) => {
                // The secret admits, not the file's mode: recipients are other users.
                std::fs::set_permissions(path, PermissionsExt::from_mode(0o666))
                    .map_err(|error| format!("opening the socket to recipients: {error}"))?;
            }
            (QPairAddress::Udp { address, .. }, local) => {
                ports.push(local.unwrap_or(*address).port());
            }
        }
        listeners.push(listener);
    }
    Ok((listeners, ports))
}

/// Returns the descriptors that the host may need beside its service: strangers leave the service
/// its own.
pub(crate) fn own_descriptors(limits: &HostLimits) -> u32 {
    // One more wait, or are not admitted, while the oldest is closed; one is on its way to the queue.
    let waiting = MAX_WAITING + 1;
    let accepted = ACCEPTED_AHEAD + 1;
    let served = MAX_STRANGERS + ACCEPTED_AHEAD + usize::from(limits.connections.max(1));
    let connections = (waiting + accepted + served) * QPairListener::DESCRIPTORS;
    OWN_DESCRIPTORS + connections as u32
}

fn qpair_address(spec: &EndpointSpec, places: &Places) -> QPairAddress {
    match spec {
        EndpointSpec::Ring => QPairAddress::ring(places.endpoint.join(RING_SOCKET)),
        EndpointSpec::Udp { address, seal } => {
            let seal = seal.as_ref().map(|seal| {
                let key = SealedAs { name: KeyName::Grant(seal.grant), key: SealKey(seal.key) };
                QPairSeal::Keys(Arc::new(key))
            });
            QPairAddress::Udp { address: *address, seal }
        }
    }
}

/// Connections of a host with their sockets.
struct Host {
    connections: HostConnections<Box<dyn Service>>,
    sockets: BTreeMap<ConnectionId, QPairMessages>,
    next_id: u64,
    accepted: Receiver<QPairMessages>,
    /// Readable after an acceptor has put something into `accepted`.
    bell: Arc<OwnedFd>,
    buffer: Vec<u8>,
    /// Callers of a ring that were refused for a wrong secret.
    wrong_secrets: Arc<AtomicU64>,
    /// Wrong secrets that were logged, and the time at which more may be.
    logged: (u64, u64),
    /// Page of the usage, and the time from which it may be written again.
    usage: Option<UsagePage>,
    usage_ns: u64,
    spin: SpinPolicy,
}

impl Host {
    fn new(
        connections: HostConnections<Box<dyn Service>>,
        listeners: Vec<QPairListener>,
        wrong_secrets: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let (accept, accepted) = sync_channel(ACCEPTED_AHEAD);
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        for listener in listeners {
            let (accept, bell) = (accept.clone(), Arc::clone(&bell));
            let name = String::from("venice-accept");
            std::thread::Builder::new()
                .name(name)
                .spawn(move || accept_all(listener, &accept, &bell))?;
        }
        let buffer = vec![0; MAX_MESSAGE_BYTES];
        Ok(Self {
            connections,
            sockets: BTreeMap::new(),
            next_id: 0,
            accepted,
            bell,
            buffer,
            wrong_secrets,
            logged: (0, 0),
            usage: None,
            usage_ns: 0,
            spin: SpinPolicy::default(),
        })
    }

    fn run(&mut self) -> io::Result<std::convert::Infallible> {
        loop {
            let mut any = self.take_connections();
            any |= self.take_messages();
            let now_ns = monotonic_ns();
            self.connections.handle_timeout(now_ns);
            self.connections.collect_answers(now_ns);
            any |= self.send_messages();
            self.log_wrong_secrets(now_ns);
            self.tell_usage(now_ns);
            if any {
                self.spin.found(now_ns);
                continue;
            }
            match self.spin.nothing(now_ns) {
                Next::Look => std::hint::spin_loop(),
                Next::Yield => {
                    rustix::thread::sched_yield();
                    self.take_wake()?;
                }
                Next::Sleep => self.sleep()?,
            }
        }
    }

    /// Lets the service take in what its device has brought by now.
    fn take_wake(&mut self) -> io::Result<()> {
        let Some(fd) = self.connections.service().wake_fd() else { return Ok(()) };
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let polled = poll(&mut fds, Some(&now));
        let is_woken = fds[0].revents().contains(PollFlags::IN);
        if is_woken {
            self.connections.handle_wake(monotonic_ns());
        }
        match polled {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Logs wrong secrets, once a second at most: standard error is the host's only way to tell.
    fn log_wrong_secrets(&mut self, now_ns: u64) {
        let at_rings = self.wrong_secrets.load(Ordering::Relaxed);
        let wrong = self.connections.counts().wrong_secrets + at_rings;
        if wrong > self.logged.0 && now_ns >= self.logged.1 {
            eprintln!("service host: {wrong} callers with a wrong secret so far");
            self.logged = (wrong, now_ns + LOG_NS);
        }
    }

    /// Writes the usage, some times a second: a sleep ends within one.
    fn tell_usage(&mut self, now_ns: u64) {
        if now_ns < self.usage_ns {
            return;
        }
        let Some(page) = &mut self.usage else { return };
        page.write(now_ns, self.connections.usage(now_ns));
        self.usage_ns = now_ns + USAGE_NS;
    }

    fn take_connections(&mut self) -> bool {
        let mut any = false;
        // Those that the new ones push out are closed before more are taken.
        for socket in self.accepted.try_iter().take(ACCEPTED_AHEAD) {
            let id = ConnectionId(self.next_id);
            self.next_id += 1;
            self.sockets.insert(id, socket);
            self.connections.handle_connect(monotonic_ns(), id);
            any = true;
        }
        any
    }

    fn take_messages(&mut self) -> bool {
        let (mut any, mut gone) = (false, Vec::new());
        for (id, socket) in &mut self.sockets {
            for _ in 0..MESSAGES_PER_TURN {
                if !self.connections.wants_input(*id) {
                    break;
                }
                match socket.try_recv(&mut self.buffer) {
                    Ok(0) => gone.push(*id),
                    Ok(len) => {
                        any = true;
                        self.connections.handle_message(monotonic_ns(), *id, &self.buffer[..len]);
                        continue;
                    }
                    Err(QPairSocketError::WouldBlock) => {}
                    // Longer than any message; an empty one stands for it.
                    Err(QPairSocketError::QPair(QPairError::BufferTooSmall { .. })) => {
                        self.connections.handle_message(monotonic_ns(), *id, &[])
                    }
                    Err(_) => gone.push(*id),
                }
                break;
            }
        }
        any |= !gone.is_empty();
        self.forget(gone);
        any
    }

    fn send_messages(&mut self) -> bool {
        let (mut any, mut gone) = (false, Vec::new());
        for (id, socket) in &mut self.sockets {
            while let Some(message) = self.connections.poll_message(*id) {
                match socket.try_send(message) {
                    Ok(()) => {
                        any = true;
                        self.connections.handle_sent(*id);
                    }
                    Err(QPairSocketError::WouldBlock) => break,
                    Err(_) => {
                        gone.push(*id);
                        break;
                    }
                }
            }
        }
        any |= !gone.is_empty();
        self.forget(gone);
        while let Some(id) = self.connections.poll_closed() {
            self.sockets.remove(&id);
            any = true;
        }
        any
    }

    fn forget(&mut self, gone: Vec<ConnectionId>) {
        for id in gone {
            self.connections.handle_disconnect(monotonic_ns(), id);
            self.sockets.remove(&id);
        }
    }

    /// Sleeps until something may have come in, or something is due.
    fn sleep(&mut self) -> io::Result<()> {
        let now_ns = monotonic_ns();
        let due_ns = self.connections.poll_timeout().unwrap_or(u64::MAX);
        let sleep_ns = due_ns.saturating_sub(now_ns).min(SLEEP_NS);
        let may_sleep = self.sockets.values().all(QPairMessages::arm);
        let mut fds = vec![PollFd::new(&*self.bell, PollFlags::IN)];
        let wake = self.connections.service().wake_fd();
        let has_wake = wake.is_some();
        fds.extend(wake.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        fds.extend(
            self.sockets
                .values()
                .map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)),
        );
        let timeout_ns = if may_sleep { sleep_ns } else { 0 };
        let timeout = Timespec {
            tv_sec: (timeout_ns / 1_000_000_000) as i64,
            tv_nsec: (timeout_ns % 1_000_000_000) as i64,
        };
        let polled = poll(&mut fds, Some(&timeout));
        let is_woken = has_wake && fds[1].revents().contains(PollFlags::IN);
        drop(fds);
        self.sockets.values().for_each(QPairMessages::attend);
        // Empty if no acceptor rang.
        let _ = rustix::io::read(&*self.bell, &mut [0u8; 8]);
        if is_woken {
            self.connections.handle_wake(monotonic_ns());
        }
        match polled {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Accepts connections, for ever.
fn accept_all(listener: QPairListener, accept: &SyncSender<QPairMessages>, bell: &OwnedFd) {
    loop {
        match listener.accept_messages(None) {
            Ok(socket) => {
                if accept.send(socket).is_err() {
                    return;
                }
                // Fails only when the counter is full: then the host is awake.
                let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
            }
            Err(_) => std::thread::sleep(FULL),
        }
    }
}
