//! Conversion between plain and generated types. Missing and unknown values from a peer are errors.

mod endpoints;
mod events;
mod identity;
mod peers;
mod quotas;
mod requests;
mod rows;
mod shares;
mod transfers;

pub(crate) use endpoints::{service_in, service_out};
pub(crate) use events::*;
pub(crate) use identity::{
    certified_in, certified_out, refused_in, refused_out, revocation_in, revocation_out,
};
pub(crate) use quotas::{limits_in, limits_out, quota_table_in, quota_table_out};
pub(crate) use requests::{
    asked_in, asked_out, client_id_in, memory_request_in, request_in, request_out,
};
pub(crate) use rows::*;
pub(crate) use shares::{kind_in, kind_out};
pub(crate) use transfers::*;

use crate::proto;
use endpoints::{endpoints_in, endpoints_out};
use peers::{peer_list_in, peer_list_out};
use shares::{device_in, device_report_in, device_report_out, share_in, share_out};
use tonic::Status;
use venice_rack::caller::Owner;
use venice_rack::door::DoorReport;
use venice_rack::label::{LABEL_RULE, is_label, is_printable};
use venice_rack::pressure::{PressureLevel, PressureReport};
use venice_rack::queueing::DEFAULT_PRIORITY;
use venice_rack::revocation::RevocationNews;
use venice_rack::types::{
    CalledBack, DonorReport, DonorStatus, DroppedCounts, Endpoint, FlowPeer, FlowReport, Grant,
    GrantUsage, HeartbeatAck, HeartbeatReport, HeldGrant, HeldState, Identity, LeaseState,
    LinkPort, LinkProtection, LinkReport, LinkState, NodeRegistration, Notice, NoticeReason,
    PortReport, PrepareRequest, Registered, RelayPlace, ResourceSpec, Share, XdpFrames,
};
use venice_wire::{GrantId, GrantKey, NodeId, NodeSecret, PortId, SEAL_KEY_BYTES, SealKey};

/// Returns a required field.
fn required<T>(field: Option<T>, name: &str) -> Result<T, Status> {
    field.ok_or_else(|| Status::invalid_argument(format!("{name} is missing")))
}

/// Checks that a name is not empty and has no control characters; `what` names its subject.
pub(crate) fn name_in(name: String, what: &str) -> Result<String, Status> {
    match () {
        () if name.is_empty() => {
            Err(Status::invalid_argument(format!("the name of {what} is empty")))
        }
        () if !is_printable(&name) => Err(Status::invalid_argument(format!(
            "the name of {what} has control characters: expected printable ones"
        ))),
        () => Ok(name),
    }
}

/// Checks the name of a user, which others read in lists.
pub(crate) fn user_name_in(name: String) -> Result<String, Status> {
    let name = name_in(name, "the user")?;
    match is_label(&name) {
        true => Ok(name),
        false => Err(Status::invalid_argument(format!("invalid user name: expected {LABEL_RULE}"))),
    }
}

pub(crate) fn names_in(names: Vec<String>, what: &str) -> Result<Vec<String>, Status> {
    names.into_iter().map(|name| name_in(name, what)).collect()
}

/// Parses 32 bytes, or none.
fn secret_in(bytes: &[u8], name: &str) -> Result<Option<[u8; SEAL_KEY_BYTES]>, Status> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let secret = bytes.try_into();
    secret.map(Some).map_err(|_| Status::invalid_argument(format!("{name} has to be 32 bytes")))
}

fn key_in(bytes: &[u8]) -> Result<Option<SealKey>, Status> {
    Ok(secret_in(bytes, "seal_key")?.map(SealKey))
}

fn key_out(key: Option<SealKey>) -> Vec<u8> {
    key.map(|key| key.0.to_vec()).unwrap_or_default()
}

fn node_secret_in(bytes: &[u8]) -> Result<Option<NodeSecret>, Status> {
    Ok(secret_in(bytes, "secret")?.map(NodeSecret))
}

fn node_secret_out(secret: Option<NodeSecret>) -> Vec<u8> {
    secret.map(|secret| secret.0.to_vec()).unwrap_or_default()
}

