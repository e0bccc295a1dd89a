//! Runs on several ranks, here threads.

use std::rc::Rc;

use proptest::prelude::*;
use venice_experiment::ranks::{Leader, follow};
use venice_experiment::{Point, WorldKind};
use venice_simkernel::ranks::in_threads;

use super::checkpoints::{LINK, WORLDS, ended};
use super::*;

const KIND: WorldKind = WorldKind::of::<Warehouse>();

fn point(config: &Config) -> Point {
    let config = toml::Table::try_from(config).unwrap();
    Point { coordinates: Vec::new(), config }
}

/// Runs `lead` at rank 0, and the other ranks beside it.
fn led<R: Send>(count: usize, lead: impl Fn(Rc<Leader>) -> R + Sync) -> R {
    let run = |ranks: Rc<dyn Ranks>| match ranks.number() {
        0 => Some(lead(Leader::new(ranks).unwrap())),
        _ => {
            follow(&ranks, &[KIND], &|| false).unwrap();
            None
        }
    };
    in_threads(count, run).swap_remove(0).expect("rank 0 leads")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// From ranks to threads and back, at random times.
    #[test]
    fn ranks_change_nothing(
        world in 0..5usize,
        counts in (1..4usize, 1..4usize),
        threads in 1..4usize,
        stops in prop::array::uniform3(0.0..0.6f64),
    ) {
        let (config, expected) = &WORLDS[world];
        let (point, all) = (point(config), expected.0.virtual_ps as f64);
        let until = |stop: usize| (stops[..=stop].iter().sum::<f64>() / 1.8 * all) as u64;
        let state = led(counts.0, |leader| {
            let mut own = leader.start(&KIND, &point).unwrap();
            own.capture(LINK).unwrap();
            own.advance(until(0));
            own.save().unwrap()
        });
        let mut warehouse = Warehouse::restore(config, threads, &state).unwrap();
        warehouse.advance(until(1));
        let (before, state) = (warehouse.outcome(), warehouse.save().unwrap());
        let ran = led(counts.1, |leader| {
            let mut own = leader.restore(&KIND, &point, &state).unwrap();
            let restored = (own.outcome(), own.events());
            own.advance(until(2));
            let state = own.save().unwrap();
            own.advance(1000 * SECOND);
            assert!(own.is_over());
            (restored, state, own.progress(), (own.outcome(), own.captured()))
        });
        let (restored, state, progress, ended_on_ranks) = ran;
        prop_assert_eq!(restored.1, before.events);
        prop_assert_eq!(restored.0, before);
        prop_assert_eq!(&ended_on_ranks, expected);
        prop_assert_eq!(progress.unwrap().0, expected.0.counts["done"]);
        prop_assert_eq!(&ended(Warehouse::restore(config, threads, &state).unwrap()), expected);
    }
}

#[test]
fn each_rank_has_its_part() {
    let config = &WORLDS[1].0;
    let hosts = in_threads(3, |ranks| {
        let own = OnRanks::new(config, ranks, None).unwrap().own;
        own.engine.parts().map(WarehousePart::nodes).map(|(hosts, _)| hosts).collect::<Vec<_>>()
    });
    assert_eq!(hosts, [[8], [8], [8]]);
}

#[test]
fn ranks_without_part_are_refused() {
    let single = config("topology = { kind = 'single', hosts = 25 }");
    let instant = config("topology = { kind = 'leaf-spine', hosts-per-leaf = 3, leaves = 3 }");
    let refused = |config, count| Warehouse::check_ranks(config, count).unwrap_err().to_string();
    assert_eq!(Warehouse::check_ranks(&instant, 3), Ok(()));
    assert_eq!(refused(&instant, 4), "topology: 4 ranks, and it has 3 parts: run it on 1 to 3");
    let said = refused(&single, 2);
    assert!(said.contains("one part") && said.contains("without --ranks"), "{said}");
    assert_eq!(Warehouse::check_ranks(&single, 1), Ok(()));
}

#[test]
fn stop_of_any_rank_is_known() {
    let point = point(&WORLDS[0].0);
    let stopped = in_threads(3, |ranks| {
        let number = ranks.number();
        if number > 0 {
            follow(&ranks, &[KIND], &|| number == 2).unwrap();
            return true;
        }
        let leader = Leader::new(ranks).unwrap();
        let mut own = leader.start(&KIND, &point).unwrap();
        let before = leader.is_asked_to_stop();
        own.advance(SECOND / 1000);
        !before && leader.is_asked_to_stop()
    });
    assert_eq!(stopped, [true; 3]);
}
