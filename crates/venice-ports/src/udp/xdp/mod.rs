//! AF_XDP beside the socket: single datagrams past the kernel's network stack.
//!
//! A program at the interface hands short requests, and what came by this way itself, to sockets
//! that see whole frames in memory of ours ([`program`]); everything else stays with the kernel.
//! Answers carry the request's headers, turned ([`routes`]), so that nothing has to be known of
//! neighbours, routes or names. Trains go by the UDP socket, which moves many datagrams at once.

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

/// Receive queues of an interface that are served; each takes 4 MiB.
const MAX_QUEUES: u32 = 16;
/// For so long after a train everything goes by the socket: answers that went singly and at once
/// would make a stream of bulk transfers one of single datagrams.
const STREAM_NS: u64 = 200_000;
/// The UDP socket is looked at every so many times, as a look is a system call, and a look here
/// is none.
const LOOKS_PER_SOCKET_LOOK: u32 = 8;
/// The kernel gives up the queue and the program of a process that ended a while later.
const LEFT_BEHIND: Duration = Duration::from_secs(2);

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// After the driver, on the kernel's socket buffers: at every interface.
    Generic,
    /// In the driver's receive path.
    Native,
}

/// Why there can be no AF_XDP at an interface.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// There is no such interface.
    #[error("there is no network interface {name}: ip link lists them")]
    NoInterface {
        /// The name asked for.
        name: String,
    },
    /// It has no IPv4 address.
    #[error("{name} has no IPv4 address: AF_XDP is for IPv4")]
    NoAddress {
        /// The interface.
        name: String,
    },
    /// The socket is one for IPv6.
    #[error("AF_XDP is for IPv4: listen on an address of it, not on {ip}")]
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
        /// The interface's.
        first: Ipv4Addr,
    },
    /// It has too many receive queues.
    #[error("{name} has more than {MAX_QUEUES} receive queues: ethtool -L {name} sets fewer")]
    ManyQueues {
        /// The interface.
        name: String,
    },
    /// A port with several sockets; all that a sender sends has to come to one thread.
    #[error("AF_XDP needs a port with one queue, and this one has {queues}")]
    SeveralSockets {
        /// How many it has.
        queues: usize,
    },
    /// The kernel refuses.
    #[error("AF_XDP at {interface}: {step} failed{}", hint(*.source, .interface))]
    Kernel {
        /// Where.
        interface: XdpInterface,
        /// What was being done.
        step: &'static str,
        /// What it said.
        source: Errno,
    },
}

impl XdpError {
    fn at(interface: &XdpInterface, step: &'static str) -> impl Fn(Errno) -> Self {
        move |source| Self::Kernel { interface: interface.clone(), step, source }
    }
}

/// What can be done about it.
fn hint(errno: Errno, interface: &XdpInterface) -> String {
    match errno {
        Errno::PERM | Errno::ACCESS => {
            " (it needs root, or CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF)".to_owned()
        }
        Errno::BUSY | Errno::EXIST => {
            " (one program at a time can have an interface: ip link show tells of others)"
                .to_owned()
        }
        Errno::OPNOTSUPP | Errno::RANGE if interface.mode == XdpMode::Native => {
            format!(
                " (its driver or its MTU does not allow for it: try {}:generic)",
                interface.name
            )
        }
        Errno::INVAL | Errno::AFNOSUPPORT | Errno::NOPROTOOPT => {
            " (it needs Linux 6.6 with CONFIG_XDP_SOCKETS)".to_owned()
        }
        _ => String::new(),
    }
}

/// What has gone this way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpCounts {
    /// Datagrams that came.
    pub received: u64,
    /// Datagrams that went out.
    pub sent: u64,
    /// Datagrams that came and found no room.
    pub lost: u64,
}

/// The way past the kernel for the datagrams of one UDP socket, until it is dropped, or its process
/// dies in whatever manner.
#[derive(Debug)]
pub struct Xdp {
    interface: XdpInterface,
    // First, so that nothing comes any more when the sockets go.
    _attached: Attached,
    /// By receive queue.
    sockets: Vec<XskSocket>,
    /// Where the last datagram came; what goes out goes there too.
    last_queue: usize,
    routes: Routes,
    /// The longest payload that fits into one packet of the interface.
    longest_bytes: usize,
    next_number: u16,
    looks: u32,
    /// Until then, all goes by the socket.
    stream_until_ns: u64,
    counts: XdpCounts,
}

impl Xdp {
    /// Attaches the program for what comes to `socket`, whose datagrams are all sealed or none.
    ///
    /// # Errors
    /// When it cannot be had, with the reason and what may help.
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
        let attached = once_left(|| program.attach(facts.index, interface.mode))
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

    /// Whether this kernel has it and this user may use it; at no interface that anybody needs.
    ///
    /// # Errors
    /// When not, with the reason and what may help.
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

    /// Where it is attached.
    pub fn interface(&self) -> &XdpInterface {
        &self.interface
    }

    /// What has gone this way so far.
    pub fn counts(&self) -> XdpCounts {
        XdpCounts { lost: self.sockets.iter().map(XskSocket::lost).sum(), ..self.counts }
    }

    /// To sleep on.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(AsFd::as_fd)
    }

    /// Whether nothing has come.
    pub(super) fn is_empty(&self) -> bool {
        self.sockets.iter().all(XskSocket::is_empty)
    }

    /// Hands on what has come, with its sender; whether anything had. `take` tells whether it was
    /// genuine, and the way back may be learned from it.
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

    /// Sends the datagrams that go singly and whose way is known, and leaves the rest. `kept`: as for
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
            // A packet in two frames is dearer to a socket at its other end than by our socket.
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

    /// Trains have come, or go.
    pub(super) fn note_stream(&mut self, now_ns: u64) {
        self.stream_until_ns = now_ns + STREAM_NS;
    }

    /// Whether the UDP socket is to be looked at as well.
    pub(super) fn is_socket_due(&mut self, now_ns: u64) -> bool {
        self.looks += 1;
        let is_due = self.looks >= LOOKS_PER_SOCKET_LOOK || now_ns < self.stream_until_ns;
        if is_due {
            self.looks = 0;
        }
        is_due
    }

    /// The UDP socket is looked at the next time: something has woken us.
    pub(super) fn socket_is_due(&mut self) {
        self.looks = LOOKS_PER_SOCKET_LOOK;
    }
}

/// One socket for each receive queue that the interface has.
fn bind_queues(interface: &XdpInterface, index: u32) -> Result<Vec<XskSocket>, XdpError> {
    let mut sockets = Vec::new();
    for queue in 0..=MAX_QUEUES {
        match XskSocket::bind(index, queue) {
            Ok(_) if queue == MAX_QUEUES => {
                return Err(XdpError::ManyQueues { name: interface.name.clone() });
            }
            Ok(socket) => sockets.push(socket),
            // There are no more.
            Err(Errno::INVAL) if queue > 0 => break,
            Err(errno) => return Err(XdpError::at(interface, "making its socket")(errno)),
        }
    }
    Ok(sockets)
}

/// Does what takes hold of the interface; waits where somebody who is gone seems to have it.
fn once_left<T>(mut hold: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    let start = Instant::now();
    loop {
        match hold() {
            Err(Errno::BUSY) if start.elapsed() < LEFT_BEHIND => {
                std::thread::sleep(Duration::from_millis(1));
            }
            held => return held,
        }
    }
}