pub(crate) fn identity_in(identity: Option<proto::Identity>) -> Result<Identity, Status> {
    let identity = required(identity, "identity")?;
    Ok(Identity { node: NodeId(identity.node), epoch: identity.epoch })
}

pub(crate) fn identity_out(identity: Identity) -> proto::Identity {
    proto::Identity { node: identity.node.0, epoch: identity.epoch }
}

pub(crate) fn status_in(status: Option<proto::DonorStatus>) -> Result<DonorStatus, Status> {
    let proto::DonorStatus { total_slabs, free_slabs, revision } = required(status, "status")?;
    Ok(DonorStatus { total_slabs, free_slabs, revision })
}

pub(crate) fn status_out(status: DonorStatus) -> proto::DonorStatus {
    let DonorStatus { total_slabs, free_slabs, revision } = status;
    proto::DonorStatus { total_slabs, free_slabs, revision }
}

pub(crate) fn registration_in(
    request: proto::RegisterNodeRequest,
) -> Result<NodeRegistration, Status> {
    let resources = request.resources.into_iter().map(resource_in).collect::<Result<_, _>>()?;
    let previous = request.previous.map(|previous| identity_in(Some(previous))).transpose()?;
    Ok(NodeRegistration {
        name: request.name,
        instance: request.instance,
        pid: request.pid,
        control_addr: request.control_addr,
        udp_addr: request.udp_addr,
        shm_socket: request.shm_socket,
        resources,
        previous,
        relay: request.relay.map(relay_in),
        link: request.link,
        is_pool: request.pool,
        secret: node_secret_in(&request.secret)?,
        is_plain: request.plain,
    })
}

fn relay_in(relay: proto::RelayPlace) -> RelayPlace {
    let proto::RelayPlace { topology, position, addr } = relay;
    RelayPlace { topology, position, addr }
}

fn relay_out(relay: RelayPlace) -> proto::RelayPlace {
    let RelayPlace { topology, position, addr } = relay;
    proto::RelayPlace { topology, position, addr }
}

pub(crate) fn registration_out(node: NodeRegistration) -> proto::RegisterNodeRequest {
    proto::RegisterNodeRequest {
        name: node.name,
        instance: node.instance,
        pid: node.pid,
        control_addr: node.control_addr,
        udp_addr: node.udp_addr,
        shm_socket: node.shm_socket,
        resources: node.resources.into_iter().map(resource_out).collect(),
        previous: node.previous.map(identity_out),
        relay: node.relay.map(relay_out),
        link: node.link,
        secret: node_secret_out(node.secret),
        plain: node.is_plain,
        pool: node.is_pool,
    }
}

fn resource_in(resource: proto::Resource) -> Result<ResourceSpec, Status> {
    Ok(ResourceSpec {
        kind: kind_in(resource.kind)?,
        address: resource.address,
        bytes: resource.bytes,
        slab_bytes: resource.slab_bytes,
        capabilities: resource.capabilities,
    })
}

fn resource_out(resource: ResourceSpec) -> proto::Resource {
    proto::Resource {
        kind: kind_out(resource.kind),
        address: resource.address,
        bytes: resource.bytes,
        slab_bytes: resource.slab_bytes,
        capabilities: resource.capabilities,
    }
}

pub(crate) fn registered_in(response: proto::RegisterNodeResponse) -> Result<Registered, Status> {
    Ok(Registered {
        identity: identity_in(response.identity)?,
        heartbeat_interval_ms: response.heartbeat_interval_ms,
        lease_ms: response.lease_ms,
        secret: node_secret_in(&response.secret)?,
    })
}

pub(crate) fn registered_out(registered: Registered) -> proto::RegisterNodeResponse {
    proto::RegisterNodeResponse {
        identity: Some(identity_out(registered.identity)),
        heartbeat_interval_ms: registered.heartbeat_interval_ms,
        lease_ms: registered.lease_ms,
        secret: node_secret_out(registered.secret),
    }
}

