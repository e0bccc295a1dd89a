//! Write protection of pages on their way out, in all users that they were given to.

use std::ops::Range;

use super::super::page_table::PageNumber;
use super::super::sys::{Errno, SysResult};
use super::home::SharedHome;
use super::objects::Stretch;

/// Pages that no thread can write to, and that nothing can pin for writing. Dropping it allows
/// both again.
#[derive(Debug)]
pub struct WriteHold(Vec<Stretch>);

impl WriteHold {
    /// Protects those of `pages` for which `is_in` is true; the caller owns them. `None`: a user
    /// forks.
    pub fn take(
        home: &SharedHome,
        pages: &Range<PageNumber>,
        is_in: impl Fn(PageNumber) -> bool,
    ) -> Option<WriteHold> {
        let stretches = || {
            let objects = home.objects();
            let object = objects.object_of(pages.start)?;
            Some(object.stretches(&objects, pages, &is_in))
        };
        let given = stretches()?;
        let mut hold = WriteHold(Vec::with_capacity(given.len()));
        for stretch in &given {
            match hold.protect(stretch) {
                // Part of it was unmapped past the C library: the rest is protected.
                Err(Errno::ENOENT) => {
                    for page in stretch.each_page() {
                        hold.protect(&page).or_else(unless_unmapped).ok()?;
                    }
                }
                outcome => outcome.or_else(unless_unmapped).ok()?,
            }
        }
        // A child that was forked before its parent was protected is a user by then, and is not.
        home.wait_for_reads();
        let now = stretches()?;
        let is_same = now.len() == given.len() && now.iter().zip(&given).all(|(a, b)| a.is_same(b));
        is_same.then_some(hold)
    }

    fn protect(&mut self, stretch: &Stretch) -> SysResult<()> {
        let outcome = stretch.protect(true);
        if outcome.is_ok() {
            self.0.push(stretch.clone());
        }
        outcome
    }

    /// The number of places where a page is protected.
    pub fn places(&self, key: PageNumber) -> usize {
        self.0.iter().filter(|stretch| stretch.keys().contains(&key)).count()
    }

    /// Ends the protection of stretches in which a page stays. Of pages that have left, nothing is
    /// left to protect.
    pub fn lift(mut self, stays: impl Fn(PageNumber) -> bool) {
        self.0.retain(|stretch| stretch.keys().any(&stays));
    }
}

/// Accepts that a stretch is not there: its process is dead, or has unmapped it.
fn unless_unmapped(errno: Errno) -> SysResult<()> {
    match errno {
        Errno::ESRCH | Errno::ENOENT => Ok(()),
        errno => Err(errno),
    }
}

impl Drop for WriteHold {
    fn drop(&mut self) {
        for stretch in &self.0 {
            // While the user forks, the write fault that comes is served by itself.
            let _ = stretch.protect(false);
        }
    }
}
