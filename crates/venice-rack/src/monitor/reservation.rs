//! Reservations: free slabs are kept for workloads whose forecast need exceeds their use.
//!
//! Slabs are reserved by number, over the whole rack, not by donor: a request of another workload
//! is placed if it leaves that many free. All of this is soft state: a restarted Monitor Node has
//! no workloads, and reserves nothing, until it has sampled some.

use super::MonitorCore;
use super::pending::CheckedRequest;
use crate::forecast::{Amounts, FORECAST_KINDS, Workload, WorkloadForecast, shared_out};
use crate::queueing::DEFAULT_PRIORITY;
use crate::rows::{ForecastRow, ResourceForecast};
use crate::types::{RackError, ResourceKind};
use std::collections::BTreeMap;
use venice_wire::SLAB_BYTES;

impl MonitorCore {
    /// Samples the use of every workload, when that is due.
    pub(super) fn sample_workloads(&mut self, now_ns: u64) {
        if self.workloads.is_due(now_ns) {
            // Queued requests count as use, too.
            for (_, waiter) in self.queue.iter() {
                let slabs = waiter.checked.slabs();
                let workload = workload_of(&waiter.checked);
                let wanted = self.slabs_of(&workload).saturating_add(slabs.into());
                self.workloads.handle_refused(workload, wanted.min(self.total_slabs()));
            }
            let used = self.used_by_workload();
            self.workloads.handle_sample(now_ns, used);
        }
    }

    fn used_by_workload(&self) -> BTreeMap<Workload, Amounts> {
        let mut used: BTreeMap<Workload, Amounts> = BTreeMap::new();
        for grant in self.rat.iter().filter(|grant| self.lost_since_ns(grant).is_none()) {
            let Some(owner) = grant.charged() else { continue };
            let workload = Workload { user: owner.user.clone(), purpose: grant.purpose.clone() };
            let Some(index) = index_of(grant.share.kind) else { continue };
            let amount = grant.share.amount() as f64 / unit_of(grant.share.kind);
            used.entry(workload).or_default()[index] += amount;
        }
        used
    }

    /// Records a request without room: with it, grants workload would have had what it needs.
    pub(super) fn note_refused(&mut self, client_id: u128, error: &RackError) {
        let Some(pending) = self.requests.get(&client_id) else { return };
        if !matches!(error, RackError::NoRoom { .. }) {
            return;
        }
        let (workload, slabs) = (workload_of(&pending.checked), pending.checked.slabs());
        // The need is at most what the rack has.
        let wanted = self.slabs_of(&workload).saturating_add(slabs.into());
        let wanted = wanted.min(self.total_slabs());
        self.workloads.handle_refused(workload, wanted);
    }

    /// Returns the slabs that a user's request for a purpose has to leave free: those reserved for
    /// other workloads.
    ///
    /// A request above the default priority may use reserved slabs. So may a workload that has lost
    /// a grant or has one on a draining node: grants replacement has been granted before, and precedes
    /// a forecast need.
    pub(super) fn reserved_from(&self, checked: &CheckedRequest) -> u64 {
        let CheckedRequest { owner, request, .. } = checked;
        if request.queueing.priority > DEFAULT_PRIORITY {
            return 0;
        }
        let kept = self.reserved_slabs();
        let others = kept.iter().filter(|(workload, _)| !is_of(workload, checked));
        let kept: u64 = others.map(|(_, slabs)| *slabs).sum();
        if kept == 0 {
            return 0;
        }
        let grants = self.rat.charged_to(&owner.user);
        let grants = grants.filter(|grant| grant.purpose == request.purpose);
        let is_to_be_replaced = grants
            .into_iter()
            .any(|grant| self.lost_since_ns(grant).is_some() || self.rrt.is_draining(grant.donor));
        if is_to_be_replaced { 0 } else { kept }
    }

    /// Returns the slabs reserved for such requests of this user: they may use them, whatever is
    /// reserved for others.
    fn reserved_for(&self, checked: &CheckedRequest) -> u64 {
        let kept = self.reserved_slabs().into_iter();
        let mut grants = kept.filter(|(workload, _)| is_of(workload, checked));
        grants.next().map_or(0, |(_, slabs)| slabs)
    }