pub(crate) fn heartbeat_in(request: proto::HeartbeatRequest) -> Result<HeartbeatReport, Status> {
    Ok(HeartbeatReport {
        identity: identity_in(request.identity)?,
        instance: request.instance,
        memory: DonorReport {
            status: status_in(request.status)?,
            held: request.held.into_iter().map(held_in).collect::<Result<_, _>>()?,
            devices: request.devices.into_iter().map(device_report_in).collect::<Result<_, _>>()?,
        },
        links: request.links.into_iter().map(link_in).collect::<Result<_, _>>()?,
        port: PortReport {
            dropped: dropped_in(request.dropped.unwrap_or_default()),
            flows: request.flows.into_iter().map(flow_in).collect(),
            mapped: request.mapped.into_iter().map(GrantId).collect(),
            xdp: request.xdp.map(xdp_in),
        },
        pressure: pressure_in(request.pressure.unwrap_or_default()),
        door: DoorReport {
            refused: refused_in(request.refused.unwrap_or_default()),
            certificate_expires_s: request.certificate_expires_s,
            revoked_version: request.revoked_version,
            revoked_besides: request.revoked_besides.into_iter().map(revocation_in).collect(),
            trust_version: request.trust_version,
        },
        usage: request.usage.into_iter().map(usage_in).collect(),
        peers_version: request.peers_version,
    })
}

pub(crate) fn heartbeat_out(report: HeartbeatReport) -> proto::HeartbeatRequest {
    proto::HeartbeatRequest {
        identity: Some(identity_out(report.identity)),
        instance: report.instance,
        status: Some(status_out(report.memory.status)),
        held: report.memory.held.into_iter().map(held_out).collect(),
        devices: report.memory.devices.into_iter().map(device_report_out).collect(),
        links: report.links.into_iter().map(link_out).collect(),
        dropped: Some(dropped_out(report.port.dropped)),
        flows: report.port.flows.into_iter().map(flow_out).collect(),
        mapped: report.port.mapped.into_iter().map(|grant| grant.0).collect(),
        xdp: report.port.xdp.map(xdp_out),
        pressure: Some(pressure_out(report.pressure)),
        refused: Some(refused_out(report.door.refused)),
        certificate_expires_s: report.door.certificate_expires_s,
        revoked_version: report.door.revoked_version,
        trust_version: report.door.trust_version,
        revoked_besides: report.door.revoked_besides.into_iter().map(revocation_out).collect(),
        usage: report.usage.into_iter().map(usage_out).collect(),
        peers_version: report.peers_version,
    }
}

fn usage_in(usage: proto::GrantUsage) -> GrantUsage {
    let proto::GrantUsage { grant, busy_ratio, in_bytes, out_bytes, commands } = usage;
    let busy_ratio = busy_ratio.filter(|ratio| (0.0..=1.0).contains(ratio));
    GrantUsage { grant: GrantId(grant), busy_ratio, in_bytes, out_bytes, commands }
}

fn usage_out(usage: GrantUsage) -> proto::GrantUsage {
    let GrantUsage { grant, busy_ratio, in_bytes, out_bytes, commands } = usage;
    proto::GrantUsage { grant: grant.0, busy_ratio, in_bytes, out_bytes, commands }
}

fn pressure_in(pressure: proto::Pressure) -> PressureReport {
    let level = match pressure.level() {
        proto::pressure::Level::None => PressureLevel::None,
        proto::pressure::Level::Low => PressureLevel::Low,
        proto::pressure::Level::High => PressureLevel::High,
    };
    let proto::Pressure { available_bytes, stall_ratio, .. } = pressure;
    PressureReport { level, available_bytes, stall_ratio }
}

fn pressure_out(pressure: PressureReport) -> proto::Pressure {
    let level = match pressure.level {
        PressureLevel::None => proto::pressure::Level::None,
        PressureLevel::Low => proto::pressure::Level::Low,
        PressureLevel::High => proto::pressure::Level::High,
    };
    let PressureReport { available_bytes, stall_ratio, .. } = pressure;
    proto::Pressure { level: level.into(), available_bytes, stall_ratio }
}

