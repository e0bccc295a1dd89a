//! A queue that costs an idle connection little: the first element lies in place, the others in a
//! ring that is freed when the queue gets empty.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Queue<T> {
    first: Option<T>,
    #[expect(clippy::box_collection, reason = "a pointer is a quarter of the ring's own size")]
    rest: Option<Box<VecDeque<T>>>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { first: None, rest: None }
    }
}

impl<T> Queue<T> {
    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.as_ref().map_or(0, |rest| rest.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn front(&self) -> Option<&T> {
        self.first.as_ref()
    }

    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        match index.checked_sub(1) {
            None => self.first.as_ref(),
            Some(index) => self.rest.as_ref()?.get(index),
        }
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        match index.checked_sub(1) {
            None => self.first.as_mut(),
            Some(index) => self.rest.as_mut()?.get_mut(index),
        }
    }

    pub(crate) fn push_back(&mut self, item: T) {
        match self.first {
            None => self.first = Some(item),
            Some(_) => self.rest.get_or_insert_default().push_back(item),
        }
    }

    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let next = self.rest.as_mut().and_then(|rest| rest.pop_front());
        if next.is_none() {
            self.rest = None;
        }
        std::mem::replace(&mut self.first, next)
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.first.iter().chain(self.rest.iter().flat_map(|rest| rest.iter()))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().chain(self.rest.iter_mut().flat_map(|rest| rest.iter_mut()))
    }

    /// Returns the index of the first element for which `precedes` is false; the elements for which
    /// it is true come first.
    pub(crate) fn partition_point(&self, mut precedes: impl FnMut(&T) -> bool) -> usize {
        match &self.first {
            Some(first) if precedes(first) => {
                1 + self.rest.as_ref().map_or(0, |rest| rest.partition_point(precedes))
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_keeps_order() {
        let mut queue = Queue::default();
        for n in 0..5 {
            queue.push_back(n);
        }
        assert_eq!((queue.len(), queue.get(0), queue.get(3)), (5, Some(&0), Some(&3)));
        assert_eq!(queue.partition_point(|n| *n < 3), 3);
        assert_eq!(queue.pop_front(), Some(0));
        queue.push_back(5);
        assert_eq!(queue.iter().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert_eq!(std::iter::from_fn(|| queue.pop_front()).count(), 5);
        assert!(queue.is_empty() && queue.rest.is_none());
    }
}
