//! The pager's own descriptors, which the program must not close.

use std::sync::atomic::{AtomicI32, Ordering};

use super::sys;

/// Most descriptors a pager has at a time.
const MOST: usize = 320;
/// Most descriptors for programs that the process starts.
const MOST_LASTING: usize = 2;
const NONE: i32 = -1;

/// The set of the pager's descriptors. Its readers are the program's threads in `close(2)`.
#[derive(Debug)]
pub struct Descriptors {
    lowest: i32,
    fds: [AtomicI32; MOST],
    /// Members that stay open for children, and for programs that this process starts.
    lasting: [AtomicI32; MOST_LASTING],
}

impl Descriptors {
    /// Makes an empty set, whose members are kept at or above `lowest` where there is room.
    pub fn new(lowest: i32) -> Descriptors {
        let fds = [const { AtomicI32::new(NONE) }; MOST];
        let lasting = [const { AtomicI32::new(NONE) }; MOST_LASTING];
        Descriptors { lowest, fds, lasting }
    }

    /// Lowest number of a member, if the program's limit on descriptors still allows it.
    pub fn lowest(&self) -> i32 {
        self.lowest
    }

    /// Moves `fd` to a number that programs do not use, and adds it to the set. Returns the new
    /// number.
    pub fn keep(&self, fd: i32) -> i32 {
        let fd = sys::move_fd(fd, self.lowest).unwrap_or(fd);
        self.add(fd);
        fd
    }

    /// Adds `fd` under its own number.
    ///
    /// # Panics
    /// If the set is full.
    pub fn add(&self, fd: i32) {
        let free = self.fds.iter().find(|place| {
            place.compare_exchange(NONE, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        assert!(free.is_some(), "a pager has no more than {MOST} descriptors");
    }

    /// Adds `fd` under its own number; [`Descriptors::close_all_but`] leaves it open.
    ///
    /// # Panics
    /// If there are [`MOST_LASTING`] already.
    pub fn add_lasting(&self, fd: i32) {
        let free = self.lasting.iter().find(|place| {
            place.compare_exchange(NONE, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        assert!(free.is_some(), "a process has {MOST_LASTING} descriptors for others");
    }

    fn members(&self) -> impl Iterator<Item = i32> {
        let places = self.fds.iter().chain(&self.lasting);
        places.map(|place| place.load(Ordering::Acquire)).filter(|fd| *fd != NONE)
    }

    /// Closes a member.
    pub fn close(&self, fd: i32) {
        if fd == NONE {
            return;
        }
        for place in &self.fds {
            let _ = place.compare_exchange(fd, NONE, Ordering::AcqRel, Ordering::Relaxed);
        }
        sys::close(fd);
    }

    /// Closes all members but `kept` and the lasting ones.
    pub fn close_all_but(&self, kept: &[i32]) {
        for fd in self.fds.iter().map(|place| place.load(Ordering::Acquire)) {
            if fd != NONE && !kept.contains(&fd) {
                self.close(fd);
            }
        }
    }

    /// True if `fd` is a member.
    pub fn contains(&self, fd: i32) -> bool {
        self.members().any(|member| member == fd)
    }

    /// Returns the smallest member from `first` to `last`.
    pub fn first_within(&self, first: u32, last: u32) -> Option<u32> {
        self.members().map(|fd| fd as u32).filter(|fd| (first..=last).contains(fd)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_member_is_not_found() {
        let set = Descriptors::new(500);
        let fd = set.keep(sys::open_readonly(b"/dev/null\0").unwrap());
        assert!(fd >= 500 && set.contains(fd));
        assert_eq!(set.first_within(3, u32::MAX), Some(fd as u32));
        assert_eq!(set.first_within(3, fd as u32 - 1), None);
        assert!(!set.contains(-1));
        set.close(fd);
        assert!(!set.contains(fd));
        assert!(sys::read(fd, &mut [0]).is_err(), "it is closed");
    }

    #[test]
    fn lasting_member_stays_open() {
        let set = Descriptors::new(500);
        let lasting = sys::open_readonly(b"/dev/null\0").unwrap();
        set.add_lasting(lasting);
        let other = set.keep(sys::open_readonly(b"/dev/null\0").unwrap());
        set.close_all_but(&[]);
        assert!(set.contains(lasting) && !set.contains(other));
        assert!(sys::read(lasting, &mut [0]).is_ok() && sys::read(other, &mut [0]).is_err());
        sys::close(lasting);
    }
}
