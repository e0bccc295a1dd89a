//! Checkers of the end of a run: every request is served, all tables agree, and nothing is left
//! over.

use std::collections::BTreeMap;

use venice_rack::monitor::{MonitorCore, Record};
use venice_rack::types::{HeldState, Share};
use venice_wire::SLAB_BYTES;

use super::{Checker, Judge, Scene};
use crate::control::agent::name_of;

/// Grants by number: donor, device or empty, and bytes.
type Table = BTreeMap<u64, (String, String, u64)>;

impl Judge {
    /// Checks, two leases after the last fault, that every request that fits is served.
    pub(in crate::control) fn check_served(&mut self, scene: &Scene<'_>) {
        for recipient in scene.recipients {
            let waits = recipient.waits_for();
            self.findings.check(Checker::Served, scene.now_ns, waits.is_none(), || {
                format!("two leases after the last fault: {}", waits.unwrap_or_default())
            });
        }
    }

    /// Checks, in quiescence, that recipients, donors, all tables and the store have the same
    /// grants.
    pub(in crate::control) fn check_agreement(&mut self, scene: &Scene<'_>, is_empty: bool) {
        let mut held = Table::new();
        for grant in scene.recipients.iter().flat_map(|recipient| recipient.held()) {
            let Share { address, bytes, .. } = grant.share.clone();
            held.insert(grant.id.0, (grant.donor.clone(), address, bytes));
        }
        self.agree(scene, is_empty == held.is_empty(), || format!("recipients hold {held:?}"));
        let lent = lent(scene);
        self.agree(scene, lent == held, || format!("recipients {held:?}, donors {lent:?}"));
        for (number, monitor) in scene.monitors.iter().enumerate() {
            let Some(core) = monitor.core() else {
                self.agree(scene, false, || format!("monitor{number} does not serve"));
                continue;
            };
            let listed = listed(core);
            self.agree(scene, listed == held, || {
                format!("recipients {held:?}, monitor{number} {listed:?}")
            });
            let wrong = wrong_nodes(scene, core);
            self.agree(scene, wrong.is_empty(), || format!("monitor{number}: {wrong:?}"));
            let waiting = core.queue_rows(0);
            self.agree(scene, waiting.is_empty(), || format!("monitor{number}: {waiting:?}"));
        }
        let recorded: Vec<u64> = match self.is_alone {
            true => numbers(scene.monitors[0].file().values()),
            false => numbers(scene.store.records()),
        };
        let is_same = recorded.iter().eq(held.keys());
        self.agree(scene, is_same, || format!("recipients {held:?}, the store {recorded:?}"));
        for (number, agent) in scene.agents.iter().enumerate() {
            let Some(core) = agent.core() else { continue };
            let lent: u32 = core.report().held.iter().map(|held| held.share.slabs()).sum();
            let status = core.status();
            let is_all = status.free_slabs + lent == status.total_slabs;
            self.agree(scene, is_all, || format!("donor{number} has lost slabs: {status:?}"));
        }
    }

    fn agree(&mut self, scene: &Scene<'_>, is_so: bool, why_not: impl FnOnce() -> String) {
        self.findings.check(Checker::Agreement, scene.now_ns, is_so, why_not);
    }
}

/// Returns the grants of the donors.
fn lent(scene: &Scene<'_>) -> Table {
    let mut lent = Table::new();
    for (number, agent) in scene.agents.iter().enumerate() {
        for held in agent.core().map(|core| core.report().held).unwrap_or_default() {
            let Share { address, bytes, .. } = held.share;
            let address = match held.state {
                HeldState::Committed => address,
                HeldState::Prepared => format!("{address} (prepared)"),
            };
            lent.insert(held.id.0, (name_of(number as u16), address, bytes));
        }
    }
    lent
}

/// Returns the grants in a Monitor Node's table.
fn listed(core: &MonitorCore) -> Table {
    let rows = core.grant_rows(0).into_iter().map(|row| {
        let address = match row.state.as_str() {
            "committed" => row.address,
            state => format!("{} ({state})", row.address),
        };
        (row.id, (row.donor, address, row.bytes))
    });
    rows.collect()
}

/// Returns the nodes whose state differs in a Monitor Node's table.
fn wrong_nodes(scene: &Scene<'_>, core: &MonitorCore) -> Vec<String> {
    let rows = core.node_rows(0);
    let mut wrong: Vec<String> = Vec::new();
    for (number, agent) in scene.agents.iter().enumerate() {
        let name = name_of(number as u16);
        let Some(row) = rows.iter().find(|row| row.name == name) else {
            wrong.push(format!("{name} is unknown"));
            continue;
        };
        let free_slabs = agent.core().map_or(0, |core| core.status().free_slabs);
        let free_bytes = u64::from(free_slabs) * SLAB_BYTES;
        let epoch = agent.identity().map(|identity| identity.epoch);
        if row.state != "up" || row.free_bytes != free_bytes || Some(row.epoch) != epoch {
            let (state, free) = (&row.state, row.free_bytes);
            wrong.push(format!(
                "{name} is {state}, epoch {}, with {free} free; it is {epoch:?} with {free_bytes}",
                row.epoch
            ));
        }
    }
    wrong
}

fn numbers<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<u64> {
    let grants = records.filter_map(|record| match record {
        Record::Grant(grant) => Some(grant.id.0),
        _ => None,
    });
    grants.collect()
}
