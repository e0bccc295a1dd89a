//! A queue that usually has one element at most: that one lies in place.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Elements in their order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Few<T> {
    first: Option<T>,
    #[expect(clippy::box_collection, reason = "a pointer is a quarter of the ring's own size")]
    rest: Option<Box<VecDeque<T>>>,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self { first: None, rest: None }
    }
}

impl<T> Few<T> {
    /// Adds the last element.
    pub fn push(&mut self, item: T) {
        match self.first {
            None => self.first = Some(item),
            Some(_) => self.rest.get_or_insert_default().push_back(item),
        }
    }

    /// Removes the first element.
    pub fn pop(&mut self) -> Option<T> {
        let next = self.rest.as_mut().and_then(|rest| rest.pop_front());
        if next.is_none() {
            self.rest = None;
        }
        std::mem::replace(&mut self.first, next)
    }

    /// Removes the first element that is wanted.
    pub fn take(&mut self, is_wanted: impl Fn(&T) -> bool) -> Option<T> {
        if is_wanted(self.first.as_ref()?) {
            return self.pop();
        }
        let rest = self.rest.as_mut()?;
        let place = rest.iter().position(is_wanted)?;
        rest.remove(place)
    }

    /// Returns the elements, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().chain(self.rest.iter_mut().flat_map(|rest| rest.iter_mut()))
    }

    /// Returns the elements.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(self.rest.iter().flat_map(|rest| rest.iter()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn few_equal_a_vector(steps in prop::collection::vec((0..3u8, 0..4u8), 0..60)) {
            let (mut few, mut model) = (Few::default(), Vec::new());
            for (step, item) in steps {
                match step {
                    0 => {
                        few.push(item);
                        model.push(item);
                    }
                    1 => {
                        let first = (!model.is_empty()).then(|| model.remove(0));
                        prop_assert_eq!(few.pop(), first);
                    }
                    _ => {
                        let place = model.iter().position(|other| *other == item);
                        let taken = place.map(|place| model.remove(place));
                        prop_assert_eq!(few.take(|other| *other == item), taken);
                    }
                }
                prop_assert!(few.iter().eq(&model));
            }
        }
    }
}
