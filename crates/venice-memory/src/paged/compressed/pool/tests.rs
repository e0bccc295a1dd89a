use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// A pool whose memory goes with it.
struct Own(PoolMemory, Option<Pool>);

impl Own {
    fn new(len_bytes: usize) -> Own {
        let memory = PoolMemory::reserve(len_bytes).unwrap();
        // SAFETY: fresh memory.
        let mut pool = unsafe { Pool::over(memory) };
        pool.set_limit(len_bytes);
        Own(memory, Some(pool))
    }

    fn pool(&mut self) -> &mut Pool {
        self.1.as_mut().unwrap()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.1 = None;
        // SAFETY: the pool is gone.
        unsafe { self.0.unmap() };
    }
}

fn blocks_of(len_bytes: usize) -> usize {
    (HEAD_BYTES + len_bytes).div_ceil(ROOM)
}

fn object(fingerprint: u128, len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|at| (fingerprint as usize * 31 + at * 7) as u8).collect()
}

/// What a pool is to do, as a list of fingerprints and lengths, the oldest first.
#[derive(Default)]
struct Model {
    objects: VecDeque<(u128, usize)>,
    most: usize,
}

impl Model {
    fn used(&self) -> usize {
        self.objects.iter().map(|(_, len_bytes)| blocks_of(*len_bytes)).sum()
    }

    fn set_limit(&mut self, most: usize) {
        self.most = most;
        while self.used() > most {
            self.objects.pop_front();
        }
    }

    fn insert(&mut self, fingerprint: u128, len_bytes: usize) -> bool {
        if len_bytes > LONGEST || blocks_of(len_bytes) > self.most {
            return false;
        }
        let known = self.take(fingerprint);
        let len_bytes = known.unwrap_or(len_bytes);
        while self.used() + blocks_of(len_bytes) > self.most {
            self.objects.pop_front();
        }
        self.objects.push_back((fingerprint, len_bytes));
        true
    }

    fn take(&mut self, fingerprint: u128) -> Option<usize> {
        let at = self.objects.iter().position(|(other, _)| *other == fingerprint)?;
        self.objects.remove(at).map(|(_, len_bytes)| len_bytes)
    }
}

#[derive(Clone, Debug)]
enum Act {
    Insert(u128, usize),
    Take(u128),
    Limit(usize),
    Empty,
}

fn act() -> impl Strategy<Value = Act> {
    let len_bytes = prop_oneof![0..40usize, 200..240usize, 0..=LONGEST + 2];
    prop_oneof![
        12 => (0..60u128, len_bytes).prop_map(|(page, len_bytes)| Act::Insert(page, len_bytes)),
        8 => (0..60u128).prop_map(Act::Take),
        1 => (0..=40usize).prop_map(Act::Limit),
        1 => Just(Act::Empty),
    ]
}

proptest! {
    #[test]
    fn it_does_what_a_list_does(acts in prop::collection::vec(act(), 1..200)) {
        let mut own = Own::new(32 * BLOCK_BYTES);
        let pool = own.pool();
        let mut model = Model { most: pool.most, ..Model::default() };
        let mut out = [0; LONGEST];
        for act in acts {
            match act {
                Act::Insert(page, len_bytes) => {
                    // The same contents always pack alike.
                    let len_bytes = model.objects.iter().find(|o| o.0 == page).map_or(len_bytes, |o| o.1);
                    let kept = pool.insert(page, &object(page, len_bytes));
                    prop_assert_eq!(kept, model.insert(page, len_bytes));
                }
                Act::Take(page) => {
                    let taken = pool.take(page, &mut out);
                    prop_assert_eq!(taken, model.take(page));
                    if let Some(len_bytes) = taken {
                        prop_assert_eq!(&out[..len_bytes], &object(page, len_bytes)[..]);
                    }
                }
                Act::Limit(blocks) => {
                    pool.set_limit(blocks * BLOCK_BYTES);
                    prop_assert!(pool.most <= blocks.min(32) && pool.most + 2 >= blocks.min(32));
                    model.set_limit(pool.most);
                }
                Act::Empty => {
                    pool.empty();
                    prop_assert!(pool.lists_fit());
                    model.objects.clear();
                    model.set_limit(pool.most);
                }
            }
            prop_assert_eq!(pool.used, model.used());
            prop_assert!(pool.used <= pool.fresh && pool.fresh <= 32);
        }
        for (page, len_bytes) in std::mem::take(&mut model.objects) {
            prop_assert_eq!(pool.take(page, &mut out), Some(len_bytes));
            prop_assert_eq!(&out[..len_bytes], &object(page, len_bytes)[..]);
        }
        prop_assert_eq!((pool.used, pool.newest, pool.oldest), (0, 0, 0));
        prop_assert!(pool.buckets.iter().all(|bucket| *bucket == 0));
    }
}

#[test]
fn its_memory_is_what_it_used_once() {
    let mut own = Own::new(64 * BLOCK_BYTES);
    let pool = own.pool();
    assert_eq!(pool.resident_bytes(), 0);
    assert!(pool.insert(1, &object(1, 3 * BLOCK_BYTES)));
    let lists = 32 * size_of::<Link>();
    assert_eq!(pool.resident_bytes(), 4 * BLOCK_BYTES + lists);
    pool.take(1, &mut [0; LONGEST]).unwrap();
    assert!(pool.insert(2, &object(2, 3 * BLOCK_BYTES)));
    assert_eq!(pool.resident_bytes(), 4 * BLOCK_BYTES + lists, "freed blocks are used first");
    pool.empty();
    assert_eq!((pool.resident_bytes(), pool.take(2, &mut [0; LONGEST])), (0, None));
    assert!(!pool.insert(3, &[0; LONGEST + 1]), "too long");
}
