//! Memory that one process lends by itself, without a rack: one grant, which covers all of it.
//!
//! Programs lend registered memory so, and service hosts their bulk data. Both ends know a secret.

use std::net::SocketAddr;
use std::sync::Arc;

use venice_fabric::{InitiatorConfig, TargetConfig};
use venice_ports::channels::ChannelError;
use venice_ports::seal::{SealKeys, SealedAs, node_key};
use venice_ports::udp::{UdpDriver, UdpServer, UdpService, UdpSocket, unspecified_like};
use venice_ports::{PortError, random_u64};
use venice_wire::{GrantId, GrantKey, KeyName, NodeId, NodeSecret, SLAB_BYTES, SealKey};

use crate::donor::{DonorError, SharedGrants, Slab};

/// The one grant of a region.
pub const REGION_GRANT: GrantId = GrantId(1);
/// Number of its lender, as others see it.
pub const REGION_LENDER: NodeId = NodeId(1);

/// Returns the key of accesses to a region, which both ends derive from their secret.
pub fn region_key(secret: &NodeSecret) -> GrantKey {
    access_key(secret, GrantId(u64::MAX))
}

/// Returns the key of accesses to a further grant of a region, which both ends derive too.
pub fn access_key(secret: &NodeSecret, grant: GrantId) -> GrantKey {
    let SealKey(bytes) = node_key(secret, KeyName::Grant(grant));
    let (word, _) = bytes.split_first_chunk().expect("a key has 32 bytes");
    GrantKey(u64::from_le_bytes(*word))
}

/// Makes the grant of a region of at least `len_bytes`: slabs of zeros that become resident page by
/// page.
///
/// # Errors
/// [`DonorError::Memory`] if the kernel refuses them.
pub fn region_grants(key: GrantKey, len_bytes: u64) -> Result<SharedGrants, DonorError> {
    let slabs = len_bytes.div_ceil(SLAB_BYTES);
    let made = (0..slabs).map(|_| Slab::unlocked()).collect::<Result<_, _>>()?;
    let grants = SharedGrants::default();
    grants.lock().insert(REGION_GRANT, key, made);
    Ok(grants)
}

/// Serves a region on one socket at `address`; port 0 lets the system choose. Without `keys`
/// datagrams are plain.
///
/// # Errors
/// Fails if the address is taken or invalid, or a thread cannot be started.
pub fn serve_region_udp(
    address: SocketAddr,
    keys: Option<Arc<dyn SealKeys + Send + Sync>>,
    grants: &SharedGrants,
) -> Result<UdpServer, PortError> {
    let service = UdpService {
        sockets: vec![UdpSocket::bind(address)?],
        target: TargetConfig::new(REGION_LENDER, random_number()?),
        keys,
        xdp: None,
    };
    UdpServer::serve(service, || grants.clone())
}

/// Returns a driver that has the first `len_bytes` of the region at `address` mapped from 0 on.
/// `named` returns the key of datagrams for a number that was drawn for this driver; `None`: plain.
///
/// # Errors
/// Fails if no socket can be made, or the length is not a multiple of the slab size.
pub fn join_region_udp(
    address: SocketAddr,
    len_bytes: u64,
    key: GrantKey,
    named: impl FnOnce(u64) -> Option<SealedAs>,
) -> Result<UdpDriver, ChannelError> {
    let socket = UdpSocket::bind(unspecified_like(address))?;
    join_region_udp_by(socket, address, (REGION_GRANT, len_bytes, key), named)
}

/// The same by a socket that is there already, for any grant of the region: its id, its length in
/// bytes and its key.
///
/// # Errors
/// Fails if the system refuses what a driver needs, or the length is not a multiple of the slab
/// size.
pub fn join_region_udp_by(
    socket: UdpSocket,
    address: SocketAddr,
    (grant, len_bytes, key): (GrantId, u64, GrantKey),
    named: impl FnOnce(u64) -> Option<SealedAs>,
) -> Result<UdpDriver, ChannelError> {
    let number = random_number()?;
    // Any number but the lender's.
    let config = InitiatorConfig::new(NodeId(number as u32 | 1 << 31), number);
    let (mut driver, peer) =
        UdpDriver::towards_by(socket, config, REGION_LENDER, address, named(number))?;
    driver.initiator().map_window(0, len_bytes, peer, 0, grant, key)?;
    Ok(driver)
}

fn random_number() -> Result<u64, PortError> {
    random_u64().map_err(|source| PortError::System { step: "drawing a random number", source })
}
