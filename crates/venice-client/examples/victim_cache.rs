//! A victim store for a small cache: objects evicted from the near cache are put into borrowed
//! memory, which is queried before the slow source (section 4 of the composable-rack paper).
//!
//! ```text
//! venice up
//! cargo run --release -p venice-client --example victim_cache -- 64
//! venice down
//! ```
//! The argument is the number of MiB to borrow. Every value read is verified.

use std::collections::{BTreeMap, VecDeque};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use venice_client::{CacheOptions, Error, MemoryOptions, ObjectCache, Rack};

/// The number of objects, their size in bytes, and the number that fits the near cache.
const OBJECTS: u64 = 600;
const OBJECT_BYTES: usize = 16 << 10;
const NEAR_OBJECTS: usize = 100;
const REQUESTS: u64 = 3000;
/// The latency of the source: a disk, a database, another service.
const SOURCE_TAKES: Duration = Duration::from_millis(1);

fn main() -> ExitCode {
    let size_mib = match std::env::args().nth(1).map(|text| text.parse::<u64>()) {
        None => 64,
        Some(Ok(size_mib)) => size_mib,
        Some(Err(_)) => {
            eprintln!("victim_cache: missing size: give the number of MiB to borrow, at least 16");
            return ExitCode::from(2);
        }
    };
    // Each error is one line that names the remedy.
    match Rack::connect().and_then(|rack| compare(&rack, size_mib << 20)) {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("victim_cache: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves the same requests without and with a victim store of `size_bytes`; returns a report.
///
/// # Errors
/// If the memory is not available or unreachable.
pub fn compare(rack: &Rack, size_bytes: u64) -> Result<String, Error> {
    let mut options = MemoryOptions::default();
    options.purpose = "victim store".into();
    let store = rack.object_cache(size_bytes, &options, &CacheOptions::default())?;
    let alone = serve(None)?;
    let with_store = serve(Some(&store))?;
    let copies = store.copies().copies;
    Ok(format!(
        "{REQUESTS} requests for {OBJECTS} objects of {} KiB, of which {NEAR_OBJECTS} fit the near cache\n\
         alone:               {alone}\n\
         with a victim store: {with_store}\n\
         the store: {} MiB in copies: {copies}; {} objects, {} left for others",
        OBJECT_BYTES >> 10,
        store.stats().capacity_bytes >> 20,
        store.stats().objects,
        store.stats().evictions
    ))
}

/// Number of requests by where they were answered.
#[derive(Default)]
struct Answers {
    near: u64,
    store: u64,
    source: u64,
    took: Duration,
}

impl std::fmt::Display for Answers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Answers { near, store, source, took } = self;
        write!(f, "near {near}, store {store}, source {source}; {:.2} s", took.as_secs_f64())
    }
}

fn serve(store: Option<&ObjectCache>) -> Result<Answers, Error> {
    let (mut near, mut answers) = (NearCache::default(), Answers::default());
    let began = Instant::now();
    for object in requests() {
        let value = if let Some(value) = near.get(object) {
            answers.near += 1;
            value
        } else if let Some(value) = store.map(|it| it.get(&key(object))).transpose()?.flatten() {
            answers.store += 1;
            value
        } else {
            answers.source += 1;
            ask_source(object)
        };
        assert!(value == contents(object), "object {object} is another");
        if let Some((victim, value)) = near.put(object, value)
            && let Some(store) = store
        {
            store.put(&key(victim), &value)?;
        }
    }
    answers.took = began.elapsed();
    Ok(answers)
}

/// Generates the requests: few objects often, most of them rarely.
fn requests() -> impl Iterator<Item = u64> {
    let mut seed = 1u64;
    (0..REQUESTS).map(move |_| {
        // A xorshift generator.
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let of = if seed.is_multiple_of(4) { OBJECTS } else { OBJECTS / 3 };
        (seed >> 8) % of
    })
}

fn key(object: u64) -> [u8; 8] {
    object.to_le_bytes()
}

fn ask_source(object: u64) -> Vec<u8> {
    std::thread::sleep(SOURCE_TAKES);
    contents(object)
}

fn contents(object: u64) -> Vec<u8> {
    (0..OBJECT_BYTES as u64).map(|at| (object * 31 + at) as u8).collect()
}

/// The small cache; evicts the object that came first.
#[derive(Default)]
struct NearCache {
    values: BTreeMap<u64, Vec<u8>>,
    order: VecDeque<u64>,
}

impl NearCache {
    fn get(&self, object: u64) -> Option<Vec<u8>> {
        self.values.get(&object).cloned()
    }

    /// Stores an object; returns the evicted one with its value.
    fn put(&mut self, object: u64, value: Vec<u8>) -> Option<(u64, Vec<u8>)> {
        if self.values.insert(object, value).is_none() {
            self.order.push_back(object);
        }
        let victim = (self.order.len() > NEAR_OBJECTS).then(|| self.order.pop_front()).flatten()?;
        self.values.remove(&victim).map(|value| (victim, value))
    }
}
