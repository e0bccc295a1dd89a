//! A donor as all processes of a run see it: its addresses and its state.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use venice_wire::{GrantId, SEAL_KEY_BYTES, SealKey};

use super::SILENT_LEASES;

/// The cause of a donor's loss. Its contents are lost with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Fate {
    /// It died, or is unreachable.
    Died = 1,
    /// It revoked the grant.
    Revoked = 2,
    /// It stopped answering: either other donors have its contents, or its lease has expired.
    Unresponsive = 3,
    /// It did not admit this process until its lease expired: a certificate was refused.
    NotAdmitted = 4,
}

/// The node id of the recipient's own machine as a [`Donor`]. No node of a rack has it.
pub const HERE: u32 = u32::MAX;

/// The value in place of a [`Fate`] once all contents are on other donors and the grant is given
/// back.
const GIVEN_BACK: u32 = 5;

/// A donor of this run.
#[derive(Debug)]
#[repr(C)]
pub struct Donor {
    /// A [`Fate`]; [`GIVEN_BACK`]; 0: none yet.
    fate: AtomicU32,
    /// Some thread waits for it in vain.
    is_suspected: AtomicU32,
    /// It reclaims its memory.
    is_reclaiming: AtomicU32,
    /// The newest attempt to open a link was refused: all its links are in use.
    is_refusing: AtomicU32,
    /// Node id on the fabric.
    pub node: AtomicU32,
    name: [AtomicU64; 8],
    udp_address: [AtomicU64; 8],
    /// True if the address is that of the relay of the recipient's relay node, with the donor
    /// behind it.
    is_via: AtomicU32,
    /// It did not admit this process when that renewed its lease last.
    is_not_admitting: AtomicU32,
    /// The grant that datagrams to it are sealed under, and its key; 0: not sealed.
    seal_grant: AtomicU64,
    seal_key: [AtomicU64; 4],
    /// The owner that its grant was transferred to; empty for another fate.
    transferred_to: [AtomicU64; 8],
}

impl Donor {
    pub(super) fn set_up(&self, name: &str, node: u32, udp: &str) {
        self.node.store(node, Ordering::Relaxed);
        store_text(&self.name, name);
        store_text(&self.udp_address, udp);
    }

    /// Its name.
    pub fn name(&self) -> String {
        load_text(&self.name)
    }

    /// Its address for UDP frames.
    pub fn udp_address(&self) -> String {
        load_text(&self.udp_address)
    }

    /// True if it is the recipient's own machine. Its contents are lost only with the recipient.
    pub fn is_here(&self) -> bool {
        self.node.load(Ordering::Relaxed) == HERE
    }

    /// Marks the address as that of the relay of the recipient's relay node.
    pub fn set_via(&self) {
        self.is_via.store(1, Ordering::Relaxed);
    }

    /// True if it is reached through relays.
    pub fn is_via(&self) -> bool {
        self.is_via.load(Ordering::Relaxed) != 0
    }

    /// Seals UDP datagrams to it under this grant's key.
    pub fn set_seal(&self, grant: GrantId, key: SealKey) {
        for (word, bytes) in self.seal_key.iter().zip(key.0.chunks_exact(8)) {
            word.store(u64::from_ne_bytes(bytes.try_into().expect("8 bytes")), Ordering::Relaxed);
        }
        self.seal_grant.store(grant.0, Ordering::Release);
    }

    /// The grant and key that seal UDP datagrams to it; `None`: not sealed.
    pub fn seal(&self) -> Option<(GrantId, SealKey)> {
        let grant = self.seal_grant.load(Ordering::Acquire);
        let mut key = SealKey([0; SEAL_KEY_BYTES]);
        for (bytes, word) in key.0.chunks_exact_mut(8).zip(&self.seal_key) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        (grant != 0).then_some((GrantId(grant), key))
    }

    /// True if it is lost or given back. Nothing is readable there any more, for good.
    pub fn is_gone(&self) -> bool {
        // Sequentially consistent with the reads and batches of the caller: see `readers`.
        self.fate.load(Ordering::SeqCst) != 0
    }

    /// True if its grant was given back.
    pub fn is_given_back(&self) -> bool {
        self.fate.load(Ordering::Acquire) == GIVEN_BACK
    }

