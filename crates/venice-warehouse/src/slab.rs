//! Values by number; numbers of values that are gone are used again.

use serde::{Deserialize, Serialize};

/// Values by number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Slab<T> {
    slots: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T: Copy> Slab<T> {
    /// Puts a value in.
    pub fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(id) => {
                self.slots[id as usize] = value;
                id
            }
            None => {
                self.slots.push(value);
                self.slots.len() as u32 - 1
            }
        }
    }

    /// Takes a value out. Its number must be used no more.
    pub fn remove(&mut self, id: u32) -> T {
        self.free.push(id);
        self.slots[id as usize]
    }

    /// Returns a value.
    pub fn get(&self, id: u32) -> &T {
        &self.slots[id as usize]
    }

    /// Returns a value, to change it.
    pub fn get_mut(&mut self, id: u32) -> &mut T {
        &mut self.slots[id as usize]
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
