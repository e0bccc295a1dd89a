//! Connects: makes the end of a link from an address.

use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use venice_fabric::{
    CloseReason, InitiatorConfig, QPairConfig, QPairError, QPairId, QPairKind, RejectReason,
    TargetConfig,
};
use venice_wire::NodeId;

use super::end::End;
use super::landing::Landings;
use super::link::{Link, RingTarget, ring_link};
use super::pipe::{Pipe, PipeSocket};
use super::shared::{Shared, Wait};
use super::socket::{QPairSocket, Socket};
use super::{QPairAddress, QPairOptions, QPairSeal, QPairSocketError};
use crate::ring::{RingDriver, RingPort, take_offer};
use crate::udp::{UdpDriver, UdpEnd, UdpSocket, unspecified_like};
use crate::{PortError, monotonic_ns, random_u64};

/// Node number of the listener, as its callers see it.
const LISTENER: NodeId = NodeId(1);

fn random() -> Result<u64, PortError> {
    random_u64().map_err(PortError::at("drawing a random number"))
}

/// Most accesses that a connecting end may have outstanding, beside its QPair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depth {
    pub crma: u16,
    pub rdma: u16,
}

impl Depth {
    /// Depth of an end that only sends messages.
    pub(super) const NONE: Self = Self { crma: 1, rdma: 1 };
}

/// Draws a node number for a caller: any that is not the listener's.
fn caller_config(depth: Depth) -> Result<InitiatorConfig, PortError> {
    let number = random()? as u32 | 1 << 31;
    Ok(InitiatorConfig {
        crma_depth: depth.crma,
        rdma_depth: depth.rdma,
        ..InitiatorConfig::new(NodeId(number), random()?)
    })
}

fn listener_config() -> Result<TargetConfig, PortError> {
    Ok(TargetConfig::new(LISTENER, random()?))
}

/// Connects messages or a stream, and waits until the other side has accepted.
pub(super) fn connect_qpair(
    address: &QPairAddress,
    service: u32,
    kind: QPairKind,
    options: &QPairOptions,
    admission: &[u8],
) -> Result<QPairSocket, QPairSocketError> {
    let until = options.connect_until();
    if let QPairAddress::Ring { path, .. } = address {
        return match offer(path, options, admission)? {
            (port, true) => {
                let pipe = Pipe::connect(port, service, kind, until)?;
                Ok(QPairSocket::Piped(PipeSocket::new(pipe)))
            }
            (port, false) => {
                let (link, id) = ring_caller(port, service, kind, options, Depth::NONE)?;
                Ok(QPairSocket::Framed(opened(link, id, until)?))
            }
        };
    }
    Ok(QPairSocket::Framed(connect(address, service, kind, options, Depth::NONE)?))
}

/// Takes the ring that a listener offers.
fn offer(
    path: &Path,
    options: &QPairOptions,
    admission: &[u8],
) -> Result<(RingPort, bool), QPairSocketError> {
    take_offer(path, options.connect_timeout(), admission).map_err(|error| match error {
        // The listener is stopped, or has more callers than it can serve.
        PortError::System { source: Errno::AGAIN, .. }
        | PortError::NoAgent { source: Errno::AGAIN, .. } => QPairSocketError::TimedOut,
        error => error.into(),
    })
}

/// Connects by frames, and waits until the other side has accepted.
pub(crate) fn connect(
    address: &QPairAddress,
    service: u32,
    kind: QPairKind,
    options: &QPairOptions,
    depth: Depth,
) -> Result<Socket, QPairSocketError> {
    let (now_ns, until) = (monotonic_ns(), options.connect_until());
    let (link, id) = match address {
        QPairAddress::Ring { path, .. } => match offer(path, options, &[])? {
            (port, false) => ring_caller(port, service, kind, options, depth)?,
            (_, true) => {
                let refused = CloseReason::Refused(RejectReason::NoListener);
                return Err(QPairError::Closed(refused).into());
            }
        },
        QPairAddress::Udp { address, seal } => {
            let named = match seal {
                None => None,
                Some(QPairSeal::As(named)) => Some(*named),
                Some(QPairSeal::Keys(_)) => return Err(QPairSocketError::WrongSeal),
            };
            let local = unspecified_like(*address);
            let (mut driver, peer) =
                UdpDriver::towards(local, caller_config(depth)?, LISTENER, *address, named)?;
            let config = QPairConfig { kind, credit: options.credit, end: options.end };
            let id = driver.initiator().qpair_connect(now_ns, peer, service, config)?;
            (Link::UdpCaller(Box::new(driver)), id)
        }
    };
    opened(link, id, until)
}

/// Requests a QPair over a ring of frames.
fn ring_caller(
    port: RingPort,
    service: u32,
    kind: QPairKind,
    options: &QPairOptions,
    depth: Depth,
) -> Result<(Link, QPairId), QPairSocketError> {
    let mut initiator = caller_config(depth)?;
    initiator.link = ring_link(initiator.link);
    let mut driver = RingDriver::new(initiator)?;
    let now_ns = monotonic_ns();
    let peer = driver.add_peer(now_ns, LISTENER, port)?;
    let config = QPairConfig { kind, credit: options.credit, end: options.end };
    let id = driver.initiator().qpair_connect(now_ns, peer, service, config)?;
    Ok((Link::RingCaller(Box::new(driver)), id))
}

/// Waits until the other side has accepted.
fn opened(link: Link, id: QPairId, until: Wait) -> Result<Socket, QPairSocketError> {
    let socket = Socket::new(Shared::new(End::new(link))?, id);
    socket.shared.call(until, |end, _| Ok(end.qpairs().check_open(id)?))?;
    Ok(socket)
}

/// Makes the accepting end of a ring.
pub(super) fn ring_end(port: RingPort, service: u32) -> Result<Arc<Shared>, QPairSocketError> {
    let mut link = Link::RingListener(Box::new(RingTarget::new(port, listener_config()?)));
    link.qpairs().listen(service, BACKLOG)?;
    Ok(Shared::new(End::new(link))?)
}

/// Makes the accepting end of a UDP address, for all its callers.
pub(super) fn udp_end(
    address: std::net::SocketAddr,
    seal: Option<&QPairSeal>,
    service: u32,
) -> Result<(Arc<Shared>, std::net::SocketAddr), QPairSocketError> {
    let keys = match seal {
        None => None,
        Some(QPairSeal::Keys(keys)) => Some(Arc::clone(keys)),
        Some(QPairSeal::As(_)) => return Err(QPairSocketError::WrongSeal),
    };
    let socket = UdpSocket::bind(address)?;
    let local = socket.local_addr();
    let end = UdpEnd::alone(socket, listener_config()?, Landings::default(), keys)?;
    let mut link = Link::UdpListener(Box::new(end));
    link.qpairs().listen(service, BACKLOG)?;
    Ok((Shared::new(End::new(link))?, local))
}

/// Most QPairs that may wait to be accepted.
const BACKLOG: u16 = 128;
