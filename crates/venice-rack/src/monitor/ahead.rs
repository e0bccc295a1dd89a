//! What workloads will need: free slabs are kept for those that are foretold to want them.
//!
//! Slabs are kept by their number, over the whole rack, not by donor: a request of another workload
//! is placed if it leaves so many free. All of this is soft: a Monitor Node that starts anew knows
//! no workload, and keeps nothing, until it has seen some.

use super::MonitorCore;
use crate::forecast::{Amounts, Outlook, Workload, shared_out};
use crate::queueing::DEFAULT_PRIORITY;
use crate::rows::{ForecastRow, ResourceForecast};
use crate::types::{MemoryRequest, RackError, ResourceKind};
use std::collections::BTreeMap;
use venice_wire::SLAB_BYTES;

const BYTES_PER_MIB: f64 = 1_048_576.0;

impl MonitorCore {
    /// Looks what every workload uses, when that is due.
    pub(super) fn look_ahead(&mut self, now_ns: u64) {
        if self.workloads.is_due(now_ns) {
            // Who waits in line would have had it, too.
            for (_, waiter) in self.line.iter() {
                let Some(memory) = waiter.as_memory() else { continue };
                let user = waiter.owner.user.clone();
                let workload = Workload { user, purpose: memory.request.purpose.clone() };
                let wanted = self.slabs_of(&workload).saturating_add(u64::from(memory.slabs));
                self.workloads.handle_refused(workload, wanted.min(self.total_slabs()));
            }
            let used = self.used_by_workload();
            self.workloads.handle_sample(now_ns, used);
        }
    }

    fn used_by_workload(&self) -> BTreeMap<Workload, Amounts> {
        let mut used: BTreeMap<Workload, Amounts> = BTreeMap::new();
        for grant in self.rat.iter().filter(|grant| self.lost_since_ns(grant).is_none()) {
            let Some(owner) = &grant.owner else { continue };
            let workload = Workload { user: owner.user.clone(), purpose: grant.purpose.clone() };
            let amounts = used.entry(workload).or_default();
            match grant.device.as_ref().map(|share| (share.kind, share.bytes)) {
                Some((ResourceKind::Accelerator, _)) => amounts[1] += 1.0,
                Some((ResourceKind::Nic, _)) => amounts[2] += 1.0,
                Some((_, bytes)) => amounts[3] += bytes as f64 / BYTES_PER_MIB,
                None => amounts[0] += f64::from(grant.slabs),
            }
        }
        used
    }

    /// A request finds no room: what its workload would have had with it is what it needs.
    pub(super) fn note_refused(&mut self, client_id: u128, error: &RackError) {
        let Some(pending) = self.requests.get(&client_id) else { return };
        if !matches!(error, RackError::NoRoom { .. }) {
            return;
        }
        let workload =
            Workload { user: pending.owner.user.clone(), purpose: pending.request.purpose.clone() };
        // Nobody needs more than there is.
        let wanted = self.slabs_of(&workload).saturating_add(u64::from(pending.slabs));
        let wanted = wanted.min(self.total_slabs());
        self.workloads.handle_refused(workload, wanted);
    }

    /// Slabs that a user's request for a purpose has to leave free: kept for other workloads.
    ///
    /// A request of more than the usual priority goes before what may be asked for some day.
    /// Who has lost something, or is to leave a node, may have all the same: what is to replace it
    /// has been granted already, and goes before what may be asked for.
    pub(super) fn kept_from(&self, user: &str, request: &MemoryRequest) -> u64 {
        if request.queueing.priority > DEFAULT_PRIORITY {
            return 0;
        }
        let kept = self.kept_slabs();
        let others = kept.iter().filter(|(workload, _)| !is_of(workload, user, request));
        let kept: u64 = others.map(|(_, slabs)| *slabs).sum();
        if kept == 0 {
            return 0;
        }
        let its = self.rat.of_user(user).filter(|grant| grant.purpose == request.purpose);
        let is_to_be_replaced = its
            .into_iter()
            .any(|grant| self.lost_since_ns(grant).is_some() || self.rrt.is_draining(grant.donor));
        if is_to_be_replaced { 0 } else { kept }
    }

