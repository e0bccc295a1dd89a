//! The core's events, for people to read.

use venice_control::QuotaFor;
use venice_rack::monitor::Event;

pub(crate) fn log(event: &Event) {
    match event {
        Event::NodeJoined { name, identity } => {
            tracing::info!(node = name, number = identity.node.0, epoch = identity.epoch, "joined");
        }
        Event::NodeBack { name } => tracing::info!(node = name, "reports again"),
        Event::NodeDown { name } => tracing::warn!(node = name, "is down: its grants are lost"),
        Event::NodeStopped { name } => {
            tracing::info!(node = name, "is stopped: its agent has ended")
        }
        Event::NodeDrains { name, drains: true } => tracing::info!(node = name, "is drained"),
        Event::NodeDrains { name, drains: false } => {
            tracing::info!(node = name, "is drained no longer");
        }
        Event::NodeAdmitted { name } => tracing::info!(node = name, "may join: its token is used"),
        Event::NodeRevoked { name } => {
            tracing::warn!(node = name, "revoked: its certificates are void");
        }
        Event::QuotaSet { of, limits } => {
            tracing::info!(user = name_of(of), %limits, "quota set");
        }
        Event::QuotaRemoved { of } => tracing::info!(user = name_of(of), "quota removed"),
        Event::GrantAdopted { donor, id } => {
            tracing::warn!(donor, grant = id.0, "lends a grant that was not in the table");
        }
        Event::GrantNotAdopted { donor, id, slabs } => {
            tracing::warn!(donor, grant = id.0, slabs, "tells of a grant that cannot be");
        }
    }
}

fn name_of(of: &QuotaFor) -> &str {
    match of {
        QuotaFor::User(user) => user,
        QuotaFor::Others => "(all others)",
    }
}
