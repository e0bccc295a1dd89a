//! The UDP port of a node: its sockets, its keys, and its traffic.

use std::collections::BTreeMap;
use std::sync::Arc;

use venice_control::{DroppedCounts, FlowPeer, FlowReport, PortReport, XdpFrames};
use venice_fabric::TargetConfig;
use venice_memory::donor::SharedGrants;
use venice_ports::seal::{SealKeys, node_key};
use venice_ports::udp::{Traffic, UdpServer, UdpService, UdpSocket, Xdp, XdpCounts, XdpInterface};
use venice_ports::{PortError, monotonic_ns};
use venice_wire::{GrantId, KeyName, NodeId, NodeSecret, SealKey};

use crate::AgentError;

/// The UDP port. Its sockets exist from the start; it serves once the node has its id.
#[derive(Debug)]
pub(crate) struct UdpHost {
    sockets: Vec<UdpSocket>,
    grants: SharedGrants,
    /// Interface where single datagrams bypass the kernel, if configured.
    interface: Option<XdpInterface>,
    /// Attached AF_XDP state that no server owns yet.
    xdp: Option<Xdp>,
    serving: Option<Serving>,
    flows: Flows,
}

#[derive(Debug)]
struct Serving {
    node: NodeId,
    secret: Option<NodeSecret>,
    server: UdpServer,
}

impl UdpHost {
    pub(crate) fn new(sockets: Vec<UdpSocket>, grants: SharedGrants) -> Self {
        let (interface, xdp) = (None, None);
        Self { sockets, grants, interface, xdp, serving: None, flows: Flows::default() }
    }

    /// Makes single datagrams bypass the kernel at `interface`; either all are sealed, or none.
    pub(crate) fn use_xdp(
        &mut self,
        interface: &XdpInterface,
        is_sealed: bool,
    ) -> Result<(), AgentError> {
        let socket = self.sockets.first().expect("at least one");
        self.xdp = Some(Xdp::open(interface, socket, is_sealed).map_err(PortError::from)?);
        self.interface = Some(interface.clone());
        Ok(())
    }

    /// Serves as `node`, under keys derived from `secret`; without a secret, unprotected.
    /// Recipients that use another node id, or keys of another secret, must reconnect.
    pub(crate) fn serve_as(
        &mut self,
        node: NodeId,
        secret: Option<NodeSecret>,
    ) -> Result<(), AgentError> {
        let is_same = |serving: &Serving| (serving.node, serving.secret) == (node, secret);
        if self.serving.as_ref().is_some_and(is_same) {
            return Ok(());
        }
        if self.serving.take().is_some()
            && let Some(interface) = self.interface.clone()
        {
            // The old AF_XDP state ended with its server.
            self.use_xdp(&interface, secret.is_some())?;
        }
        let incarnation = venice_ports::random_u64().map_err(AgentError::Random)?;
        let service = UdpService {
            sockets: self.sockets.iter().map(UdpSocket::try_clone).collect::<Result<_, _>>()?,
            target: TargetConfig::new(node, incarnation),
            keys: secret.map(|secret| node_keys(secret, self.grants.clone())),
            xdp: self.xdp.take(),
        };
        let server = UdpServer::serve(service, || self.grants.clone())?;
        self.serving = Some(Serving { node, secret, server });
        Ok(())
    }

    /// Returns the secret of [`Self::serve_as`].
    pub(crate) fn secret(&self) -> Option<NodeSecret> {
        self.serving.as_ref().and_then(|serving| serving.secret)
    }

    /// See [`UdpServer::share`].
    pub(crate) fn share(&self, grant: GrantId) {
        self.serving.iter().for_each(|serving| serving.server.share(grant));
    }

    /// See [`UdpServer::revoke`].
    pub(crate) fn revoke(&self, grant: GrantId) {
        self.serving.iter().for_each(|serving| serving.server.revoke(grant));
    }

    /// See [`UdpServer::forget`].
    pub(crate) fn forget(&self, grant: GrantId) {
        self.serving.iter().for_each(|serving| serving.server.forget(grant));
    }

    /// See [`UdpServer::are_notified`].
    pub(crate) fn are_notified(&self) -> bool {
        self.serving.as_ref().is_none_or(|serving| serving.server.are_notified())
    }

    /// Returns the traffic since this agent serves under its id.
    pub(crate) fn total_traffic(&self) -> Traffic {
        let serving = self.serving.as_ref();
        serving.map(|serving| serving.server.total_traffic()).unwrap_or_default()
    }