    /// Slabs kept for such requests of this user: they may have them, whatever is kept for others.
    fn kept_for(&self, user: &str, request: &MemoryRequest) -> u64 {
        let kept = self.kept_slabs().into_iter();
        let mut its = kept.filter(|(workload, _)| is_of(workload, user, request));
        its.next().map_or(0, |(_, slabs)| slabs)
    }

    /// Whether so many slabs more can be granted and enough is left for others. What was set aside
    /// for the request already is free no longer.
    pub(super) fn leaves_enough(&self, user: &str, request: &MemoryRequest, slabs: u32) -> bool {
        let kept = self.kept_from(user, request);
        kept == 0
            || self.kept_for(user, request) >= u64::from(slabs)
            || self.free_slabs() >= u64::from(slabs).saturating_add(kept)
    }

    /// Slabs kept for each workload beyond what it has.
    fn kept_slabs(&self) -> BTreeMap<&Workload, u64> {
        if !self.workloads.keeps() {
            // In a large rack even counting takes time.
            return BTreeMap::new();
        }
        let total = self.total_slabs();
        self.workloads.kept(total, |workload| self.slabs_of(workload))
    }

    /// Slabs that a workload has.
    fn slabs_of(&self, workload: &Workload) -> u64 {
        let its = self.rat.of_user(&workload.user);
        let its = its.filter(|grant| grant.purpose == workload.purpose);
        let its = its.filter(|grant| self.lost_since_ns(grant).is_none());
        its.map(|grant| u64::from(grant.slabs)).sum()
    }

    /// Slabs that living nodes lend.
    fn total_slabs(&self) -> u64 {
        let up = self.rrt.iter().filter(|(_, entry)| entry.up);
        up.map(|(_, entry)| u64::from(entry.status.total_slabs)).sum()
    }

    fn free_slabs(&self) -> u64 {
        self.rrt.iter().map(|(_, entry)| u64::from(entry.available_slabs())).sum()
    }

    /// The workloads, what they are foretold to need, and what is kept for them.
    pub fn forecast_rows(&self) -> Vec<ForecastRow> {
        let (kept, used) = (self.kept_slabs(), self.used_by_workload());
        // What is not free cannot be kept free, however much is due.
        let kept = shared_out(kept, self.free_slabs());
        let row = |(workload, outlook): (&Workload, &Outlook)| {
            let slabs = |slabs: u64| slabs.saturating_mul(SLAB_BYTES);
            let in_use = used.get(workload).copied().unwrap_or_default();
            let resource = |index: usize, unit: f64| ResourceForecast {
                in_use: in_units(in_use[index], unit),
                forecast: outlook.foretold.map(|peaks| in_units(peaks[index], unit)),
                persistence: outlook.persistence.map(|peaks| in_units(peaks[index], unit)),
            };
            ForecastRow {
                user: workload.user.clone(),
                purpose: workload.purpose.clone(),
                memory_bytes: resource(0, SLAB_BYTES as f64),
                accelerators: resource(1, 1.0),
                nics: resource(2, 1.0),
                storage_bytes: resource(3, BYTES_PER_MIB),
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

fn is_of(workload: &Workload, user: &str, request: &MemoryRequest) -> bool {
    workload.user == user && workload.purpose == request.purpose
}

/// Whole units, up: half a slab takes one.
fn in_units(amount: f64, unit: f64) -> u64 {
    (amount.ceil() * unit) as u64
}

/// By how much forecasts of memory were off, in bytes.
fn mean(off_slabs: f64, windows: u64) -> Option<u64> {
    (windows > 0).then(|| (off_slabs / windows as f64 * SLAB_BYTES as f64) as u64)
}
