//! Fixtures for tests of the Monitor Node's logic.
#![allow(dead_code, reason = "each test uses a part of it")]

pub mod lenders;

use venice_rack::caller::Owner;
pub use venice_rack::monitor::CountingKeys;
use venice_rack::monitor::MonitorSettings;
use venice_rack::placement::Policy;
use venice_rack::rows::{AllocationPlan, PlacementPlan};
use venice_rack::types::{NodeRegistration, ResourceKind, ResourceSpec};
use venice_wire::SLAB_BYTES;

/// A second, in nanoseconds.
pub const S: u64 = 1_000_000_000;

/// Returns settings with one heartbeat a second, three of which may be missed, and leases of ten
/// seconds.
pub fn settings() -> MonitorSettings {
    MonitorSettings {
        heartbeat_interval_ns: S,
        missed_heartbeats: 3,
        lease_ns: 10 * S,
        request_timeout_ns: 4 * S,
        preempt_notice_ns: 8 * S,
        is_plain: false,
        way: |_, _, _| None,
        distance: |_, _| Box::new(|_| None),
        neighbours: |_, _| Vec::new(),
        link_bps: |_| None,
        placement: Policy::Nearest,
        forecast: Default::default(),
        waiting: Default::default(),
    }
}

/// Returns some user.
pub fn owner() -> Owner {
    Owner { node: "node1".to_owned(), user: "alice".to_owned(), is_bound: false }
}

/// Returns the registration of a node with this many slabs.
pub fn registration(name: &str, instance: u64, slabs: u32) -> NodeRegistration {
    NodeRegistration {
        name: name.to_owned(),
        instance,
        pid: None,
        control_addr: format!("{name}:1"),
        udp_addr: String::new(),
        shm_socket: String::new(),
        resources: vec![ResourceSpec {
            kind: ResourceKind::Memory,
            address: String::new(),
            bytes: u64::from(slabs) * SLAB_BYTES,
            slab_bytes: SLAB_BYTES,
            capabilities: vec![],
        }],
        previous: None,
        secret: None,
        is_plain: false,
        relay: None,
        link: String::new(),
        is_pool: false,
    }
}

/// Returns the placement of memory in a plan.
pub fn placement_of(plan: &AllocationPlan) -> &PlacementPlan {
    plan.memory.as_ref().expect("the request wants memory")
}
