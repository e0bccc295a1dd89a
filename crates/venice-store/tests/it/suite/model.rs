//! Any sequence of transactions has the same effect as on a map.

use super::watching::next_of;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::BTreeMap;
use venice_store::{Condition, Outcome, Revision, Store, StoreChange, Transaction};

const SEQUENCES: usize = 12;
const KEYS: u8 = 5;

/// A transaction, relative to the content of the store when it is made.
#[derive(Debug, Clone)]
struct Planned {
    /// Key of each condition, and whether it holds.
    conditions: Vec<(u8, bool)>,
    /// New value of each key; `None` removes.
    changes: Vec<(u8, Option<u8>)>,
}

fn planned() -> impl Strategy<Value = Vec<Planned>> {
    let conditions = vec((0..KEYS, prop::bool::weighted(0.8)), 0..3);
    let changes = vec((0..KEYS, any::<Option<u8>>()), 0..5);
    let one = (conditions, changes);
    vec(one.prop_map(|(conditions, changes)| Planned { conditions, changes }), 1..16)
}

pub async fn as_the_model<S: Store>(next: impl AsyncFn() -> S) {
    let mut runner = TestRunner::default();
    for _ in 0..SEQUENCES {
        let sequence = planned().new_tree(&mut runner).unwrap().current();
        follow(&next().await, &sequence).await;
    }
}

type Model = BTreeMap<String, (Vec<u8>, Revision)>;

async fn follow<S: Store>(store: &S, sequence: &[Planned]) {
    let began = store.load().await.unwrap().revision;
    let mut watch = store.watch(began);
    let (mut model, mut told) = (Model::new(), BTreeMap::new());
    let mut revision = began;
    for planned in sequence {
        let conditions: Vec<_> =
            planned.conditions.iter().map(|(key, is_so)| condition(&model, *key, *is_so)).collect();
        let changes: Vec<_> =
            planned.changes.iter().map(|(key, value)| change(*key, *value)).collect();
        let holds = planned.conditions.iter().all(|(_, is_so)| *is_so);
        let before = model.clone();
        match store.commit(Transaction { conditions, changes: changes.clone() }).await.unwrap() {
            Outcome::Committed(at) => {
                assert!(holds, "{planned:?} in {sequence:?}");
                assert!(at >= revision);
                revision = at;
                apply(&mut model, changes, at);
            }
            Outcome::Conflict(found) => {
                assert!(!holds, "{planned:?} in {sequence:?}");
                for entry in found {
                    assert_eq!(model.get(&entry.key), Some(&(entry.value, entry.changed_at)));
                }
            }
        }
        let entries = store.load().await.unwrap().entries;
        let all: Model =
            entries.into_iter().map(|entry| (entry.key, (entry.value, entry.changed_at))).collect();
        assert_eq!(all, model, "{sequence:?}");
        if model != before {
            let batch = next_of(&mut watch).await.unwrap();
            assert_eq!(batch.revision, revision);
            apply(&mut told, batch.changes, batch.revision);
            assert_eq!(told, model, "{sequence:?}");
        }
    }
}

fn apply(model: &mut Model, changes: Vec<StoreChange>, at: Revision) {
    for change in changes {
        match change.value {
            Some(value) => drop(model.insert(change.key, (value, at))),
            None => drop(model.remove(&change.key)),
        }
    }
}

fn name(key: u8) -> String {
    format!("key{key}")
}

fn change(key: u8, value: Option<u8>) -> StoreChange {
    StoreChange { key: name(key), value: value.map(|value| vec![value]), lease: None }
}

fn condition(model: &Model, key: u8, is_so: bool) -> Condition {
    let at = model.get(&name(key)).map(|(_, at)| *at);
    match (is_so, at) {
        (true, None) => Condition::is_absent(name(key)),
        (true, Some(at)) => Condition::is_as_at(name(key), at),
        (false, Some(at)) => Condition::is_as_at(name(key), Revision(at.0 + 1)),
        (false, None) => Condition::is_as_at(name(key), Revision(1)),
    }
}
