//! Requests of programs.

use venice_rack::caller::Owner;
use venice_rack::queueing::{DEFAULT_PRIORITY, Preempt, Queueing};
use venice_rack::resource::STORAGE_UNIT_BYTES;
use venice_rack::types::{DeviceRequest, MemoryRequest, ResourceKind};
use venice_wire::{ByteSize, SLAB_BYTES};

use super::Recipient;
use crate::control::agent::{DEVICES, name_of};
use crate::control::messages::Request;
use crate::random::Stream;

/// A request to any donor or to one.
#[derive(Clone, Debug)]
pub(in crate::control) struct Wish {
    pub(in crate::control) what: What,
    pub(in crate::control) donor: Option<u16>,
}

#[derive(Clone, Debug)]
pub(in crate::control) enum What {
    Memory { slabs: u32, copies: u32, queueing: Queueing },
    Device { kind: ResourceKind, bytes: u64 },
}

impl Wish {
    /// Requests all the memory of a donor.
    pub(in crate::control) fn whole(donor: u16, slabs: u32) -> Self {
        let what = What::Memory { slabs, copies: 1, queueing: Queueing::default() };
        Self { what, donor: Some(donor) }
    }

    /// Requests a device of a donor, whole.
    pub(in crate::control) fn device(donor: u16, kind: ResourceKind, units: u64) -> Self {
        let what = What::Device { kind, bytes: units * STORAGE_UNIT_BYTES };
        Self { what, donor: Some(donor) }
    }

    /// Returns its size, all replicas together; for a device at least one unit.
    pub(super) fn bytes(&self) -> u64 {
        match self.what {
            What::Memory { slabs, copies, .. } => u64::from(slabs * copies) * SLAB_BYTES,
            What::Device { bytes, .. } => bytes,
        }
    }

    pub(super) fn waits(&self) -> bool {
        matches!(self.what, What::Memory { queueing, .. } if queueing.wait_ms > 0)
    }

    pub(super) fn request(
        &self,
        owner: Owner,
        recipient: String,
        client_id: u128,
        waited_ms: u64,
    ) -> Request {
        let donors: Vec<String> = self.donor.map(name_of).into_iter().collect();
        let purpose = "sim".to_owned();
        match self.what {
            What::Memory { slabs, copies, queueing } => {
                let request = MemoryRequest {
                    client_id,
                    recipient,
                    bytes: ByteSize(u64::from(slabs) * SLAB_BYTES),
                    copies,
                    donors,
                    home: String::new(),
                    placement: None,
                    bandwidth_bps: 0,
                    purpose,
                    queueing: Queueing { waited_ms, ..queueing },
                };
                Request::Memory(owner, request)
            }
            What::Device { kind, bytes } => {
                let (bytes, capabilities) = (ByteSize(bytes), Vec::new());
                let request = DeviceRequest {
                    client_id,
                    recipient,
                    kind,
                    bytes,
                    capabilities,
                    donors,
                    purpose,
                    queueing: Queueing::default(),
                };
                Request::Device(owner, request)
            }
        }
    }
}

impl Recipient {
    pub(super) fn draw_wish(&self, rng: &mut Stream) -> Wish {
        let named = rng.chance(self.workload.named.0);
        let donor = named.then(|| rng.below(self.donors.into()) as u16);
        if self.has_devices && rng.chance(self.workload.device.0) {
            let (kind, _, units) = *rng.pick(&DEVICES);
            let units = if units == 0 { 0 } else { rng.between(1, units) };
            let what = What::Device { kind, bytes: units * STORAGE_UNIT_BYTES };
            return Wish { what, donor };
        }
        let most = u64::from(self.workload.max_slabs.min(self.slabs * u32::from(self.donors)));
        let slabs = rng.between(1, most) as u32;
        let copies = 1 + u32::from(donor.is_none() && rng.chance(self.workload.copies.0));
        Wish { what: What::Memory { slabs, copies, queueing: self.draw_queueing(rng) }, donor }
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
        Queueing { wait_ms: rng.between(500, 20_000), waited_ms: 0, priority, preempt }
    }
}
