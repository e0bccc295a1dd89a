//! Requests of programs.

use venice_rack::queueing::{DEFAULT_PRIORITY, Preempt, Queueing};
use venice_rack::types::{AllocationRequest, ResourceKind, Want};
use venice_wire::SLAB_BYTES;

use super::Recipient;
use crate::control::agent::{DEVICES, STORAGE_UNIT_BYTES, name_of};
use venice_simkernel::random::Stream;

/// Requests for a device that want memory too, in a million.
const WITH_MEMORY_PPM: u32 = 300_000;

/// A request to any donor or to one.
#[derive(Clone, Debug)]
pub(in crate::control) struct Wish {
    pub(in crate::control) wants: Vec<Want>,
    pub(in crate::control) donor: Option<u16>,
    queueing: Queueing,
}

impl Wish {
    fn of(wants: Vec<Want>, donor: Option<u16>) -> Self {
        Self { wants, donor, queueing: Queueing::default() }
    }

    /// Requests all the memory of a donor.
    pub(in crate::control) fn whole(donor: u16, slabs: u32) -> Self {
        Self::of(vec![memory(slabs, 1)], Some(donor))
    }

    /// Requests a device of a donor, whole.
    pub(in crate::control) fn device(donor: u16, kind: ResourceKind, units: u64) -> Self {
        Self::of(vec![Want::device(kind, units * STORAGE_UNIT_BYTES)], Some(donor))
    }

    pub(super) fn waits(&self) -> bool {
        self.queueing.wait_ms > 0
    }

    pub(super) fn request(&self, recipient: String, client_id: u128) -> AllocationRequest {
        AllocationRequest {
            client_id,
            recipient,
            wants: self.wants.clone(),
            donors: self.donor.map(name_of).into_iter().collect(),
            home: String::new(),
            placement: None,
            purpose: "sim".to_owned(),
            queueing: self.queueing,
        }
    }
}

fn memory(slabs: u32, copies: u32) -> Want {
    Want::memory(u64::from(slabs) * SLAB_BYTES, copies)
}

impl Recipient {
    pub(super) fn draw_wish(&self, rng: &mut Stream) -> Wish {
        let named = rng.chance(self.workload.named.0);
        let donor = named.then(|| rng.below(self.donors.into()) as u16);
        let most = u64::from(self.workload.max_slabs.min(self.slabs * u32::from(self.donors)));
        if self.has_devices && rng.chance(self.workload.device.0) {
            let (kind, _, units) = *rng.pick(&DEVICES);
            let units = if units == 0 { 0 } else { rng.between(1, units) };
            let mut wants = vec![Want::device(kind, units * STORAGE_UNIT_BYTES)];
            if rng.chance(WITH_MEMORY_PPM) {
                wants.push(memory(rng.between(1, most) as u32, 1));
            }
            return Wish { queueing: self.draw_queueing(rng), ..Wish::of(wants, donor) };
        }
        let slabs = rng.between(1, most) as u32;
        let copies = 1 + u32::from(donor.is_none() && rng.chance(self.workload.copies.0));
        Wish { queueing: self.draw_queueing(rng), ..Wish::of(vec![memory(slabs, copies)], donor) }
    }

    fn draw_queueing(&self, rng: &mut Stream) -> Queueing {
        if !rng.chance(self.workload.wait.0) {
            return Queueing::default();
        }
        let preempts = rng.chance(self.workload.preempt.0);
        let preempt = match (preempts, self.number % 2) {
            (false, _) => Preempt::No,
            (true, 0) => Preempt::All,
            (true, _) => Preempt::Own,
        };
        let priority = DEFAULT_PRIORITY - 2 + rng.below(5) as u8;
        Queueing { wait_ms: rng.between(500, 20_000), priority, preempt, ..Queueing::default() }
    }
}
