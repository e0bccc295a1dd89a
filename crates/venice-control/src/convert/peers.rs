//! Lists of near peers.

use super::{identity_in, key_in, key_out};
use crate::proto;
use tonic::Status;
use venice_rack::types::{Peer, PeerList, RelayPeer};
use venice_wire::NodeId;

pub(super) fn peer_list_in(list: proto::PeerList) -> Result<PeerList, Status> {
    Ok(PeerList {
        version: list.version,
        peers: list.peers.into_iter().map(peer_in).collect::<Result<_, _>>()?,
        relays: list.relays.into_iter().map(relay_in).collect(),
    })
}

pub(super) fn peer_list_out(list: PeerList) -> proto::PeerList {
    proto::PeerList {
        version: list.version,
        peers: list.peers.into_iter().map(peer_out).collect(),
        relays: list.relays.into_iter().map(relay_out).collect(),
    }
}

fn peer_in(peer: proto::Peer) -> Result<Peer, Status> {
    let identity = identity_in(peer.identity)?;
    Ok(Peer {
        name: peer.name,
        node: identity.node,
        epoch: identity.epoch,
        udp_addr: peer.udp_addr,
        shm_socket: peer.shm_socket,
        seal_key: key_in(&peer.seal_key)?,
    })
}

fn peer_out(peer: Peer) -> proto::Peer {
    proto::Peer {
        name: peer.name,
        identity: Some(proto::Identity { node: peer.node.0, epoch: peer.epoch }),
        udp_addr: peer.udp_addr,
        shm_socket: peer.shm_socket,
        seal_key: key_out(peer.seal_key),
    }
}

fn relay_in(relay: proto::RelayPeer) -> RelayPeer {
    RelayPeer { node: NodeId(relay.node), position: relay.position, addr: relay.addr }
}

fn relay_out(relay: RelayPeer) -> proto::RelayPeer {
    proto::RelayPeer { node: relay.node.0, position: relay.position, addr: relay.addr }
}
