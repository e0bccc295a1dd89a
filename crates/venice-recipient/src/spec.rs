//! The specification of an allocation: memory, devices, or both.

use venice_control::{AllocationRequest, Policy, Preempt, Queueing, Want, to_label};
use venice_memory::paged::coding::Coding;
use venice_wire::SLAB_BYTES;

use crate::error::RecipientError;
use crate::loan::{COPIES_BY_DEFAULT, random_word, recipient_name};
use crate::local_fallback::ReclaimTo;
use crate::pairing::most_slabs;
use crate::waiting::Waiting;
use crate::write_behind::WriteBehind;

/// The wanted memory and devices. All are granted together, or none.
#[derive(Clone, Debug, Default)]
pub struct AllocationSpec {
    /// The memory; `None`: none. Beside devices it is placed near them.
    pub memory: Option<MemorySpec>,
    /// The devices.
    pub devices: Vec<Want>,
    /// The donors to use; empty: any.
    pub donors: Vec<String>,
    /// The node whose relay the recipient sends through; empty: none.
    pub home: String,
    /// The placement policy of memory; `None`: the rack's default.
    pub placement: Option<Policy>,
    /// The queueing options. A wait for memory needs a size in [`MemorySpec::remote_bytes`].
    pub waiting: Waiting,
    /// The purpose, for the tables.
    pub purpose: String,
}

/// The memory of an allocation.
#[derive(Clone, Debug, Default)]
pub struct MemorySpec {
    /// Bytes; `None`: [`default_bytes`](MemorySpec::default_bytes).
    pub remote_bytes: Option<u64>,
    /// Bytes to request by default, or the rack's free memory if that is less.
    pub default_bytes: u64,
    /// Copies of each slab, on different donors; `None`: two, or one where the rack has no room for
    /// two ([`Loan::shortage`](crate::Loan::shortage)).
    pub copies: Option<u32>,
    /// The coding, instead of copies; `None`: none.
    pub coding: Option<Coding>,
    /// Bandwidth needed on the paths to the donors for all of it, in bits a second; 0: unstated.
    pub bandwidth_bps: u64,
    /// Destinations of reclaimed slabs, in order of preference; empty: other donors.
    pub reclaim_to: Vec<ReclaimTo>,
    /// True to lock the local fallback memory: for a server of the kernel's swap, which could be
    /// asked to swap it to itself.
    pub locks_local: bool,
    /// A file on this machine's disk that gets all data too; not for coded memory.
    pub write_behind: Option<WriteBehind>,
}

impl AllocationSpec {
    /// Creates the specification of memory, for any donor and without a wait.
    pub fn of_memory(memory: MemorySpec) -> Self {
        Self { memory: Some(memory), ..Self::default() }
    }

    /// Creates the request: the devices, and this many bytes of each copy or fragment of memory.
    pub(crate) fn request(
        &self,
        memory: Option<(u64, u32)>,
    ) -> Result<AllocationRequest, RecipientError> {
        let mut wants = self.devices.clone();
        if let (Some((bytes, copies)), Some(spec)) = (memory, &self.memory) {
            let bandwidth_bps = spec.share_bps(bytes);
            wants.insert(0, Want { bandwidth_bps, ..Want::memory(bytes, copies) });
        }
        Ok(AllocationRequest {
            client_id: u128::from(random_word()?) << 64 | u128::from(random_word()?),
            recipient: recipient_name(),
            wants,
            donors: self.donors.clone(),
            home: self.home.clone(),
            placement: self.placement,
            purpose: to_label(&self.purpose),
            queueing: self.waiting.queueing(),
        })
    }

    /// Creates the request for more memory, without a wait and without the devices.
    pub(crate) fn more_memory(
        &self,
        bytes: u64,
        copies: u32,
    ) -> Result<AllocationRequest, RecipientError> {
        let spec = Self { devices: Vec::new(), ..self.clone() };
        let request = spec.request(Some((bytes, copies)))?;
        Ok(without_wait(request))
    }
}

