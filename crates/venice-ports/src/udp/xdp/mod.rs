//! AF_XDP beside the socket: single datagrams past the kernel's network stack.
//!
//! A program at the interface passes short requests, and datagrams that were sent by AF_XDP, to
//! sockets that see whole frames in memory of this process ([`program`]); everything else stays
//! with the kernel. Answers carry the request's headers, reversed ([`routes`]), which makes
//! knowledge of neighbours, routes or names unnecessary. Trains go by the UDP socket, which moves
//! many datagrams at once.

mod bpf;
mod headers;
mod interface;
mod program;
mod ring;
mod routes;
mod socket;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use venice_fabric::{KeptBytes, KeptFrame};

use super::UdpSocket;
use super::outgoing::Outgoing;
use super::raw_address::RawAddress;
use bpf::{Attached, Program, SocketMap};
use headers::{HEADER_BYTES, Headers};
use interface::Facts;
use routes::Routes;
use socket::{FRAME_BYTES, XskSocket};

pub use interface::XdpInterface;

/// Most receive queues of an interface that are served; each takes 4 MiB.
const MAX_QUEUES: u32 = 16;
/// Time after a train during which everything goes by the socket, in nanoseconds: answers sent
/// singly and at once would turn a stream of bulk transfers into one of single datagrams.
const STREAM_NS: u64 = 200_000;
/// Looks here per look at the UDP socket: that one is a system call, a look here is none.
const LOOKS_PER_SOCKET_LOOK: u32 = 8;
/// Time within which the kernel releases the queue and the program of a process that has ended.
const RELEASE_TIME: Duration = Duration::from_secs(2);

/// Place where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// After the driver, on the kernel's socket buffers: at every interface.
    Generic,
    /// In the driver's receive path.
    Native,
}

/// Reason for which AF_XDP is unavailable at an interface.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// There is no such interface.
    #[error("no network interface {name}: list them with ip link")]
    NoInterface {
        /// Requested name.
        name: String,
    },
    /// It has no IPv4 address.
    #[error("{name} has no IPv4 address: AF_XDP is for IPv4")]
    NoAddress {
        /// The interface.
        name: String,
    },
    /// The socket is an IPv6 socket.
    #[error("AF_XDP is for IPv4: listen on an IPv4 address, not on {ip}")]
    Version6 {
        /// The socket's address.
        ip: Ipv6Addr,
    },
    /// The socket is bound to an address of another interface.
    #[error("{ip} is not the first IPv4 address of {name}, which is {first}: listen on that one")]
    OtherAddress {
        /// The interface.
        name: String,
        /// The socket's address.
        ip: Ipv4Addr,
        /// Address of the interface.
        first: Ipv4Addr,
    },
    /// It has too many receive queues.
    #[error("{name} has more than {MAX_QUEUES} receive queues: set fewer with ethtool -L {name}")]
    ManyQueues {
        /// The interface.
        name: String,
    },
    /// The port has several sockets; all datagrams of a sender must come to one thread.
    #[error("AF_XDP needs a port with one queue: this one has {queues}")]
    SeveralSockets {
        /// Number of its sockets.
        queues: usize,
    },
    /// The kernel refuses.
    #[error("AF_XDP at {interface}: {step} failed{}", hint(*.source, .interface))]
    Kernel {
        /// Interface concerned.
        interface: XdpInterface,
        /// Name of the operation.
        step: &'static str,
        /// Error of the kernel.
        source: Errno,
    },
}

impl XdpError {
    fn at(interface: &XdpInterface, step: &'static str) -> impl Fn(Errno) -> Self {
        move |source| Self::Kernel { interface: interface.clone(), step, source }
    }
}