    /// True if it is lost, and its contents with it.
    pub fn is_lost(&self) -> bool {
        self.fate().is_some()
    }

    /// The cause of its loss; `None` if it is not lost.
    pub fn fate(&self) -> Option<Fate> {
        match self.fate.load(Ordering::Acquire) {
            0 | GIVEN_BACK => None,
            2 => Some(Fate::Revoked),
            3 => Some(Fate::Unresponsive),
            4 => Some(Fate::NotAdmitted),
            _ => Some(Fate::Died),
        }
    }

    /// Notes whether all its links were in use when one was to be opened.
    pub fn note_refusal(&self, is_refusing: bool) {
        self.is_refusing.store(is_refusing.into(), Ordering::Release);
    }

    /// True if all its links were in use when one was to be opened last.
    pub fn is_refusing(&self) -> bool {
        self.is_refusing.load(Ordering::Acquire) != 0
    }

    /// Raises a suspicion: its link stopped answering while a thread waited. That alone loses
    /// nothing: the supervisor decides ([`RunBlock::resolve_suspicion`](super::RunBlock::resolve_suspicion)).
    pub fn suspect(&self) {
        self.is_suspected.store(1, Ordering::Release);
    }

    /// True if a suspicion was raised since the last call.
    pub fn take_suspicion(&self) -> bool {
        self.is_suspected.load(Ordering::Acquire) != 0
            && self.is_suspected.swap(0, Ordering::AcqRel) != 0
    }

    /// Judges its silence, the time since its last answer to a renewal. A donor that is not reached is
    /// lost after a lease. One whose machine accepts connections stands still: it is suspected then,
    /// and lost after [`SILENT_LEASES`].
    pub fn judge_silence(&self, silence: Duration, lease: Duration, is_reached: bool) {
        let longest = if is_reached { lease * SILENT_LEASES } else { lease };
        if silence > longest {
            self.lose(Fate::Unresponsive);
        } else if silence > lease {
            self.suspect();
        }
    }

    /// Sets whether it did not admit this process when that renewed its lease last.
    pub fn note_admission(&self, is_admitting: bool) {
        self.is_not_admitting.store((!is_admitting).into(), Ordering::Release);
    }

    /// Marks it as lost. The first cause stands, but of a donor that does not admit this process the
    /// cause is [`Fate::NotAdmitted`], however a port sees the end of the lease.
    pub fn lose(&self, fate: Fate) {
        let is_admitting = self.is_not_admitting.load(Ordering::Acquire) == 0;
        self.end(if is_admitting { fate } else { Fate::NotAdmitted } as u32);
    }

    /// Marks it as lost because its grant was transferred to this owner; the first 63 bytes of the
    /// name are kept. The owner is recorded also if its loss was noticed before.
    pub fn lose_to(&self, owner: &str) {
        store_text(&self.transferred_to, owner);
        self.lose(Fate::Revoked);
    }

    /// The owner that its grant was transferred to; `None` for another fate.
    pub fn transferred_to(&self) -> Option<String> {
        Some(load_text(&self.transferred_to)).filter(|owner| !owner.is_empty())
    }

    /// Marks its grant as given back, which is no loss; `false` if it was lost before.
    pub fn give_back(&self) -> bool {
        self.end(GIVEN_BACK)
    }

    fn end(&self, word: u32) -> bool {
        self.fate.compare_exchange(0, word, Ordering::SeqCst, Ordering::Acquire).is_ok()
    }

    /// Sets the donor's reclaim of its memory.
    pub fn set_reclaiming(&self, is_reclaiming: bool) {
        self.is_reclaiming.store(u32::from(is_reclaiming), Ordering::Release);
    }

    /// True if it reclaims its memory. Its contents must move to other donors.
    pub fn is_reclaiming(&self) -> bool {
        self.is_reclaiming.load(Ordering::Acquire) != 0
    }
}

fn store_text(words: &[AtomicU64; 8], text: &str) {
    let mut bytes = [0u8; 64];
    let len = text.len().min(63);
    bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
    for (word, chunk) in words.iter().zip(bytes.chunks_exact(8)) {
        word.store(u64::from_ne_bytes(chunk.try_into().expect("8 bytes")), Ordering::Relaxed);
    }
}

fn load_text(words: &[AtomicU64; 8]) -> String {
    let bytes: Vec<u8> =
        words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
