//! The last faults of one thread that no stream explains, and the trend in them.

use super::super::page_table::PageNumber;

/// Faults remembered.
const REMEMBERED: usize = 32;
/// Last faults of which the next page begins a stream.
const NEIGHBOURS: usize = 8;
/// Numbers of steps checked for a majority, the fewest first.
const MAJORITIES: [usize; 4] = [4, 8, 16, 31];
/// Most streams that may alternate and still be recognised.
const ALTERNATING_STREAMS: usize = 4;
/// Steps that must be equal where streams alternate.
const EQUAL_STEPS: usize = 3;

/// The history of one thread.
#[derive(Debug, Default)]
pub struct History {
    thread: u32,
    last_fault_at: u64,
    confidence: u8,
    most_confidence: u8,
    /// Faulting pages, the latest first; 0: none.
    pages: [PageNumber; REMEMBERED],
    /// Steps from the fault before to each of them; 0: there was none.
    steps: [isize; REMEMBERED],
}

impl History {
    /// Makes an empty history with a given confidence and its maximum.
    pub fn of(thread: u32, (confidence, most_confidence): (u8, u8)) -> History {
        History { thread, confidence, most_confidence, ..History::default() }
    }

    /// True if it is the history of `thread`.
    pub fn is_of(&self, thread: u32) -> bool {
        self.last_fault_at > 0 && self.thread == thread
    }

    /// Clock of the last fault pushed.
    pub fn last_fault_at(&self) -> u64 {
        self.last_fault_at
    }

    /// Records a fault that no stream explains.
    pub fn push(&mut self, page: PageNumber, clock: u64) {
        self.last_fault_at = clock;
        let step = self.step(page, 0).unwrap_or(0);
        self.pages.copy_within(..REMEMBERED - 1, 1);
        self.pages[0] = page;
        self.steps.copy_within(..REMEMBERED - 1, 1);
        self.steps[0] = step;
    }

    /// True if prefetch is expected to pay.
    pub fn is_confident(&self) -> bool {
        self.confidence > 0
    }

    /// Raises the confidence: a prefetch paid.
    pub fn gain(&mut self, by: u8) {
        self.confidence = (self.confidence + by).min(self.most_confidence);
    }

    /// Lowers the confidence: a prefetch did not pay.
    pub fn lose(&mut self) {
        self.confidence = self.confidence.saturating_sub(1);
    }

    /// Returns the step of the trend that a fault on `page` continues, if there is one.
    pub fn trend(&self, page: PageNumber) -> Option<isize> {
        if page > 1 && self.pages[..NEIGHBOURS].contains(&(page - 1)) {
            return Some(1);
        }
        self.majority_step(page).or_else(|| self.alternating_step(page))
    }

    /// Returns the latest step if most of the last few steps equal it.
    fn majority_step(&self, page: PageNumber) -> Option<isize> {
        let step = self.step(page, 0)?;
        let equal = |of: &[isize]| 1 + of.iter().filter(|&&other| other == step).count();
        // In most cases this settles it.
        if 2 * equal(&self.steps) <= MAJORITIES[0] {
            return None;
        }
        let is_one = |&of: &usize| 2 * equal(&self.steps[..of - 1]) > of;
        MAJORITIES.iter().any(is_one).then_some(step)
    }

    /// Returns the step if every second, third, or fourth fault goes by equal steps.
    fn alternating_step(&self, page: PageNumber) -> Option<isize> {
        (2..=ALTERNATING_STREAMS).find_map(|turns| {
            let step = self.step(page, turns - 1)?;
            let is_equal = |nth: usize| {
                let at = nth * turns - 1;
                self.step(self.pages[at], at + turns) == Some(step)
            };
            (1..EQUAL_STEPS).all(is_equal).then_some(step)
        })
    }

    /// Returns the step from the fault at `before` to `page`; none if it is the same page or there
    /// was no fault.
    fn step(&self, page: PageNumber, before: usize) -> Option<isize> {
        let from = self.pages[before];
        let step = (page as isize).wrapping_sub(from as isize);
        (from != 0 && step != 0).then_some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pages: &[PageNumber]) -> History {
        let mut history = History::of(1, (8, 16));
        pages.iter().zip(1..).for_each(|(&page, clock)| history.push(page, clock));
        history
    }

    #[test]
    fn majority_tolerates_exceptions() {
        assert_eq!(with(&[100, 107, 114]).trend(121), Some(7));
        assert_eq!(with(&[100, 107]).trend(114), None, "two steps are no majority of four");
        assert_eq!(with(&[100, 107, 114, 9000, 121, 128]).trend(135), None);
        assert_eq!(with(&[93, 100, 107, 9000, 121, 128, 135]).trend(142), Some(7));
        assert_eq!(with(&[5, 9000, 31, 77, 2]).trend(4444), None);
    }

    #[test]
    fn next_page_starts_stream() {
        assert_eq!(with(&[50, 900, 4, 70_000]).trend(51), Some(1));
        assert_eq!(with(&[50, 900, 4, 70_000, 1, 2000, 3000, 4000, 5000]).trend(51), None);
        assert_eq!(with(&[50]).trend(50), None);
    }

    #[test]
    fn alternating_streams_are_separated() {
        let turns = [100, 9000, 110, 8993, 120, 8986];
        assert_eq!(with(&turns).trend(130), Some(10));
        let mut more = turns.to_vec();
        more.push(130);
        assert_eq!(with(&more).trend(8979), Some(-7));
        let three = [10, 5000, 90_000, 40, 5002, 80_000, 70, 5004, 70_000];
        assert_eq!(with(&three).trend(100), Some(30));
    }
}
