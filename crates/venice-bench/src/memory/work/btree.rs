//! Random reads and updates of records in a B-tree, four to one: what the Venice paper has Berkeley DB
//! do (section 4.1).

use std::collections::BTreeMap;

use anyhow::Result;

use super::{Done, WorkArgs, Workload, digest};
use crate::pattern::{Random, word};

/// Words of a record: its version, and what follows from key and version.
const WORDS: usize = 13;
/// Bytes of a record with its key.
const RECORD_BYTES: u64 = 8 + 8 * WORDS as u64;
/// Operations in one round.
const OPERATIONS: u64 = 50_000;

#[derive(Debug)]
pub(super) struct Btree {
    records: BTreeMap<u64, [u64; WORDS]>,
    random: Random,
}

impl Workload for Btree {
    fn build(args: &WorkArgs) -> Result<Self> {
        let count = (args.size.0 / RECORD_BYTES).max(16);
        let records = (0..count).map(|key| (key, record(key, 0))).collect();
        Ok(Self { records, random: Random::new(0x6274_7265) })
    }

    fn run(&mut self, rounds: u64) -> Done {
        let mut done = Done { operations: rounds * OPERATIONS, wrong: 0 };
        let count = self.records.len() as u64;
        for _ in 0..done.operations {
            let key = self.random.below(count);
            let update = self.random.below(5) == 0;
            let Some(found) = self.records.get_mut(&key) else {
                done.wrong += 1;
                continue;
            };
            done.wrong += u64::from(*found != record(key, found[0]));
            if update {
                *found = record(key, found[0] + 1);
            }
        }
        done
    }

    fn digests(&self) -> Vec<u64> {
        let keys = digest::of_words(self.records.keys().copied());
        vec![digest::of_words(self.records.values().flatten().copied()), keys]
    }
}

/// The record that belongs to `key` in `version`.
fn record(key: u64, version: u64) -> [u64; WORDS] {
    let mut words = [version; WORDS];
    for (place, slot) in words.iter_mut().enumerate().skip(1) {
        *slot = word(key ^ version << 40, place as u64);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_word_is_seen() {
        let mut btree = Btree {
            records: (0..50).map(|key| (key, record(key, 0))).collect(),
            random: Random::new(5),
        };
        assert_eq!(btree.run(1).wrong, 0);
        let versions: u64 = btree.records.values().map(|record| record[0]).sum();
        let share = versions as f64 / OPERATIONS as f64;
        assert!((0.18..0.22).contains(&share), "{share} of all were updates");
        btree.records.get_mut(&7).unwrap()[3] ^= 1;
        assert!(btree.run(1).wrong > 0);
    }
}
