//! Runs that are saved and restored.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;

/// Worlds with packets everywhere: in rings, queues of switches, and sockets.
pub(super) static WORLDS: LazyLock<Vec<(Config, Expected)>> = LazyLock::new(|| {
    let incast = r#"
        topology = { kind = "leaf-spine", hosts-per-leaf = 4, leaves = 3, spines = 2 }
        [application]
        kind = "incast"
        servers = 11
        iterations = 3
        block = "64KiB"
        "#;
    let circuits = incast.replace("spines = 2", "spines = 2, spine.switch.kind = 'circuit'");
    let epoll = format!("{incast}client = 'epoll'");
    let mut configs =
        [memcached("udp"), memcached("tcp"), config(incast), config(&circuits), config(&epoll)];
    configs.iter_mut().skip(1).for_each(|config| config.heatmap = Picos(Picos::MICRO));
    configs.into_iter().map(|config| (config.clone(), expected(&config))).collect()
});

pub(super) type Expected = (Outcome, (Vec<u8>, usize));

/// The link that is captured.
pub(super) const LINK: &str = "host:1";

fn started(config: &Config, threads: usize) -> Warehouse {
    let mut warehouse = Warehouse::new(config, threads).unwrap();
    warehouse.capture(LINK).unwrap();
    warehouse
}

pub(super) fn ended(mut warehouse: Warehouse) -> Expected {
    warehouse.advance(1000 * SECOND);
    assert!(warehouse.is_over());
    (warehouse.outcome(), warehouse.captured())
}

fn expected(config: &Config) -> Expected {
    ended(started(config, 1))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn restored_run_goes_on(
        world in 0..5usize,
        stops in prop::collection::vec((0.0..1.0f64, 1..4usize), 1..4),
        threads in 1..4usize,
    ) {
        let (config, expected) = &WORLDS[world];
        let mut warehouse = started(config, threads);
        for (share, threads) in stops {
            let left = expected.0.virtual_ps.saturating_sub(warehouse.now());
            warehouse.advance(warehouse.now() + (left as f64 * share) as u64);
            let in_flight = (warehouse.in_flight(), warehouse.followed());
            let before = warehouse.outcome();
            warehouse = Warehouse::restore(config, threads, &warehouse.save().unwrap()).unwrap();
            prop_assert_eq!((warehouse.in_flight(), warehouse.followed()), in_flight);
            prop_assert_eq!(warehouse.outcome(), before);
        }
        prop_assert_eq!(&ended(warehouse), expected);
    }

    #[test]
    fn damaged_state_never_panics(
        at in any::<usize>(),
        byte in any::<u8>(),
        cut in any::<bool>(),
    ) {
        static STATE: LazyLock<Vec<u8>> = LazyLock::new(|| {
            let mut warehouse = started(&WORLDS[1].0, 2);
            warehouse.advance(SECOND / 500);
            warehouse.save().unwrap()
        });
        let mut state = STATE.clone();
        let at = at % state.len();
        match cut {
            true => state.truncate(at),
            false => state[at] = byte,
        }
        // Numbers of packets cannot be told from others: the checksum of the file guards those.
        let restored = Warehouse::restore(&WORLDS[1].0, 2, &state);
        prop_assert!(!cut || restored.is_err());
    }
}

#[test]
fn state_of_other_world_is_refused() {
    let state = started(&WORLDS[0].0, 1).save().unwrap();
    let refused = Warehouse::restore(&WORLDS[2].0, 1, &state).err().unwrap().to_string();
    assert!(refused.contains("not those of the configuration"), "{refused}");
    assert!(Warehouse::restore(&WORLDS[0].0, 1, b"nonsense").is_err());
}

/// Prints size and time of the state of 2000 nodes, beside a copy of as many bytes.
#[test]
#[ignore = "it measures"]
fn size_and_time_are_printed() {
    for transport in ["udp", "tcp"] {
        let config = config(&format!(
            "topology = {{ kind = 'clos' }}\n\
             [application]\nkind = 'memcached'\ntransport = '{transport}'\nrequests = 1000\n"
        ));
        let mut warehouse = Warehouse::new(&config, 2).unwrap();
        warehouse.advance(SECOND / 5);
        let timed = |what: &str, bytes: usize, run: &mut dyn FnMut()| {
            let best = (0..5).map(|_| {
                let start = std::time::Instant::now();
                run();
                start.elapsed().as_secs_f64()
            });
            let best = best.fold(f64::INFINITY, f64::min);
            let rate = bytes as f64 / best / 1e6;
            println!("{transport}: {what}: {:.1} ms, {rate:.0} MB/s", best * 1e3);
        };
        let state = warehouse.save().unwrap();
        let (nodes, bytes) = (warehouse.shared.topology.hosts(), state.len());
        println!("{transport}: {nodes} nodes, {} events: {bytes} B", warehouse.events());
        timed("save", bytes, &mut || drop(std::hint::black_box(warehouse.save())));
        for threads in [2, 1] {
            let restore = || Warehouse::restore(&config, threads, &state).unwrap();
            let what = format!("restore on {threads} threads");
            timed(&what, bytes, &mut || drop(std::hint::black_box(restore())));
        }
        timed("copy", bytes, &mut || drop(std::hint::black_box(state.clone())));
    }
}
