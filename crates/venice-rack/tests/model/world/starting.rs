//! Donors and Monitor Nodes as they start.

use super::super::{HEARTBEAT_MS, LEASE_MS, MS, REQUEST_TIMEOUT_MS, SLABS_PER_DONOR};
use std::collections::BTreeMap;
use venice_rack::donor::{DonorCore, DonorSettings};
use venice_rack::monitor::{KeySource, MonitorCore, MonitorSettings, Record};
use venice_rack::placement::Policy;
use venice_wire::{GrantKey, KeyName, NodeSecret, SealKey};

/// Keys 1, 2, 3, … offset by the Monitor Node's life, so that none comes twice.
struct CountedKeys(u64);

impl KeySource for CountedKeys {
    fn next_key(&mut self) -> GrantKey {
        self.0 += 1;
        GrantKey(self.0)
    }

    fn next_secret(&mut self) -> NodeSecret {
        self.0 += 1;
        NodeSecret([self.0 as u8; 32])
    }

    fn seal_key(&self, secret: &NodeSecret, name: KeyName) -> SealKey {
        SealKey(secret.0.map(|byte| byte ^ name.id() as u8 ^ name.kind()))
    }
}

pub(super) fn fresh_core() -> DonorCore {
    let prepare_timeout_ns = 2 * REQUEST_TIMEOUT_MS * MS;
    DonorCore::new(DonorSettings { total_slabs: SLABS_PER_DONOR, prepare_timeout_ns })
}

pub(super) fn start_monitor(
    life: u64,
    now_ns: u64,
    store: &BTreeMap<String, Record>,
) -> MonitorCore {
    let settings = MonitorSettings {
        heartbeat_interval_ns: HEARTBEAT_MS * MS,
        missed_heartbeats: 3,
        lease_ns: LEASE_MS * MS,
        request_timeout_ns: REQUEST_TIMEOUT_MS * MS,
        is_plain: false,
        way: |_, _, _| None,
        link_bps: |_| None,
        placement: Policy::Nearest,
    };
    let keys = Box::new(CountedKeys(life << 32));
    MonitorCore::recover(settings, keys, now_ns, store.values().cloned())
}
