//! Reserved ranges of the region, by connection.

use std::collections::BTreeMap;

use venice_service::ConnectionId;

/// Unit of reservations in bytes.
const UNIT: u64 = 4096;

/// The reserved ranges.
#[derive(Debug)]
pub(crate) struct Extents {
    len_bytes: u64,
    /// Owner and length of each, by its first byte.
    reserved: BTreeMap<u64, (ConnectionId, u64)>,
}

impl Extents {
    pub(crate) fn new(len_bytes: u64) -> Self {
        Self { len_bytes, reserved: BTreeMap::new() }
    }

    /// Reserves the first free range that is long enough; returns its first byte.
    pub(crate) fn reserve(&mut self, owner: ConnectionId, bytes: u64) -> Option<u64> {
        if bytes == 0 {
            return None;
        }
        let bytes = bytes.checked_next_multiple_of(UNIT)?;
        let mut at = 0;
        for (offset, (_, len)) in &self.reserved {
            if offset - at >= bytes {
                break;
            }
            at = offset + len;
        }
        if at.checked_add(bytes)? > self.len_bytes {
            return None;
        }
        self.reserved.insert(at, (owner, bytes));
        Some(at)
    }

    /// Frees a range; returns its length, or `None` if the owner has none there.
    pub(crate) fn give_back(&mut self, owner: ConnectionId, offset: u64) -> Option<u64> {
        let (of, bytes) = *self.reserved.get(&offset)?;
        if of != owner {
            return None;
        }
        self.reserved.remove(&offset);
        Some(bytes)
    }

    /// True if a range lies within one of the owner's.
    pub(crate) fn contains(&self, owner: ConnectionId, offset: u64, bytes: u64) -> bool {
        let Some(end) = offset.checked_add(bytes) else { return false };
        let last = self.reserved.range(..=offset).next_back();
        last.is_some_and(|(at, (of, len))| *of == owner && end <= at + len)
    }

    /// Frees all ranges of an owner; returns them.
    pub(crate) fn remove_owner(&mut self, owner: ConnectionId) -> Vec<(u64, u64)> {
        let mut removed = Vec::new();
        self.reserved.retain(|at, (of, len)| {
            if *of == owner {
                removed.push((*at, *len));
            }
            *of != owner
        });
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ConnectionId = ConnectionId(1);
    const B: ConnectionId = ConnectionId(2);

    #[test]
    fn ranges_never_overlap() {
        let mut extents = Extents::new(10 * UNIT);
        assert_eq!(extents.reserve(A, 1), Some(0));
        assert_eq!(extents.reserve(B, 3 * UNIT), Some(UNIT));
        assert_eq!(extents.reserve(A, 7 * UNIT), None);
        assert_eq!(extents.reserve(A, 6 * UNIT), Some(4 * UNIT));
        assert_eq!(extents.give_back(A, UNIT), None);
        assert_eq!(extents.give_back(B, UNIT), Some(3 * UNIT));
        assert_eq!(extents.reserve(A, 2 * UNIT), Some(UNIT));
        assert_eq!(extents.reserve(A, UNIT), Some(3 * UNIT));
        assert_eq!(extents.reserve(A, u64::MAX), None);
    }

    #[test]
    fn owner_reaches_only_its_ranges() {
        let mut extents = Extents::new(4 * UNIT);
        extents.reserve(A, UNIT);
        extents.reserve(B, UNIT);
        assert!(extents.contains(A, 8, UNIT - 8));
        assert!(!extents.contains(A, 8, UNIT));
        assert!(!extents.contains(A, UNIT, 1));
        assert!(!extents.contains(B, UNIT, u64::MAX));
        assert_eq!(extents.remove_owner(A), [(0, UNIT)]);
        assert!(!extents.contains(A, 0, 1));
    }
}