fn dropped_in(dropped: proto::DroppedCounts) -> DroppedCounts {
    let proto::DroppedCounts { replayed, forged, unsealed, unknown_key } = dropped;
    DroppedCounts { replayed, forged, unsealed, unknown_key }
}

fn dropped_out(dropped: DroppedCounts) -> proto::DroppedCounts {
    let DroppedCounts { replayed, forged, unsealed, unknown_key } = dropped;
    proto::DroppedCounts { replayed, forged, unsealed, unknown_key }
}

fn xdp_in(frames: proto::XdpFrames) -> XdpFrames {
    let proto::XdpFrames { received, sent, lost } = frames;
    XdpFrames { received, sent, lost }
}

fn xdp_out(frames: XdpFrames) -> proto::XdpFrames {
    let XdpFrames { received, sent, lost } = frames;
    proto::XdpFrames { received, sent, lost }
}

fn flow_in(flow: proto::FlowReport) -> FlowReport {
    let with = match flow.with {
        Some(proto::flow_report::With::Grant(grant)) => FlowPeer::Grant(GrantId(grant)),
        Some(proto::flow_report::With::Node(node)) => FlowPeer::Node(NodeId(node)),
        None => FlowPeer::Anybody,
    };
    FlowReport { with, bytes_per_s: flow.bytes_per_s }
}

fn flow_out(flow: FlowReport) -> proto::FlowReport {
    let with = match flow.with {
        FlowPeer::Grant(grant) => Some(proto::flow_report::With::Grant(grant.0)),
        FlowPeer::Node(node) => Some(proto::flow_report::With::Node(node.0)),
        FlowPeer::Anybody => None,
    };
    proto::FlowReport { with, bytes_per_s: flow.bytes_per_s }
}

fn held_in(held: proto::HeldGrant) -> Result<HeldGrant, Status> {
    Ok(HeldGrant {
        share: share_in(held.slabs, held.device)?,
        id: GrantId(held.id),
        state: if held.committed { HeldState::Committed } else { HeldState::Prepared },
        lease_ms: held.lease_ms,
        owner: held.owner.map(owner_in),
        recipient: held.recipient,
        purpose: held.purpose,
        priority: priority_in(held.priority),
        ownership: held.ownership.max(1),
    })
}

/// Priority of a grant; a donor that reports none has the default.
fn priority_in(priority: Option<u32>) -> u8 {
    priority.and_then(|priority| u8::try_from(priority).ok()).unwrap_or(DEFAULT_PRIORITY)
}

fn held_out(held: HeldGrant) -> proto::HeldGrant {
    let (slabs, device) = share_out(held.share);
    proto::HeldGrant {
        id: held.id.0,
        slabs,
        device,
        committed: held.state == HeldState::Committed,
        lease_ms: held.lease_ms,
        owner: held.owner.map(owner_out),
        recipient: held.recipient,
        purpose: held.purpose,
        priority: Some(held.priority.into()),
        ownership: held.ownership,
    }
}

fn owner_in(owner: proto::Owner) -> Owner {
    let proto::Owner { node, user, is_bound } = owner;
    Owner { node, user, is_bound }
}

fn owner_out(owner: Owner) -> proto::Owner {
    let Owner { node, user, is_bound } = owner;
    proto::Owner { node, user, is_bound }
}

fn link_in(link: proto::LinkReport) -> Result<LinkReport, Status> {
    let port = match link.port() {
        proto::LinkPort::Udp => LinkPort::Udp,
        proto::LinkPort::Shm => LinkPort::Shm,
        proto::LinkPort::Hop => LinkPort::Hop,
        proto::LinkPort::Unspecified => {
            return Err(Status::invalid_argument("a link of unknown port"));
        }
    };
    let protection = match link.protection() {
        proto::LinkProtection::Plain => LinkProtection::Plain,
        proto::LinkProtection::Aes256Gcm => LinkProtection::Aes256Gcm,
        proto::LinkProtection::Chacha20Poly1305 => LinkProtection::ChaCha20Poly1305,
        proto::LinkProtection::Unspecified => {
            return Err(Status::invalid_argument("a link of unknown protection"));
        }
    };
    Ok(LinkReport {
        protection,
        to: NodeId(link.to),
        port,
        state: if link.up { LinkState::Up } else { LinkState::Down },
        latency_us: link.latency_us,
        loss_ratio: link.loss_ratio,
        bandwidth_mbps: link.bandwidth_mbps,
        bytes_per_s: link.bytes_per_s,
    })
}