    /// Returns the port's traffic for the heartbeat, including the `relayed` traffic for this node.
    pub(crate) fn report(&mut self, relayed: Vec<Traffic>) -> PortReport {
        let Some(Serving { server, .. }) = &self.serving else { return PortReport::default() };
        let dropped = server.dropped();
        let mut moved: BTreeMap<Option<KeyName>, u64> = BTreeMap::new();
        for traffic in server.traffic().into_iter().chain(relayed) {
            *moved.entry(traffic.name).or_default() += traffic.received_bytes + traffic.sent_bytes;
        }
        // An ended grant has no traffic.
        let is_over = |name: &Option<KeyName>| matches!(name, Some(KeyName::Grant(id)) if !self.grants.lock().contains(*id));
        moved.retain(|name, _| !is_over(name));
        let moved = moved.into_iter().map(|(name, bytes)| (peer_of(name), bytes)).collect();
        PortReport {
            dropped: DroppedCounts {
                replayed: dropped.replayed,
                forged: dropped.forged,
                unsealed: dropped.unsealed,
                unknown_key: dropped.unknown_key,
            },
            flows: self.flows.since_last(monotonic_ns(), moved),
            mapped: Vec::new(),
            xdp: self.interface.is_some().then(|| {
                let XdpCounts { received, sent, lost } = server.xdp_counts();
                XdpFrames { received, sent, lost }
            }),
        }
    }
}

/// Returns the keys derived from `secret`, for recipients of grants and for other nodes.
pub(crate) fn node_keys(
    secret: NodeSecret,
    grants: SharedGrants,
) -> Arc<dyn SealKeys + Send + Sync> {
    Arc::new(NodeKeys { secret, grants })
}

/// A node's keys: those of its living grants, and one for every other node. The key of an ended
/// grant is accepted a little longer, to notify its recipient.
struct NodeKeys {
    secret: NodeSecret,
    grants: SharedGrants,
}

impl SealKeys for NodeKeys {
    fn key(&self, name: KeyName) -> Option<SealKey> {
        let is_good = match name {
            KeyName::Grant(grant) => self.grants.lock().contains(grant),
            KeyName::Peer(_) => true,
        };
        is_good.then(|| node_key(&self.secret, name))
    }

    fn is_accepted(&self, name: KeyName) -> bool {
        match name {
            KeyName::Grant(grant) => self.grants.lock().remembers(grant),
            KeyName::Peer(_) => true,
        }
    }

    fn generation(&self) -> u64 {
        self.grants.generation()
    }
}

/// Converts byte counts into rates.
#[derive(Debug, Default)]
struct Flows {
    looked_ns: u64,
    bytes: BTreeMap<Option<KeyName>, u64>,
}

impl Flows {
    /// Returns the rates since the last call, without peers that have gone.
    fn since_last(&mut self, now_ns: u64, moved: Vec<(FlowPeer, u64)>) -> Vec<FlowReport> {
        let seconds = now_ns.saturating_sub(self.looked_ns) as f64 / 1e9;
        let before = std::mem::take(&mut self.bytes);
        self.looked_ns = now_ns;
        let mut flows = Vec::new();
        for (with, bytes) in moved {
            let earlier = before.get(&key_of(with)).copied().unwrap_or(0);
            self.bytes.insert(key_of(with), bytes);
            let more = bytes.saturating_sub(earlier) as f64;
            flows.push(FlowReport { with, bytes_per_s: more / seconds.max(0.001) });
        }
        flows
    }
}

fn peer_of(name: Option<KeyName>) -> FlowPeer {
    match name {
        None => FlowPeer::Anybody,
        Some(KeyName::Grant(grant)) => FlowPeer::Grant(grant),
        Some(KeyName::Peer(node)) => FlowPeer::Node(node),
    }
}

fn key_of(with: FlowPeer) -> Option<KeyName> {
    match with {
        FlowPeer::Grant(grant) => Some(KeyName::Grant(grant)),
        FlowPeer::Node(node) => Some(KeyName::Peer(node)),
        FlowPeer::Anybody => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn rates_cover_last_report_interval() {
        let mut flows = Flows::default();
        let (one, two) = (FlowPeer::Grant(GrantId(1)), FlowPeer::Node(NodeId(2)));
        flows.since_last(10 * S, vec![(one, 500)]);
        let now = flows.since_last(12 * S, vec![(one, 2500), (two, 10)]);
        let rates: Vec<_> = now.iter().map(|flow| (flow.with, flow.bytes_per_s)).collect();
        assert_eq!(rates, [(one, 1000.0), (two, 5.0)]);
        assert_eq!(flows.since_last(13 * S, vec![(two, 10)])[0].bytes_per_s, 0.0);
    }

    #[test]
    fn grant_key_lives_with_grant() {
        let grants = SharedGrants::default();
        let keys = NodeKeys { secret: NodeSecret([1; 32]), grants: grants.clone() };
        let name = KeyName::Grant(GrantId(4));
        assert!(keys.key(name).is_none() && keys.key(KeyName::Peer(NodeId(9))).is_some());
        let before = keys.generation();
        grants.lock().insert(GrantId(4), venice_wire::GrantKey(1), Vec::new());
        assert!(keys.key(name).is_some() && keys.generation() != before);
        grants.lock().end(GrantId(4));
        assert!(keys.key(name).is_none() && keys.is_accepted(name));
        let before = keys.generation();
        grants.lock().forget(GrantId(4));
        assert!(!keys.is_accepted(name) && keys.generation() != before);
    }
}