/// Returns the request without a wait and without preemption.
pub(crate) fn without_wait(request: AllocationRequest) -> AllocationRequest {
    let queueing = Queueing { wait_ms: 0, preempt: Preempt::No, ..request.queueing };
    AllocationRequest { queueing, ..request }
}

/// Part of an unstated size that has copies rather than all of it without: the size by default is
/// three times the program's local memory, so that is as much again.
const LEAST_PART_WITH_COPIES: u64 = 3;

impl MemorySpec {
    /// Returns the bytes of each copy or fragment to request, and their number, given the donors'
    /// free slabs and the rest of the user's quota in slabs. Unstated values are made to fit, if
    /// possible.
    pub(crate) fn size(&self, free: &[u64], slabs_left: u64) -> (u64, u32) {
        let most = |shares: u32| {
            most_slabs(free, shares.into()).min(slabs_left / u64::from(shares.max(1)))
        };
        let (data, shares) = match self.coding {
            Some(coding) => (coding.data() as u64, coding.fragments() as u32),
            None => (1, self.copies.unwrap_or_else(|| self.default_copies(most))),
        };
        let wanted = self.whole_bytes().div_ceil(data * SLAB_BYTES);
        let slabs = match most(shares.max(1)) {
            most if self.remote_bytes.is_none() && most > 0 => wanted.min(most),
            _ => wanted,
        };
        (slabs.saturating_mul(SLAB_BYTES), shares)
    }

    /// Returns the copies if none are stated: as many as have room. Without a stated size less memory
    /// with copies is better than all of it without, down to a part.
    fn default_copies(&self, most: impl Fn(u32) -> u64) -> u32 {
        let least = match self.remote_bytes {
            Some(bytes) => bytes,
            None => self.default_bytes / LEAST_PART_WITH_COPIES,
        };
        let fits = most(COPIES_BY_DEFAULT) >= least.div_ceil(SLAB_BYTES).max(1);
        if fits { COPIES_BY_DEFAULT } else { 1 }
    }

    /// Returns the link bandwidth for `bytes` of it, in bits a second: each fragment brings a part,
    /// and a replacement of a lost donor its own.
    fn share_bps(&self, bytes: u64) -> u64 {
        let whole = self.whole_bytes();
        let share = u128::from(self.bandwidth_bps) * u128::from(bytes.min(whole));
        u64::try_from(share.div_ceil(u128::from(whole))).unwrap_or(self.bandwidth_bps)
    }

    fn whole_bytes(&self) -> u64 {
        self.remote_bytes.unwrap_or(self.default_bytes).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unstated_size_fits_rack_and_quota() {
        let slabs = |spec: &MemorySpec, free: &[u64], left| {
            let (bytes, copies) = spec.size(free, left);
            (bytes / SLAB_BYTES, copies)
        };
        let default = MemorySpec { default_bytes: 4 * SLAB_BYTES, ..MemorySpec::default() };
        assert_eq!(slabs(&default, &[9, 9], u64::MAX), (4, 2));
        assert_eq!(slabs(&default, &[9, 9], 8), (4, 2));
        // Less memory, with copies, down to a third.
        assert_eq!(slabs(&default, &[9, 9], 7), (3, 2));
        assert_eq!(slabs(&default, &[9, 9], 3), (3, 1));
        assert_eq!(slabs(&default, &[2, 9], u64::MAX), (2, 2));
        assert_eq!(slabs(&default, &[1, 9], u64::MAX), (4, 1));
        assert_eq!(slabs(&default, &[2, 0], u64::MAX), (2, 1));
        // Nothing fits: the rack's refusal is wanted.
        assert_eq!(slabs(&default, &[9, 9], 0), (4, 1));
        let said = MemorySpec { remote_bytes: Some(4 * SLAB_BYTES), ..MemorySpec::default() };
        assert_eq!(slabs(&said, &[9, 9], 7), (4, 1));
        assert_eq!(slabs(&said, &[9, 9], 3), (4, 1));
        let both = MemorySpec { copies: Some(2), ..said };
        assert_eq!(slabs(&both, &[], 3), (4, 2));
        let copies = MemorySpec { copies: Some(2), ..default };
        assert_eq!(slabs(&copies, &[9, 9], 5), (2, 2));
    }
}