fn link_out(link: LinkReport) -> proto::LinkReport {
    let port = match link.port {
        LinkPort::Udp => proto::LinkPort::Udp,
        LinkPort::Shm => proto::LinkPort::Shm,
        LinkPort::Hop => proto::LinkPort::Hop,
    };
    let protection = match link.protection {
        LinkProtection::Plain => proto::LinkProtection::Plain,
        LinkProtection::Aes256Gcm => proto::LinkProtection::Aes256Gcm,
        LinkProtection::ChaCha20Poly1305 => proto::LinkProtection::Chacha20Poly1305,
    };
    proto::LinkReport {
        protection: protection.into(),
        to: link.to.0,
        port: port.into(),
        up: link.state == LinkState::Up,
        latency_us: link.latency_us,
        loss_ratio: link.loss_ratio,
        bandwidth_mbps: link.bandwidth_mbps,
        bytes_per_s: link.bytes_per_s,
    }
}

pub(crate) fn ack_in(response: proto::HeartbeatResponse) -> Result<HeartbeatAck, Status> {
    let peers = response.peers.map(peer_list_in).transpose()?;
    let news = |revoked: proto::RevokedNodes| RevocationNews {
        known: revoked.nodes.into_iter().map(revocation_in).collect(),
        over_before_ms: revoked.over_before_ms,
    };
    let revoked = response.revoked.map(news);
    let called =
        |proto::CalledBack { grant, within_ms }| CalledBack { grant: GrantId(grant), within_ms };
    let called_back = response.called_back.into_iter().map(called).collect();
    let trust_version = response.trust_version;
    Ok(HeartbeatAck { peers, is_draining: response.draining, called_back, revoked, trust_version })
}

pub(crate) fn ack_out(ack: HeartbeatAck) -> proto::HeartbeatResponse {
    proto::HeartbeatResponse {
        peers: ack.peers.map(peer_list_out),
        draining: ack.is_draining,
        trust_version: ack.trust_version,
        called_back: ack
            .called_back
            .into_iter()
            .map(|CalledBack { grant, within_ms }| proto::CalledBack { grant: grant.0, within_ms })
            .collect(),
        revoked: ack.revoked.map(|news| proto::RevokedNodes {
            nodes: news.known.into_iter().map(revocation_out).collect(),
            over_before_ms: news.over_before_ms,
        }),
    }
}

pub(crate) fn grant_in(grant: proto::Grant) -> Result<Grant, Status> {
    let donor = identity_in(grant.donor_identity)?;
    let seal_key = key_in(&grant.seal_key)?;
    let endpoints = match endpoints_in(grant.endpoints)? {
        none if none.is_empty() => {
            Endpoint::of_memory(&grant.udp_addr, seal_key, &grant.shm_socket)
        }
        endpoints => endpoints,
    };
    Ok(Grant {
        id: GrantId(grant.id),
        donor: grant.donor,
        donor_node: donor.node,
        donor_epoch: donor.epoch,
        share: match grant.device {
            Some(device) => device_in(device)?,
            None => Share { bytes: grant.bytes, ..Share::of_slabs(0) },
        },
        key: GrantKey(grant.key),
        control_addr: grant.control_addr,
        endpoints,
        lease_s: grant.lease_s,
    })
}

