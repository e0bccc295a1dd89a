//! Format of a transaction in the log: a head of 16 bytes, then its changes as protobuf, then zeros
//! up to the next multiple of 8.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..4 | the changes' length in bytes, little-endian |
//! | 4..8 | CRC-32 over the log's number, the other two fields and the changes |
//! | 8..16 | the revision |

use crate::store::{Lease, Revision, StoreChange};
use prost::Message;

/// Alignment of entries, in bytes.
pub(super) const ALIGN: usize = 8;
const HEAD_BYTES: usize = 16;

/// A transaction with effective changes, sufficient to repeat it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::redb_file) struct Entry {
    /// Revision of the store after it: one more than before.
    pub(in crate::redb_file) revision: Revision,
    /// Changes, at most one for each record.
    pub(in crate::redb_file) changes: Vec<StoreChange>,
}

#[derive(Clone, PartialEq, Message)]
struct Changes {
    #[prost(message, repeated, tag = "1")]
    changes: Vec<ChangeInLog>,
}

#[derive(Clone, PartialEq, Message)]
struct ChangeInLog {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(bytes = "vec", optional, tag = "2")]
    value: Option<Vec<u8>>,
    #[prost(int64, optional, tag = "3")]
    lease: Option<i64>,
}

impl Entry {
    /// Encodes the entry for the log with this number.
    ///
    /// # Panics
    /// Panics if the changes have 4 GiB: the log has no room for a thousandth of it.
    pub(super) fn encode(&self, log: u64) -> Vec<u8> {
        let changes = self.changes.iter().map(ChangeInLog::of).collect();
        let changes = Changes { changes };
        let len = changes.encoded_len();
        let mut bytes = Vec::with_capacity((HEAD_BYTES + len).next_multiple_of(ALIGN));
        bytes.extend(u32::try_from(len).expect("changes have less than 4 GiB").to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(self.revision.0.to_le_bytes());
        changes.encode(&mut bytes).expect("a vector has room");
        let sum = checksum(log, &bytes);
        bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
        bytes
    }

    /// Decodes the entry at the beginning of `bytes` if it is sound and newer than `after`; returns
    /// it with its length in bytes. Older ones are skipped without a check.
    pub(super) fn decode(log: u64, bytes: &[u8], after: Revision) -> Option<(Self, usize)> {
        let head = bytes.first_chunk::<HEAD_BYTES>()?;
        let (len, sum) = (word(head, 0), word(head, 4));
        let revision = Revision(u64::from(word(head, 8)) | u64::from(word(head, 12)) << 32);
        let end = HEAD_BYTES.checked_add(usize::try_from(len).ok()?)?;
        if len == 0 || revision <= after {
            return None;
        }
        let whole = bytes.get(..end)?;
        if checksum(log, whole) != sum {
            return None;
        }
        let changes = Changes::decode(&whole[HEAD_BYTES..]).ok()?;
        let changes = changes.changes.into_iter().map(ChangeInLog::change).collect();
        Some((Self { revision, changes }, end.next_multiple_of(ALIGN)))
    }
}

impl ChangeInLog {
    fn of(change: &StoreChange) -> Self {
        let StoreChange { key, value, lease } = change.clone();
        Self { key, value, lease: lease.map(|lease| lease.0) }
    }

    fn change(self) -> StoreChange {
        let Self { key, value, lease } = self;
        StoreChange { key, value, lease: lease.map(Lease) }
    }
}

/// Computes the checksum over everything but its own bytes.
fn checksum(log: u64, entry: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&log.to_le_bytes());
    hasher.update(&entry[..4]);
    hasher.update(&entry[8..]);
    hasher.finalize()
}

fn word(head: &[u8; HEAD_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = Entry> {
        let change = ("[a-z/]{0,9}", any::<Option<Vec<u8>>>(), any::<Option<i64>>());
        let changes = prop::collection::vec(change, 1..6);
        (1..u64::MAX, changes).prop_map(|(revision, changes)| {
            let change = |(key, value, lease): (_, _, Option<_>)| StoreChange {
                key,
                value,
                lease: lease.map(Lease),
            };
            Entry {
                revision: Revision(revision),
                changes: changes.into_iter().map(change).collect(),
            }
        })
    }

    proptest! {
        #[test]
        fn entry_roundtrip(entry in entry(), log: u64, behind: Vec<u8>) {
            let mut bytes = entry.encode(log);
            let len = bytes.len();
            prop_assert_eq!(len % ALIGN, 0);
            bytes.extend(behind);
            prop_assert_eq!(Entry::decode(log, &bytes, Revision(0)), Some((entry.clone(), len)));
            prop_assert_eq!(Entry::decode(log, &bytes, entry.revision), None, "the entry is not newer");
            prop_assert_eq!(Entry::decode(log ^ 1, &bytes, Revision(0)), None, "the log has another number");
        }

        /// A torn entry, or one with any damaged byte, is rejected.
        #[test]
        fn decode_rejects_damage(entry in entry(), place: prop::sample::Index, by in 1..=255_u8) {
            let bytes = entry.encode(7);
            let cut = place.index(bytes.len());
            let mut torn = bytes.clone();
            torn[cut..].fill(0);
            if torn != bytes {
                prop_assert_eq!(Entry::decode(7, &torn, Revision(0)), None);
            }
            let mut damaged = bytes.clone();
            damaged[cut] ^= by;
            match Entry::decode(7, &damaged, Revision(0)) {
                None => {}
                // The padding has no meaning.
                Some((read, _)) => prop_assert_eq!(read, entry),
            }
        }

        #[test]
        fn decode_rejects_garbage(bytes: Vec<u8>, log: u64) {
            if let Some((_, len)) = Entry::decode(log, &bytes, Revision(0)) {
                prop_assert!(len <= bytes.len().next_multiple_of(ALIGN));
            }
        }
    }
}
