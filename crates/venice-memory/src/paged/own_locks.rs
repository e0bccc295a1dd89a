//! The locked ranges of the pager's own memory, to be locked again after the program's
//! `munlockall(2)`.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Most ranges recorded. A further one stays unlocked after `munlockall`: the host may swap it out.
const MOST: usize = 128;

/// A set of ranges by their first addresses.
#[derive(Debug)]
pub struct OwnLocks([Place; MOST]);

#[derive(Debug)]
struct Place {
    /// 0: the place is free.
    addr: AtomicUsize,
    len_bytes: AtomicUsize,
}

impl OwnLocks {
    /// Makes an empty set.
    pub const fn new() -> OwnLocks {
        OwnLocks(
            [const { Place { addr: AtomicUsize::new(0), len_bytes: AtomicUsize::new(0) } }; MOST],
        )
    }

    /// Adds a range, or sets the length of the one at `addr`.
    pub fn add(&self, addr: usize, len_bytes: usize) {
        let at = |wanted: usize| {
            self.0.iter().find(|place| {
                let (relaxed, now) = (Ordering::Relaxed, place.addr.load(Ordering::Relaxed));
                now == wanted && place.addr.compare_exchange(now, addr, relaxed, relaxed).is_ok()
            })
        };
        if let Some(place) = at(addr).or_else(|| at(0)) {
            place.len_bytes.store(len_bytes, Ordering::Release);
        }
    }

    /// Removes the range that begins at `addr`.
    pub fn remove(&self, addr: usize) {
        if addr == 0 {
            return;
        }
        for place in &self.0 {
            if place.addr.load(Ordering::Relaxed) == addr {
                place.len_bytes.store(0, Ordering::Relaxed);
                place.addr.store(0, Ordering::Release);
            }
        }
    }

    /// All ranges: address and length in bytes.
    pub fn all(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let places = self.0.iter();
        let read = |place: &Place| {
            (place.addr.load(Ordering::Acquire), place.len_bytes.load(Ordering::Acquire))
        };
        places.map(read).filter(|(addr, len_bytes)| *addr != 0 && *len_bytes != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_range_is_forgotten() {
        let locks = OwnLocks::new();
        locks.add(4096, 10);
        locks.add(8192, 20);
        locks.add(4096, 30);
        assert_eq!(locks.all().collect::<Vec<_>>(), [(4096, 30), (8192, 20)]);
        locks.remove(4096);
        locks.remove(0);
        assert_eq!(locks.all().collect::<Vec<_>>(), [(8192, 20)]);
        (0..MOST).for_each(|at| locks.add((at + 100) * 4096, 1));
        assert_eq!(locks.all().count(), MOST);
    }
}
