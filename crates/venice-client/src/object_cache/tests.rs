use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

const MIB: usize = 1 << 20;

/// Memory of this process; bytes of a lost range are unavailable.
struct Local {
    bytes: Mutex<Vec<u8>>,
    lost: Mutex<Option<std::ops::Range<u64>>>,
}

impl Local {
    fn cache(len_bytes: usize, options: &CacheOptions) -> (Arc<Local>, ObjectCache) {
        let store = Local { bytes: Mutex::new(vec![0; len_bytes]), lost: Mutex::new(None) };
        let store = Arc::new(store);
        let cache = ObjectCache::new(Box::new(store.clone()), options).unwrap();
        (store, cache)
    }

    fn check(&self, at: u64, len: usize) -> Result<(), Error> {
        match &*self.lost.lock().unwrap() {
            Some(lost) if at < lost.end && at + len as u64 > lost.start => Err(Error::DonorLost {
                node: "node3".into(),
                offset: lost.start,
                len_bytes: lost.end - lost.start,
            }),
            _ => Ok(()),
        }
    }
}

impl Store for Arc<Local> {
    fn len_bytes(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        self.check(at, into.len())?;
        into.copy_from_slice(&self.bytes.lock().unwrap()[at as usize..][..into.len()]);
        Ok(())
    }

    fn write_at(&self, at: u64, from: &[u8]) -> Result<(), Error> {
        self.check(at, from.len())?;
        self.bytes.lock().unwrap()[at as usize..][..from.len()].copy_from_slice(from);
        Ok(())
    }
}

fn value(seed: usize, len: usize) -> Vec<u8> {
    let mut value = vec![seed as u8; len];
    value.iter_mut().step_by(61).enumerate().for_each(|(at, byte)| *byte = (seed + at * 7) as u8);
    value
}

#[test]
fn values_of_any_length_are_found() {
    let (_, cache) = Local::cache(32 * MIB, &CacheOptions::default());
    let lengths = [0, 1, 63, 64, 65, 4096, 100_000, MIB / 2, MIB / 2 + 1, MIB, MIB + 1, 5 * MIB];
    for (seed, len) in lengths.into_iter().enumerate() {
        cache.put(&seed.to_le_bytes(), &value(seed, len)).unwrap();
    }
    for (seed, len) in lengths.into_iter().enumerate() {
        assert!(cache.get(&seed.to_le_bytes()).unwrap().unwrap() == value(seed, len), "{len}");
    }
    let stats = cache.stats();
    assert_eq!((stats.objects, stats.evictions), (lengths.len() as u64, 0));
    assert_eq!(stats.value_bytes, lengths.iter().sum::<usize>() as u64);
    cache.put(&0usize.to_le_bytes(), b"new").unwrap();
    assert_eq!(cache.get(&0usize.to_le_bytes()).unwrap().unwrap(), b"new");
    assert!(cache.delete(&0usize.to_le_bytes()) && !cache.delete(&0usize.to_le_bytes()));
    assert_eq!(cache.get(&0usize.to_le_bytes()).unwrap(), None);
    cache.clear();
    let stats = cache.stats();
    assert_eq!((stats.objects, stats.value_bytes), (0, 0));
}

#[test]
fn get_protects_object_under_lru() {
    for (eviction, kept) in [(Eviction::LeastRecentlyUsed, true), (Eviction::Oldest, false)] {
        let options = CacheOptions { eviction, max_age: None };
        let (_, cache) = Local::cache(16 * MIB, &options);
        cache.put(b"asked for", &value(7, 10_000)).unwrap();
        for seed in 0..5000usize {
            cache.put(&seed.to_le_bytes(), &value(seed, 10_000)).unwrap();
            cache.get(b"asked for").unwrap();
        }
        assert_eq!(cache.contains(b"asked for"), kept, "{eviction:?}");
        assert!(cache.contains(&4999usize.to_le_bytes()) && !cache.contains(&0usize.to_le_bytes()));
        let stats = cache.stats();
        assert!(stats.value_bytes > stats.capacity_bytes * 7 / 10, "it is well filled: {stats:?}");
    }
}

#[test]
fn unused_class_gives_up_blocks() {
    let (_, cache) = Local::cache(16 * MIB, &CacheOptions::default());
    let fill = |len: usize, from: usize| {
        for seed in from..from + 40 * MIB / len {
            cache.put(&seed.to_le_bytes(), &value(seed, len)).unwrap();
        }
    };
    for (round, len) in [300, 70_000, 2000, 3 * MIB, 5000].into_iter().enumerate() {
        fill(len, round * 1_000_000);
        let stats = cache.stats();
        let of_this = stats.objects * len as u64;
        assert!(of_this > stats.capacity_bytes * 6 / 10, "{len}: {stats:?}");
    }
}

#[test]
fn old_objects_expire() {
    let options = CacheOptions { max_age: Some(Duration::ZERO), ..CacheOptions::default() };
    let (_, cache) = Local::cache(16 * MIB, &options);
    cache.put(b"key", b"value").unwrap();
    std::thread::sleep(Duration::from_millis(2));
    assert!(!cache.contains(b"key"));
    assert_eq!(cache.get(b"key").unwrap(), None);
    assert_eq!(cache.stats().expired, 1);
}

