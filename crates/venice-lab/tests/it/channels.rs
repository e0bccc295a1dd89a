//! `venice bench channels --quick` from end to end.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use venice_lab::channels::{
    ChannelsArgs, ChannelsReport, Medium, Operation, Part, System, execute,
};
use venice_wire::ByteSize;

/// All runs pin their ends to the same processors, so they take turns.
static PROCESSORS: Mutex<()> = Mutex::new(());

/// Runs it with `--quick`; returns its report.
fn run(only: Vec<Part>, port: Vec<Medium>, plots: Option<&Path>) -> ChannelsReport {
    let _turn = PROCESSORS.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("channels.json");
    execute(ChannelsArgs {
        quick: true,
        only,
        port,
        sizes: Some(vec![ByteSize(64), ByteSize(64 << 10)]),
        json: Some(json.clone()),
        plots: plots.map(Path::to_owned),
    })
    .unwrap();
    let report: ChannelsReport =
        serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    for series in &report.series {
        let told = !series.points.is_empty() || series.absent.is_some();
        assert!(told, "{} is silent", series.name());
    }
    report
}

#[test]
fn quick_run_measures_every_channel() {
    let folder = tempfile::tempdir().unwrap();
    let only = vec![Part::Raw, Part::Crma, Part::Rdma, Part::Qpair, Part::Figures];
    let report = run(only, vec![], Some(folder.path()));
    for (medium, operation) in [
        (Medium::Shm, Operation::Read),
        (Medium::Shm, Operation::BulkWrite),
        (Medium::Udp, Operation::Write),
        (Medium::Udp, Operation::BulkRead),
        (Medium::Udp, Operation::Message),
        (Medium::Paper, Operation::Read),
    ] {
        let found = report.series.iter().find(|one| {
            (one.system, one.medium, one.operation) == (System::Venice, medium, operation)
        });
        let latency = found.unwrap().at(64).unwrap().latency.unwrap();
        assert!(latency.mean_ns > 0.0, "{medium:?} {operation:?}: {latency:?}");
    }
    assert!(!report.aims.is_empty());
    assert!(!report.emulation.is_empty());
    let figure18 = report.figure18.unwrap();
    assert!(figure18.points.iter().all(|point| point.virtual_time.crma_bytes_per_s > 0.0));
    if let Some(figure17) = report.figure17 {
        let rates = || figure17.patterns.iter().flat_map(|rates| rates.measured.operations_per_s);
        assert!(rates().all(|rate| rate > 0.0), "{figure17:?}");
    }
    for file in ["index.html", "figure-18.svg", "one-sided-reads-latency-udp.svg"] {
        assert!(folder.path().join(file).is_file(), "{file}");
    }
}

#[test]
fn every_peer_has_figures() {
    let report = run(vec![Part::Peers], vec![Medium::Shm], None);
    for system in [System::Libfabric, System::Ucx] {
        let own = report.series.iter().find(|one| one.system == system).unwrap();
        assert!(own.at(64).is_some_and(|point| point.latency.is_some()), "{own:?}");
    }
}

#[test]
fn invalid_sizes_are_refused() {
    for size in [0, (16 << 20) + 1] {
        let args = ChannelsArgs { sizes: Some(vec![ByteSize(size)]), ..ChannelsArgs::default() };
        assert!(execute(args).is_err(), "{size}");
    }
}
