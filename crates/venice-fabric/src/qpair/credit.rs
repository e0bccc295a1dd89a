//! Credits: an end's capacity, the amount it has read, and the region where the other end writes
//! that amount.

use venice_wire::{GrantId, GrantKey};

/// The grant that names an engine's credit region. No donor allocates this number.
pub(super) const CREDIT_REGION: GrantId = GrantId(u64::MAX);
/// Bytes of one QPair's entry in the region: bytes read, then messages read.
pub(super) const CREDIT_BYTES: usize = 16;

/// The most an end can hold unread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Capacity {
    pub bytes: u64,
    pub messages: u64,
}

/// The amount read of a QPair since it was made. It only grows, so the largest is the latest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Credit {
    pub bytes: u64,
    pub messages: u64,
}

impl Credit {
    pub(super) fn since(self, earlier: Self) -> Self {
        Self { bytes: self.bytes - earlier.bytes, messages: self.messages - earlier.messages }
    }

    pub(super) fn max(self, other: Self) -> Self {
        Self { bytes: self.bytes.max(other.bytes), messages: self.messages.max(other.messages) }
    }

    pub(super) fn to_bytes(self) -> [u8; CREDIT_BYTES] {
        let mut bytes = [0; CREDIT_BYTES];
        bytes[..8].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[8..].copy_from_slice(&self.messages.to_le_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; CREDIT_BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Some(Self { bytes: word(0), messages: word(8) })
    }
}

/// The region into which the readers of all QPairs of an engine write the amounts they have read.
#[derive(Debug)]
pub(super) struct CreditRegion {
    places: Box<[Place]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// The key that tells the present QPair from earlier ones in the same slot.
    key: GrantKey,
    credit: Credit,
}

impl CreditRegion {
    pub(super) fn new(places: usize) -> Self {
        Self { places: vec![Place::default(); places].into() }
    }

    /// Clears the entry in `slot` for a new QPair.
    pub(super) fn assign(&mut self, slot: usize, key: GrantKey) {
        self.places[slot] = Place { key, credit: Credit::default() };
    }

    pub(super) fn address(slot: usize) -> u64 {
        (slot * CREDIT_BYTES) as u64
    }

    pub(super) fn key(&self, slot: usize) -> GrantKey {
        self.places[slot].key
    }

    pub(super) fn credit(&self, slot: usize) -> Credit {
        self.places[slot].credit
    }

    /// Returns the slot addressed by an overwriteable write, if its address and key are right.
    pub(super) fn find(&self, address: u64, key: GrantKey) -> Option<usize> {
        let slot = usize::try_from(address / CREDIT_BYTES as u64).ok()?;
        let place = self.places.get(slot)?;
        (Self::address(slot) == address && place.key == key).then_some(slot)
    }

    /// Stores the amount read; an older amount changes nothing. Returns true if it was newer.
    pub(super) fn store(&mut self, slot: usize, credit: Credit) -> bool {
        let place = &mut self.places[slot];
        let newer = place.credit.max(credit);
        std::mem::replace(&mut place.credit, newer) != newer
    }
}

/// In-band credits that wait in a QPair's queue for the data before them to be sent.
#[derive(Debug, Default)]
pub(super) struct InBandCredits {
    waiting: [(u64, Credit); Self::MAX],
    count: usize,
}

impl InBandCredits {
    /// Queued credits at most: the number of buffers in the measured cases, each given credit for
    /// by itself. Beyond that the last one is overwritten.
    const MAX: usize = 32;

    /// Queues a credit behind all data before `position`.
    pub(super) fn push(&mut self, position: u64, credit: Credit) {
        if self.count == Self::MAX {
            self.waiting[Self::MAX - 1] = (position, credit);
        } else {
            self.waiting[self.count] = (position, credit);
            self.count += 1;
        }
    }

    /// Returns the first credit, if all data before it is sent, or the data is blocked.
    pub(super) fn take(&mut self, sent_bytes: u64, is_held_up: bool) -> Option<Credit> {
        let &(position, credit) = self.waiting[..self.count].first()?;
        if sent_bytes < position && !is_held_up {
            return None;
        }
        self.waiting.copy_within(1..self.count, 0);
        self.count -= 1;
        Some(credit)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn clear(&mut self) {
        self.count = 0;
    }
}