    /// True if this many more slabs can be granted and enough is left for others. Slabs already set
    /// aside for the request no longer count as free.
    pub(super) fn leaves_enough(&self, checked: &CheckedRequest, slabs: u32) -> bool {
        let kept = self.reserved_from(checked);
        kept == 0
            || self.reserved_for(checked) >= u64::from(slabs)
            || self.free_slabs() >= u64::from(slabs).saturating_add(kept)
    }

    /// Returns the slabs reserved for each workload beyond grants use.
    fn reserved_slabs(&self) -> BTreeMap<&Workload, u64> {
        if !self.workloads.keeps() {
            // In a large rack even counting takes time.
            return BTreeMap::new();
        }
        let total = self.total_slabs();
        self.workloads.kept(total, |workload| self.slabs_of(workload))
    }

    /// Returns the slabs granted to a workload.
    fn slabs_of(&self, workload: &Workload) -> u64 {
        let grants = self.rat.charged_to(&workload.user);
        let grants = grants.filter(|grant| grant.purpose == workload.purpose);
        let grants = grants.filter(|grant| self.lost_since_ns(grant).is_none());
        grants.map(|grant| u64::from(grant.share.slabs())).sum()
    }

    /// Returns the slabs that living nodes lend.
    fn total_slabs(&self) -> u64 {
        let up = self.rrt.iter().filter(|(_, entry)| entry.up);
        up.map(|(_, entry)| u64::from(entry.status.total_slabs)).sum()
    }

    pub(super) fn free_slabs(&self) -> u64 {
        self.rrt.iter().map(|(_, entry)| u64::from(entry.available_slabs())).sum()
    }

    /// Returns the workloads with their forecasts and reservations.
    pub fn forecast_rows(&self) -> Vec<ForecastRow> {
        let (kept, used) = (self.reserved_slabs(), self.used_by_workload());
        // Only free slabs can be reserved, however much is due.
        let kept = shared_out(kept, self.free_slabs());
        let row = |(workload, outlook): (&Workload, &WorkloadForecast)| {
            let slabs = |slabs: u64| slabs.saturating_mul(SLAB_BYTES);
            let in_use = used.get(workload).copied().unwrap_or_default();
            let resource = |(index, kind): (usize, ResourceKind)| {
                let in_units = |amounts: Amounts| (amounts[index].ceil() * unit_of(kind)) as u64;
                let forecast = outlook.forecast.map(in_units);
                let persistence = outlook.persistence.map(in_units);
                (kind, ResourceForecast { in_use: in_units(in_use), forecast, persistence })
            };
            ForecastRow {
                user: workload.user.clone(),
                purpose: workload.purpose.clone(),
                resources: FORECAST_KINDS.into_iter().enumerate().map(resource).collect(),
                reserved_bytes: slabs(kept.get(workload).copied().unwrap_or(0)),
                windows: outlook.score.windows,
                under_windows: outlook.score.short,
                persistence_under_windows: outlook.persistence_score.short,
                mean_error_bytes: mean(outlook.score.off_slabs, outlook.score.windows),
                persistence_mean_error_bytes: mean(
                    outlook.persistence_score.off_slabs,
                    outlook.persistence_score.windows,
                ),
            }
        };
        self.workloads.iter().map(row).collect()
    }
}

fn workload_of(checked: &CheckedRequest) -> Workload {
    let (user, purpose) = (checked.owner.user.clone(), checked.request.purpose.clone());
    Workload { user, purpose }
}

fn is_of(workload: &Workload, checked: &CheckedRequest) -> bool {
    workload.user == checked.owner.user && workload.purpose == checked.request.purpose
}

/// Returns the place of a kind in a workload's amounts.
fn index_of(kind: ResourceKind) -> Option<usize> {
    FORECAST_KINDS.into_iter().position(|it| it == kind)
}

/// Returns the unit in which a kind is sampled: a slab, a MiB, a device.
fn unit_of(kind: ResourceKind) -> f64 {
    kind.spec().unit_bytes.max(1) as f64
}

/// Returns the mean forecast error of memory, in bytes.
fn mean(off_slabs: f64, windows: u64) -> Option<u64> {
    (windows > 0).then(|| (off_slabs / windows as f64 * SLAB_BYTES as f64) as u64)
}