#[test]
fn lost_donor_loses_objects_and_room() {
    let (store, cache) = Local::cache(16 * MIB, &CacheOptions::default());
    for seed in 0..200usize {
        cache.put(&seed.to_le_bytes(), &value(seed, 60_000)).unwrap();
    }
    *store.lost.lock().unwrap() = Some(0..8 * MIB as u64);
    let found = (0..200usize).filter(|seed| {
        let got = cache.get(&seed.to_le_bytes()).unwrap();
        assert!(got.is_none() || got == Some(value(*seed, 60_000)));
        got.is_some()
    });
    let found = found.count() as u64;
    let stats = cache.stats();
    assert_eq!((found + stats.lost, stats.capacity_bytes), (200, 8 * MIB as u64));
    assert!(found > 0 && stats.lost > 0);
    for seed in 0..2000usize {
        cache.put(&seed.to_le_bytes(), &value(seed, 60_000)).unwrap();
    }
    assert!(cache.get(&1999usize.to_le_bytes()).unwrap() == Some(value(1999, 60_000)));
    *store.lost.lock().unwrap() = Some(0..16 * MIB as u64);
    assert!(matches!(cache.put(b"key", b"value"), Err(Error::NoRoom(_))));
}

#[test]
fn oversized_put_removes_old_value() {
    let (_, cache) = Local::cache(16 * MIB, &CacheOptions::default());
    cache.put(b"key", b"value").unwrap();
    assert!(matches!(cache.put(b"key", &vec![0; 5 * MIB]), Err(Error::Invalid(_))));
    assert!(!cache.contains(b"key"));
    assert!(matches!(cache.put(&vec![0; MAX_KEY_BYTES + 1], b""), Err(Error::Invalid(_))));
    let small: Box<dyn Store> =
        Box::new(Arc::new(Local { bytes: Mutex::new(vec![0; MIB]), lost: Mutex::new(None) }));
    assert!(matches!(ObjectCache::new(small, &CacheOptions::default()), Err(Error::Invalid(_))));
}

#[test]
fn threads_see_whole_values() {
    let (_, cache) = Local::cache(16 * MIB, &CacheOptions::default());
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let cache = &cache;
            scope.spawn(move || {
                for round in 0..2000usize {
                    let key = (round * 7 + thread) % 400;
                    let len = 1 + key * 300;
                    if round % 3 == thread % 3 {
                        cache.put(&key.to_le_bytes(), &value(key, len)).unwrap();
                    } else if let Some(got) = cache.get(&key.to_le_bytes()).unwrap() {
                        assert!(got == value(key, len), "key {key}");
                    }
                }
            });
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Every value found is the one put last, and the counters add up.
    #[test]
    fn matches_map_with_evictions(
        operations in prop::collection::vec((0u8..40, 0usize..2_500_000, 0u8..10), 1..80),
    ) {
        let (_, cache) = Local::cache(16 * MIB, &CacheOptions::default());
        let mut model: HashMap<u8, usize> = HashMap::new();
        for (at, (key, len, what)) in operations.into_iter().enumerate() {
            match what {
                0 => {
                    let was_there = cache.delete(&[key]);
                    prop_assert!(!was_there || model.contains_key(&key));
                    model.remove(&key);
                }
                1..5 => {
                    if let Some(got) = cache.get(&[key]).unwrap() {
                        let expected = model.get(&key).copied();
                        prop_assert_eq!(got.len(), expected.unwrap_or(usize::MAX));
                        prop_assert!(got == value(got.len(), got.len()));
                    }
                }
                _ => {
                    // Short ones mostly, and some of many blocks.
                    let len = if at % 5 == 0 { len } else { len % 100_000 };
                    cache.put(&[key], &value(len, len)).unwrap();
                    model.insert(key, len);
                    prop_assert!(cache.contains(&[key]));
                }
            }
            let stats = cache.stats();
            prop_assert!(stats.objects <= model.len() as u64);
            prop_assert!(stats.value_bytes <= stats.capacity_bytes);
        }
    }
}

#[test]
fn local_memory_cache_behaves_alike() {
    assert!(ObjectCache::in_local_memory(1 << 20, &CacheOptions::default()).is_err());
    let cache = ObjectCache::in_local_memory(MIN_CACHE_BYTES, &CacheOptions::default()).unwrap();
    let lengths = [10, 4096, 700_000, 3 * MIB];
    for (key, len) in lengths.into_iter().enumerate() {
        cache.put(&[key as u8], &value(key, len)).unwrap();
    }
    // The buffer is reused and holds the value alone, longer or shorter than the one before.
    let mut found = vec![1; 100_000];
    for (key, len) in lengths.into_iter().enumerate().rev() {
        assert!(cache.get_into(&[key as u8], &mut found).unwrap());
        assert_eq!(found, value(key, len));
    }
    assert!(!cache.get_into(b"x", &mut found).unwrap() && found.is_empty());
    assert_eq!((cache.stats().objects, cache.copies()), (4, Copies::default()));
}
