//! Replay window: records which datagrams of a sender have come.

/// Words of the bitmap: a power of two.
const WORDS: usize = 32;
const WORD_BITS: u64 = u64::BITS as u64;

/// Replay window of one sender (RFC 6479): counters may come in any order, and each is fresh once.
#[derive(Clone, Debug, Default)]
pub struct ReplayWindow {
    /// Highest counter that came, plus one.
    end: u64,
    /// Bitmap: bit `counter % 64` of word `counter / 64 % WORDS`.
    seen: [u64; WORDS],
}

impl ReplayWindow {
    /// Width of the window: counters at most this far behind the highest one are told apart; older
    /// ones all count as seen.
    pub const SPAN: u64 = (WORDS as u64 - 1) * WORD_BITS;

    /// True if `counter` has not come yet. Call it before the datagram is opened.
    pub fn is_fresh(&self, counter: u64) -> bool {
        if counter >= self.end {
            return counter < u64::MAX;
        }
        self.end - counter <= Self::SPAN && self.seen[word(counter)] & bit(counter) == 0
    }

    /// Marks a fresh `counter` as seen, once its datagram has proved genuine.
    pub fn mark(&mut self, counter: u64) {
        debug_assert!(self.is_fresh(counter));
        if counter >= self.end {
            let (old, new) = (self.end.div_ceil(WORD_BITS), counter / WORD_BITS);
            for each in 0..(new + 1).saturating_sub(old).min(WORDS as u64) {
                self.seen[((old + each) as usize) % WORDS] = 0;
            }
            self.end = counter + 1;
        }
        self.seen[word(counter)] |= bit(counter);
    }
}

fn word(counter: u64) -> usize {
    (counter / WORD_BITS) as usize % WORDS
}

fn bit(counter: u64) -> u64 {
    1 << (counter % WORD_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const _: () = assert!(ReplayWindow::SPAN >= 1024);

    /// Reference model: all counters that ever came, and the highest.
    #[derive(Default)]
    struct Model {
        seen: BTreeSet<u64>,
    }

    impl Model {
        fn is_fresh(&self, counter: u64) -> bool {
            let end = self.seen.last().map_or(0, |last| last + 1);
            let near = counter >= end || end - counter <= ReplayWindow::SPAN;
            near && !self.seen.contains(&counter)
        }
    }

    /// Generates mostly small steps to and fro, sometimes leaps over the whole window.
    fn steps() -> impl Strategy<Value = Vec<i64>> {
        let step = prop_oneof![
            10 => -80i64..100,
            2 => -2200i64..2200,
            1 => 2000i64..200_000,
        ];
        proptest::collection::vec(step, 1..400)
    }

    proptest! {
        #[test]
        fn counter_is_fresh_once(start in 0u64..5000, steps in steps()) {
            let (mut window, mut model) = (ReplayWindow::default(), Model::default());
            let mut counter = start;
            for step in steps {
                counter = counter.saturating_add_signed(step);
                prop_assert_eq!(window.is_fresh(counter), model.is_fresh(counter), "{}", counter);
                if window.is_fresh(counter) {
                    window.mark(counter);
                    model.seen.insert(counter);
                    prop_assert!(!window.is_fresh(counter));
                }
            }
        }
    }

    #[test]
    fn last_counter_is_never_fresh() {
        let mut window = ReplayWindow::default();
        assert!(!window.is_fresh(u64::MAX));
        window.mark(u64::MAX - 1);
        assert!(!window.is_fresh(u64::MAX - 1) && window.is_fresh(u64::MAX - 2));
    }
}
