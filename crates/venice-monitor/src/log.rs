//! The core's events as log lines.

use venice_control::{AllocationRequest, Grant, QuotaFor, Share};
use venice_rack::monitor::{Event, GrantFacts, RequestFacts};
use venice_rack::monitor_node::PendingRequest;
use venice_wire::{ByteSize, SLAB_BYTES};

pub(crate) fn log(event: &Event) {
    match event {
        Event::NodeJoined { name, identity } => {
            tracing::info!(node = name, number = identity.node.0, epoch = identity.epoch, "joined");
        }
        Event::NodeBack { name } => tracing::info!(node = name, "reports again"),
        Event::NodeDown { name } => tracing::warn!(node = name, "is down: its grants are lost"),
        Event::NodeUnreachable { name, addr } => tracing::warn!(
            node = name,
            addr,
            "reports, but cannot be reached: nothing is borrowed from it; open that port to this \
             machine, or start its agent with --listen and an address that this machine reaches"
        ),
        Event::NodeReached { name } => tracing::info!(node = name, "can be reached again"),
        Event::NodeStopped { name } => {
            tracing::info!(node = name, "is stopped: its agent has ended")
        }
        // A line for each request: see below.
        Event::GrantBegan(_) => {}
        Event::RequestRefused { request, error } => {
            let RequestFacts { owner, wants, recipient, purpose, .. } = request;
            let reason = error.reason();
            tracing::info!(%owner, wants, recipient, purpose, reason, %error, "refused");
        }
        Event::RequestQueued { request, needs } => {
            let RequestFacts { owner, wants, recipient, purpose, .. } = request;
            tracing::info!(%owner, wants, recipient, purpose, needs, "queued");
        }
        Event::RequestWithdrawn(RequestFacts { owner, wants, recipient, purpose, .. }) => {
            tracing::info!(%owner, wants, recipient, purpose, "withdrawn");
        }
        Event::GrantReleased(grant) => log_end(grant, "released"),
        Event::GrantEnded(grant) => log_end(grant, "ended at its donor"),
        Event::GrantLost(grant) => log_end(grant, "lost with its donor"),
        Event::GrantPreempted { grant: GrantFacts { id, owner, share, .. }, by } => {
            let Share { kind, address, bytes, .. } = share;
            let (grant, owner) = (id.0, owner.as_ref().map(ToString::to_string));
            let act = "preempt";
            tracing::info!(target: "audit", %by, act, grant, owner, %kind, address, bytes, "done");
        }
        Event::NodeDrains { name, drains: true } => tracing::info!(node = name, "is being drained"),
        Event::NodeDrains { name, drains: false } => {
            tracing::info!(node = name, "drain undone");
        }
        Event::NodeAdmitted { name } => tracing::info!(node = name, "may join: its token is used"),
        Event::NodeRevoked { name } => {
            tracing::warn!(node = name, "revoked: its certificates are void");
        }
        Event::QuotaSet { of, limits, by } => {
            tracing::info!(user = name_of(of), %limits, by, "quota set");
        }
        Event::QuotaRemoved { of, by } => {
            tracing::info!(user = name_of(of), by, "quota removed");
        }
        Event::GrantAdopted(GrantFacts { donor, id, .. }) => {
            tracing::warn!(donor, grant = id.0, "lends a grant missing from the table; adopted");
        }
        Event::GrantTransferred { from, to, .. } => {
            let owner = to.owner.as_ref().map(ToString::to_string);
            tracing::info!(grant = from.0, successor = to.id.0, owner, "transferred");
        }
        Event::GrantLostInTransfer { from, to } => {
            tracing::warn!(grant = from.0, successor = to.id.0, "had ended at its donor: lost");
        }
        Event::GrantNotAdopted { donor, id, share } => {
            let Share { kind, address, bytes, .. } = share;
            tracing::warn!(donor, grant = id.0, %kind, address, bytes, "impossible grant reported");
        }
    }
}

fn log_end(grant: &GrantFacts, how: &'static str) {
    let GrantFacts { id, owner, donor, share, recipient, purpose } = grant;
    let Share { kind, address, bytes, .. } = share;
    let owner = owner.as_ref().map(ToString::to_string);
    tracing::info!(grant = id.0, owner, donor, %kind, address, bytes, recipient, purpose, "{how}");
}

/// Logs the grants of a request: owner, size and program.
pub(crate) fn log_granted(asking: &PendingRequest, grants: &[Grant]) {
    let PendingRequest { owner, request, .. } = asking;
    let AllocationRequest { recipient, purpose, .. } = request;
    for Grant { donor, share, .. } in grants.iter().filter(|it| it.share.device().is_some()) {
        let (kind, device) = (share.kind, &share.address);
        tracing::info!(%owner, recipient, purpose, donor, %kind, device, "granted");
    }
    let memory = grants.iter().map(|grant| grant.share.slabs()).filter(|slabs| *slabs > 0);
    let (grants, slabs) = (memory.clone().count(), memory.map(u64::from).sum::<u64>());
    if grants > 0 {
        let size = ByteSize(slabs.saturating_mul(SLAB_BYTES));
        tracing::info!(%owner, %size, recipient, purpose, grants, "memory granted");
    }
}

fn name_of(of: &QuotaFor) -> &str {
    match of {
        QuotaFor::User(user) => user,
        QuotaFor::Others => "(all others)",
    }
}