/// Returns a remedy for the error.
fn hint(errno: Errno, interface: &XdpInterface) -> String {
    match errno {
        Errno::PERM | Errno::ACCESS => {
            " (it needs root, or CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF)".to_owned()
        }
        Errno::BUSY | Errno::EXIST => {
            " (an interface takes one program at a time: see ip link show)".to_owned()
        }
        Errno::OPNOTSUPP | Errno::RANGE if interface.mode == XdpMode::Native => {
            format!(" (its driver or its MTU does not support it: try {}:generic)", interface.name)
        }
        Errno::INVAL | Errno::AFNOSUPPORT | Errno::NOPROTOOPT => {
            " (it needs Linux 6.6 with CONFIG_XDP_SOCKETS)".to_owned()
        }
        _ => String::new(),
    }
}

/// Counters of AF_XDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpCounts {
    /// Datagrams received.
    pub received: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams received and dropped for lack of room.
    pub lost: u64,
}

/// AF_XDP path for the datagrams of one UDP socket. It ends on drop, or with its process, whatever
/// ends that.
#[derive(Debug)]
pub struct Xdp {
    interface: XdpInterface,
    // First field: the program is detached before the sockets are closed.
    _attached: Attached,
    /// Sockets by receive queue.
    sockets: Vec<XskSocket>,
    /// Queue of the last datagram received; transmissions use it too.
    last_queue: usize,
    routes: Routes,
    /// Longest payload that fits into one packet of the interface, in bytes.
    longest_bytes: usize,
    next_number: u16,
    looks: u32,
    /// Time until which everything goes by the socket.
    stream_until_ns: u64,
    counts: XdpCounts,
}

impl Xdp {
    /// Attaches the program for datagrams to `socket`, which are all sealed or none.
    ///
    /// # Errors
    /// Fails if AF_XDP is unavailable, with the reason and the remedy.
    pub fn open(
        interface: &XdpInterface,
        socket: &UdpSocket,
        is_sealed: bool,
    ) -> Result<Self, XdpError> {
        let facts = Facts::ask(interface, socket.as_fd(), socket.local_addr())?;
        let sockets = bind_queues(interface, facts.index)?;
        let loading = XdpError::at(interface, "loading its program");
        let map = SocketMap::new(sockets.len() as u32).map_err(&loading)?;
        for (queue, socket) in (0..).zip(&sockets) {
            map.put(queue, socket.as_fd()).map_err(&loading)?;
        }
        let program = Program::load(&program::program(facts.to, is_sealed, map.as_fd()));
        let program = program.map_err(&loading)?;
        let attached = retry_while_busy(|| program.attach(facts.index, interface.mode))
            .map_err(XdpError::at(interface, "attaching its program"))?;
        Ok(Self {
            interface: interface.clone(),
            _attached: attached,
            sockets,
            last_queue: 0,
            routes: Routes::default(),
            longest_bytes: facts.mtu_bytes.saturating_sub(HEADER_BYTES - 14),
            next_number: 0,
            looks: 0,
            stream_until_ns: 0,
            counts: XdpCounts::default(),
        })
    }

