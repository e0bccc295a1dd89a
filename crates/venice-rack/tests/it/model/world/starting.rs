//! Start and restart of donors and Monitor Nodes.

use super::super::{
    HEARTBEAT_MS, LEASE_MS, MS, PREEMPT_NOTICE_MS, REQUEST_TIMEOUT_MS, SLABS_PER_DONOR,
};
use super::devices::devices;
use super::etcd::PendingCall;
use super::{Call, World, name_of};
use crate::common::CountingKeys;
use venice_rack::donor::{DonorCore, DonorSettings};
use venice_rack::monitor::{MonitorSettings, Token};
use venice_rack::placement::Policy;
use venice_rack::types::{NodeRegistration, ResourceKind, ResourceSpec};
use venice_wire::SLAB_BYTES;

pub(super) fn fresh_core(now_ns: u64) -> DonorCore {
    let prepare_timeout_ns = 2 * REQUEST_TIMEOUT_MS * MS;
    let settings = DonorSettings { total_slabs: SLABS_PER_DONOR, prepare_timeout_ns };
    let mut core = DonorCore::new(settings);
    core.offer_devices(now_ns, devices());
    core
}

pub(super) fn settings() -> MonitorSettings {
    MonitorSettings {
        heartbeat_interval_ns: HEARTBEAT_MS * MS,
        missed_heartbeats: 3,
        lease_ns: LEASE_MS * MS,
        request_timeout_ns: REQUEST_TIMEOUT_MS * MS,
        preempt_notice_ns: PREEMPT_NOTICE_MS * MS,
        is_plain: false,
        way: |_, _, _| None,
        distance: |_, _| Box::new(|_| None),
        neighbours: |_, _| Vec::new(),
        link_bps: |_| None,
        placement: Policy::Nearest,
        forecast: Default::default(),
        waiting: venice_rack::queueing::WaitingBounds { of_user: usize::MAX, all: usize::MAX },
    }
}

/// Returns keys offset by the Monitor Node's life, so that none repeats.
pub(super) fn keys(life: u64) -> Box<CountingKeys> {
    Box::new(CountingKeys(life << 32))
}

impl World {
    /// Sends the registration of an agent.
    pub(super) fn register(&mut self, index: usize) {
        let donor = &self.donors[index];
        let memory = ResourceSpec {
            kind: ResourceKind::Memory,
            address: String::new(),
            bytes: u64::from(SLABS_PER_DONOR) * SLAB_BYTES,
            slab_bytes: SLAB_BYTES,
            capabilities: vec![],
        };
        let registration = NodeRegistration {
            name: name_of(index),
            instance: donor.instance,
            pid: None,
            control_addr: format!("{index}"),
            udp_addr: "127.0.0.1:1".to_owned(),
            shm_socket: String::new(),
            resources: [memory].into_iter().chain(devices()).collect(),
            previous: donor.identity,
            secret: None,
            is_plain: false,
            relay: None,
            link: String::new(),
            is_pool: false,
        };
        self.put_as(Token(donor.instance), PendingCall::Register(Box::new(registration)));
    }

    /// Crashes a Monitor Node, and starts another from the store.
    pub(super) fn crash_monitor(&mut self) {
        // Calls on their way arrive or not; their answers are dropped.
        let life = self.monitors[self.at].life;
        let (own, others) =
            std::mem::take(&mut self.calls).into_iter().partition(|call: &Call| call.life == life);
        self.calls = others;
        self.strays.extend::<Vec<_>>(own);
        self.actions.clear();
        self.queue.crash();
        self.quotas.crash();
        self.monitors[self.at] = self.start_monitor();
    }
}
