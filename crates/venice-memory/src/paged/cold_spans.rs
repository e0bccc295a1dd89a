//! Spans of cold pages: the evictor takes them before its hand moves on.
//!
//! Only the spans are kept here; each page is marked cold itself
//! ([`Entry::is_cold`](super::page_table::Entry::is_cold)). So no page is lost when there is no
//! more room here: cold pages are not young, and the hand takes them when it comes by.

use std::ops::Range;

use super::page_table::PageNumber;

const SPANS: usize = 64;

/// Spans of pages, the oldest first.
#[derive(Debug)]
pub struct ColdSpans {
    spans: [Range<PageNumber>; SPANS],
    first: usize,
    count: usize,
}

impl Default for ColdSpans {
    fn default() -> ColdSpans {
        ColdSpans { spans: [const { 0..0 }; SPANS], first: 0, count: 0 }
    }
}

impl ColdSpans {
    /// Adds a span of pages that are cold now. A span that adjoins or meets the last one is joined
    /// to it.
    pub fn push(&mut self, span: Range<PageNumber>) {
        if span.is_empty() {
            return;
        }
        if self.count > 0 {
            let last = &mut self.spans[(self.first + self.count - 1) % SPANS];
            if span.start <= last.end && last.start <= span.end {
                *last = last.start.min(span.start)..last.end.max(span.end);
                return;
            }
        }
        if self.count == SPANS {
            self.first = (self.first + 1) % SPANS;
            self.count -= 1;
        }
        self.spans[(self.first + self.count) % SPANS] = span;
        self.count += 1;
    }

    /// Takes the next pages to check, at most `most` in a row, and never across a multiple of
    /// `most`. `None`: there are no more.
    pub fn take(&mut self, most: usize) -> Option<Range<PageNumber>> {
        if self.count == 0 {
            return None;
        }
        let span = &mut self.spans[self.first];
        let taken = span.start..span.end.min((span.start / most + 1) * most);
        span.start = taken.end;
        if taken.end == span.end {
            self.first = (self.first + 1) % SPANS;
            self.count -= 1;
        }
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pushed_pages_are_taken(
            spans in prop::collection::vec((0usize..400, 0usize..100), 0..SPANS),
            most in 1usize..80,
        ) {
            let (mut cold_spans, mut cold) = (ColdSpans::default(), [false; 600]);
            for (start, len) in spans {
                cold_spans.push(start..start + len);
                cold[start..start + len].fill(true);
            }
            let mut out = [false; 600];
            while let Some(taken) = cold_spans.take(most) {
                prop_assert!(!taken.is_empty() && taken.start / most == (taken.end - 1) / most);
                out[taken].fill(true);
            }
            prop_assert_eq!(out, cold);
        }
    }

    #[test]
    fn full_queue_drops_oldest() {
        let mut cold_spans = ColdSpans::default();
        for span in 0..=SPANS {
            cold_spans.push(span * 10..span * 10 + 2);
        }
        assert_eq!(cold_spans.take(64), Some(10..12));
        assert_eq!((1..SPANS).filter_map(|_| cold_spans.take(64)).last(), Some(640..642));
        assert_eq!(cold_spans.take(64), None);
    }

    #[test]
    fn adjoining_spans_are_joined() {
        let mut cold_spans = ColdSpans::default();
        (0..1000).for_each(|step| cold_spans.push(step * 3..step * 3 + 3));
        assert_eq!(cold_spans.take(4096), Some(0..3000));
        assert_eq!(cold_spans.take(4096), None);
    }
}
