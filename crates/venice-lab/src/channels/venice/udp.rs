//! The udp port: an initiator here, an agent's server behind the wire.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use venice_ports::monotonic_ns;
use venice_ports::seal::{SealKeys, SealedAs, node_key};
use venice_ports::udp::{UdpDriver, UdpServer, UdpService, UdpSocket, Xdp, XdpInterface, XdpMode};
use venice_wire::{KeyName, NodeSecret};

use super::frames::{FrameBed, link_up};
use super::lent::{DONOR, GRANT, KEY, WINDOW, donor, lent, recipient};
use super::{Bed, MEMORY_BYTES};
use crate::channels::measure::Ends;
use crate::channels::path::{FarEnd, Path};
use crate::channels::raw::Waiting;
use crate::channels::series::Operation;

/// Any secret suffices: this wire has no other users.
pub(super) const SECRET: NodeSecret = NodeSecret([0x5e; 32]);

/// Protection of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::channels) enum Protection {
    /// Plain, the same as `venice up --plain`.
    Plain,
    /// Encrypted and authenticated, the default.
    Sealed,
}

impl Protection {
    /// Returns the name used in variants.
    pub(in crate::channels) fn name(self) -> &'static str {
        match self {
            Protection::Plain => "plain",
            Protection::Sealed => "sealed",
        }
    }
}

/// A recipient's driver, and a donor's server behind the wire.
pub(in crate::channels) struct UdpBed {
    near: FrameBed<UdpDriver>,
    _far: FarEnd,
}

impl UdpBed {
    /// Joins both ends. The calling thread is the near one.
    ///
    /// # Errors
    /// When sockets or threads cannot be made, or no link comes up.
    pub(in crate::channels) fn lay(
        path: &Path,
        ends: Ends,
        protection: Protection,
        waiting: Waiting,
    ) -> Result<Self> {
        Self::lay_with(path, ends, protection, waiting, None)
    }

    /// The same with AF_XDP for single datagrams at both ends.
    ///
    /// # Errors
    /// The same as [`UdpBed::lay`], and when AF_XDP is unavailable.
    pub(in crate::channels) fn lay_past_kernel(
        path: &Path,
        ends: Ends,
        protection: Protection,
        waiting: Waiting,
    ) -> Result<Self> {
        let (near, far) = path.devices();
        let at = |name: &str| XdpInterface { name: name.to_owned(), mode: XdpMode::Generic };
        Self::lay_with(path, ends, protection, waiting, Some([at(near), at(far)]))
    }

    fn lay_with(
        path: &Path,
        ends: Ends,
        protection: Protection,
        waiting: Waiting,
        past: Option<[XdpInterface; 2]>,
    ) -> Result<Self> {
        let far = path.far();
        let [near_device, far_device] = past.map_or([None, None], |devices| devices.map(Some));
        let prepare = move || {
            let socket = UdpSocket::bind((far, 0).into()).context("the donor's socket")?;
            let address = socket.local_addr();
            let is_sealed = protection == Protection::Sealed;
            let open = |at: XdpInterface| Xdp::open(&at, &socket, is_sealed);
            let xdp = far_device.map(open).transpose()?;
            let keys: Option<Arc<dyn SealKeys + Send + Sync>> = match protection {
                Protection::Plain => None,
                Protection::Sealed => Some(Arc::new(SECRET)),
            };
            let service = UdpService { sockets: vec![socket], target: donor()?, keys, xdp };
            let mut memory = Some(lent().context("the donor's memory")?);
            let memory = || memory.take().expect("one socket has one thread");
            let server = UdpServer::serve(service, memory).context("the donor's thread")?;
            Ok((address, server))
        };
        let serve = |server: UdpServer, stop: &AtomicBool| {
            while !stop.load(Ordering::Relaxed) {
                std::thread::park_timeout(Duration::from_millis(20));
            }
            drop(server);
        };
        let (far, address) = FarEnd::start(Some(path), ends.far_cpu, prepare, serve)?;
        let mut driver = join((path.near(), 0).into(), address, protection)?;
        near_device.iter().try_for_each(|at| driver.use_xdp(at))?;
        Ok(Self { near: FrameBed::new(driver, waiting), _far: far })
    }
}

/// Creates a recipient's driver whose link to the donor is up and has its memory mapped.
fn join(near: SocketAddr, donor: SocketAddr, protection: Protection) -> Result<UdpDriver> {
    let (mut driver, peer) = match protection {
        Protection::Plain => {
            let mut driver = UdpDriver::new(near, recipient()?)?;
            let peer = driver.add_peer(monotonic_ns(), DONOR, donor)?;
            (driver, peer)
        }
        Protection::Sealed => {
            let name = KeyName::Grant(GRANT);
            let named = SealedAs { name, key: node_key(&SECRET, name) };
            let mut driver = UdpDriver::sealed(near, recipient()?)?;
            let peer = driver.add_sealed_peer(monotonic_ns(), DONOR, donor, named)?;
            (driver, peer)
        }
    };
    driver.initiator().map_window(WINDOW, MEMORY_BYTES as u64, peer, 0, GRANT, KEY)?;
    link_up(&mut driver, peer)?;
    Ok(driver)
}

impl Bed for UdpBed {
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