    /// Checks that this kernel supports AF_XDP and this user may use it, without an interface.
    ///
    /// # Errors
    /// Fails if not, with the reason and the remedy.
    pub fn probe() -> Result<(), XdpError> {
        let interface = XdpInterface { name: "lo".to_owned(), mode: XdpMode::Generic };
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0).into())
            .map_err(|_| XdpError::NoInterface { name: interface.name.clone() })?;
        let facts = Facts::ask(&interface, socket.as_fd(), socket.local_addr())?;
        XskSocket::bind(facts.index, 0).map_err(XdpError::at(&interface, "making its socket"))?;
        let loading = XdpError::at(&interface, "loading its program");
        let map = SocketMap::new(1).map_err(&loading)?;
        Program::load(&program::program(facts.to, true, map.as_fd())).map_err(loading).map(drop)
    }

    /// Returns the interface.
    pub fn interface(&self) -> &XdpInterface {
        &self.interface
    }

    /// Returns the counters so far.
    pub fn counts(&self) -> XdpCounts {
        XdpCounts { lost: self.sockets.iter().map(XskSocket::lost).sum(), ..self.counts }
    }

    /// Returns the descriptors to sleep on.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(AsFd::as_fd)
    }

    /// True if nothing has come.
    pub(super) fn is_empty(&self) -> bool {
        self.sockets.iter().all(XskSocket::is_empty)
    }

    /// Passes received datagrams on, with their senders; returns whether there were any. `take`
    /// returns true if a datagram was genuine and its headers may be learned as the route back.
    pub(super) fn take(
        &mut self,
        now_ns: u64,
        mut take: impl FnMut(&RawAddress, &mut [u8]) -> bool,
    ) -> bool {
        let Self { sockets, routes, counts, last_queue, .. } = self;
        let mut any = false;
        for (queue, socket) in sockets.iter_mut().enumerate() {
            let came = socket.take(|frame| {
                let Some((headers, len)) = Headers::parse(frame) else { return };
                counts.received += 1;
                let from = RawAddress::encode(headers.source().into());
                if take(&from, &mut frame[HEADER_BYTES..][..len]) {
                    routes.learn(now_ns, &from, &headers);
                }
            });
            if came {
                *last_queue = queue;
                any = true;
            }
        }
        any
    }

    /// Sends single datagrams with a known route, and leaves the rest. `kept`: see
    /// [`Outgoing::send_with`].
    pub(super) fn send<'a>(
        &mut self,
        now_ns: u64,
        outgoing: &mut Outgoing,
        kept: impl Fn(&KeptFrame) -> Option<KeptBytes<'a>>,
    ) {
        if outgoing.is_stream() {
            self.note_stream(now_ns);
        }
        if now_ns < self.stream_until_ns {
            return;
        }
        let Self { sockets, routes, counts, last_queue, longest_bytes, next_number, .. } = self;
        let socket = &mut sockets[*last_queue];
        outgoing.divert(kept, |to, datagram| {
            if datagram.len() > *longest_bytes {
                return false;
            }
            let Some((mut headers, has_xdp)) = routes.to(now_ns, to) else { return false };
            // A packet in two frames costs a plain socket at the other end more than one sent by
            // our socket.
            if !has_xdp && HEADER_BYTES + datagram.len() > FRAME_BYTES {
                return false;
            }
            headers.complete(datagram.len(), *next_number);
            *next_number = next_number.wrapping_add(1);
            let is_put = socket.put(&headers.0, datagram);
            counts.sent += u64::from(is_put);
            is_put
        });
        socket.flush();
    }

    /// Records that trains have come or gone.
    pub(super) fn note_stream(&mut self, now_ns: u64) {
        self.stream_until_ns = now_ns + STREAM_NS;
    }

    /// True if the UDP socket must be checked as well.
    pub(super) fn is_socket_due(&mut self, now_ns: u64) -> bool {
        self.looks += 1;
        let is_due = self.looks >= LOOKS_PER_SOCKET_LOOK || now_ns < self.stream_until_ns;
        if is_due {
            self.looks = 0;
        }
        is_due
    }

    /// Makes the next check include the UDP socket: a descriptor has woken the thread.
    pub(super) fn force_socket_look(&mut self) {
        self.looks = LOOKS_PER_SOCKET_LOOK;
    }
}

/// Makes one socket for each receive queue of the interface.
fn bind_queues(interface: &XdpInterface, index: u32) -> Result<Vec<XskSocket>, XdpError> {
    let mut sockets = Vec::new();
    for queue in 0..=MAX_QUEUES {
        match XskSocket::bind(index, queue) {
            Ok(_) if queue == MAX_QUEUES => {
                return Err(XdpError::ManyQueues { name: interface.name.clone() });
            }
            Ok(socket) => sockets.push(socket),
            // The interface has no more queues.
            Err(Errno::INVAL) if queue > 0 => break,
            Err(errno) => return Err(XdpError::at(interface, "making its socket")(errno)),
        }
    }
    Ok(sockets)
}

/// Retries an operation that takes hold of the interface while a process that has ended seems to
/// hold it.
fn retry_while_busy<T>(mut hold: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    let start = Instant::now();
    loop {
        match hold() {
            Err(Errno::BUSY) if start.elapsed() < RELEASE_TIME => {
                std::thread::sleep(Duration::from_millis(1));
            }
            held => return held,
        }
    }
}