pub(crate) fn grant_out(grant: Grant) -> proto::Grant {
    let donor = proto::Identity { node: grant.donor_node.0, epoch: grant.donor_epoch };
    let bytes = grant.share.bytes;
    let (udp_addr, shm_socket) = (grant.address(PortId::Udp), grant.address(PortId::Shm));
    let (udp_addr, shm_socket) = (udp_addr.to_owned(), shm_socket.to_owned());
    let seal_key = key_out(grant.seal_key());
    let (_, device) = share_out(grant.share);
    proto::Grant {
        id: grant.id.0,
        donor: grant.donor,
        donor_identity: Some(donor),
        bytes,
        device,
        key: grant.key.0,
        control_addr: grant.control_addr,
        udp_addr,
        shm_socket,
        seal_key,
        endpoints: endpoints_out(grant.endpoints),
        lease_s: grant.lease_s,
    }
}

pub(crate) fn prepare_in(request: proto::PrepareGrantRequest) -> Result<PrepareRequest, Status> {
    Ok(PrepareRequest {
        share: share_in(request.slabs, request.device)?,
        grant: GrantId(request.grant),
        key: GrantKey(request.key),
        donor_epoch: request.donor_epoch,
        lease_ms: request.lease_ms,
        owner: request.owner.map(owner_in),
        recipient: request.recipient,
        purpose: request.purpose,
        priority: priority_in(request.priority),
        at_once: request.at_once,
    })
}

pub(crate) fn prepare_out(request: PrepareRequest) -> proto::PrepareGrantRequest {
    let (slabs, device) = share_out(request.share);
    proto::PrepareGrantRequest {
        grant: request.grant.0,
        key: request.key.0,
        slabs,
        device,
        donor_epoch: request.donor_epoch,
        lease_ms: request.lease_ms,
        owner: request.owner.map(owner_out),
        recipient: request.recipient,
        purpose: request.purpose,
        priority: Some(request.priority.into()),
        at_once: request.at_once,
    }
}

pub(crate) fn leases_in(leases: Vec<proto::Lease>) -> Vec<(GrantId, GrantKey)> {
    leases.into_iter().map(|lease| (GrantId(lease.grant), GrantKey(lease.key))).collect()
}

pub(crate) fn leases_out(leases: &[(GrantId, GrantKey)]) -> Vec<proto::Lease> {
    leases.iter().map(|(grant, key)| proto::Lease { grant: grant.0, key: key.0 }).collect()
}

pub(crate) fn lease_in(lease: proto::LeaseStatus) -> LeaseState {
    use proto::lease_status::Reason;
    let reason = match lease.reason() {
        Reason::Unspecified => None,
        Reason::Drain => Some(NoticeReason::Drain),
        Reason::Pressure => Some(NoticeReason::Pressure),
        Reason::Preempted => Some(NoticeReason::Preempted),
        Reason::Fault => Some(NoticeReason::Fault),
    };
    let notice = reason.map(|reason| Notice { reason, within_ms: lease.wanted_within_ms });
    match lease.live {
        true => LeaseState::Live { remaining_ms: lease.remaining_ms, notice },
        false if !lease.transferred_to.is_empty() => {
            LeaseState::Transferred { to: lease.transferred_to }
        }
        false => LeaseState::Unknown,
    }
}

pub(crate) fn lease_out(lease: LeaseState) -> proto::LeaseStatus {
    use proto::lease_status::Reason;
    let (remaining_ms, notice) = match lease {
        LeaseState::Live { remaining_ms, notice } => (remaining_ms, notice),
        LeaseState::Transferred { to } => {
            return proto::LeaseStatus { transferred_to: to, ..Default::default() };
        }
        LeaseState::Unknown => return proto::LeaseStatus::default(),
    };
    let reason = notice.map_or(Reason::Unspecified, |notice| match notice.reason {
        NoticeReason::Drain => Reason::Drain,
        NoticeReason::Pressure => Reason::Pressure,
        NoticeReason::Preempted => Reason::Preempted,
        NoticeReason::Fault => Reason::Fault,
    });
    let wanted_within_ms = notice.and_then(|notice| notice.within_ms);
    proto::LeaseStatus {
        live: true,
        remaining_ms,
        reason: reason.into(),
        wanted_within_ms,
        transferred_to: String::new(),
    }
}
