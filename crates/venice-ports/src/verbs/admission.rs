//! Admission of recipients: registers the grant's slabs, and joins a queue pair to the recipient's.

use std::net::IpAddr;
use std::sync::Arc;

use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

use super::memory::{Access, Domain, Region};
use super::queue::{CompletionQueue, QueuePair, QueuePairAddress};
use super::set_up::{Hello, Welcome};
use super::{Device, VerbsError};
use crate::random_u64;
use crate::shm::{MappedSlab, SlabSource};

/// Slabs fetched from the source at once: their descriptors are open together.
const SLABS_AT_ONCE: usize = 64;
/// Most reads and atomics answered at once for one recipient.
const READS: i32 = 32;

/// A grant whose slabs the device may reach. Its drop deregisters them before it returns.
#[derive(Debug)]
pub(super) struct Lent {
    key: GrantKey,
    domain: Arc<Domain>,
    slabs: Vec<LentSlab>,
}

#[derive(Debug)]
struct LentSlab {
    region: Region,
    /// Field order: unmapped after the region is deregistered.
    _mapping: MappedSlab,
}

/// Admission service; see the module.
#[derive(Debug)]
pub(super) struct Admission<S> {
    device: Arc<Device>,
    source: S,
    /// Completion queue that stays empty: a donor's queue pairs only answer.
    completions: Arc<CompletionQueue>,
}

impl<S: SlabSource> Admission<S> {
    pub(super) fn new(device: Arc<Device>, source: S) -> Result<Self, VerbsError> {
        let completions = CompletionQueue::new(&device, 16)?;
        Ok(Self { device, source, completions })
    }

    /// Checks that the source has the grant, and that `hello` has its key. Called every time: only
    /// the source tracks which grants live.
    ///
    /// The text of the refusal.
    /// A refusal in words.
    pub(super) fn check(&self, hello: &Hello) -> Result<(), String> {
        self.source.slabs(hello.grant, hello.key, 0, 1).map(|_| ())
    }

    /// Admits a recipient that reached this machine at the address `ip`; returns the answer and the
    /// end of its connection.
    ///
    /// # Errors
    /// The text of the refusal.
    pub(super) fn admit(
        &self,
        lent: &Lent,
        hello: &Hello,
        ip: IpAddr,
    ) -> Result<(Vec<u8>, QueuePair), String> {
        let in_words = |error: VerbsError| match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        };
        if lent.key != hello.key {
            return Err("wrong key of the grant".into());
        }
        let pair = QueuePair::new(&lent.domain, &self.completions, 1).map_err(in_words)?;
        let ours = QueuePairAddress {
            port: self.device.address(ip).map_err(in_words)?,
            number: pair.number(),
            first_packet: first_packet().map_err(in_words)?,
            reads: self.device.limits().max_qp_rd_atom.clamp(1, READS) as u8,
        };
        pair.connect(&ours, &hello.address, true).map_err(in_words)?;
        let granted = Welcome::Granted { slabs: lent.slabs.len() as u64, address: ours };
        let mut answer = granted.encode().to_vec();
        for slab in &lent.slabs {
            answer.extend_from_slice(&slab.region.rkey().to_le_bytes());
        }
        Ok((answer, pair))
    }

    /// Registers the slabs of a grant, which takes milliseconds for each.
    ///
    /// # Errors
    /// The text of the refusal.
    pub(super) fn register(&self, grant: GrantId, key: GrantKey) -> Result<Lent, String> {
        let domain = Domain::new(&self.device).map_err(|error| error.to_string())?;
        let mut slabs = Vec::new();
        loop {
            let total = self.source.slabs(grant, key, 0, 1)?.total;
            let count = (total - slabs.len()).min(SLABS_AT_ONCE);
            if count == 0 {
                return Ok(Lent { key, domain, slabs });
            }
            for file in self.source.slabs(grant, key, slabs.len(), count)?.files {
                let len = SLAB_BYTES as usize;
                let mapping = MappedSlab::map(&file, len).map_err(|error| error.to_string())?;
                let (start, first) = (mapping.as_ptr(), slabs.len() as u64 * SLAB_BYTES);
                // SAFETY: the mapping outlives the region in `LentSlab`; the memory is raw bytes
                // shared with other processes anyway.
                let region =
                    unsafe { Region::register(&domain, start, len, first, Access::Remote) };
                let region = region.map_err(|error| error.to_string())?;
                slabs.push(LentSlab { region, _mapping: mapping });
            }
        }
    }
}

/// Draws the unpredictable number of the first packet. Packet numbers have 24 bits.
pub(super) fn first_packet() -> Result<u32, VerbsError> {
    let random = random_u64().map_err(|errno| VerbsError::System {
        step: "drawing a random number",
        source: errno.into(),
    })?;
    Ok(random as u32 & 0xff_ffff)
}
