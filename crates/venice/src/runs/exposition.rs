//! Programs as metrics, for a collector of text files: an agent may not read the programs' own
//! records.

use venice_observe::{Exposition, Label};
use venice_recipient::runs::{RunRow, total_bytes};

/// Returns the metrics of these runs in Prometheus' text format. A run is known by its process id,
/// its user and its command.
pub fn text(rows: &[RunRow]) -> String {
    let mut metrics = Exposition::default();
    let each = |value: &dyn Fn(&RunRow) -> Option<f64>| -> Vec<(Vec<Label>, f64)> {
        rows.iter().filter_map(|row| Some((labels(row), value(row)?))).collect()
    };
    metrics.gauges(
        "venice_program_local_bytes",
        "Budget of local memory of all processes of the run",
        each(&|row| Some(row.local_bytes as f64)),
    );
    metrics.gauges(
        "venice_program_resident_bytes",
        "Resident anonymous memory of all processes of the run",
        each(&|row| Some(row.resident_bytes as f64)),
    );
    metrics.gauges(
        "venice_program_unmanaged_bytes",
        "Memory of the run that stays local whatever its budget is",
        each(&|row| Some(total_bytes(&row.unmanaged) as f64)),
    );
    metrics.gauges(
        "venice_program_remote_bytes",
        "Far memory of the run in use",
        each(&|row| Some(row.remote_bytes as f64)),
    );
    metrics.gauges(
        "venice_program_borrowed_bytes",
        "Far memory that the run has borrowed",
        each(&|row| Some(row.borrowed_bytes as f64)),
    );
    metrics.counters(
        "venice_program_faults_total",
        "Page faults of the run that Venice served",
        each(&|row| Some(row.faults as f64)),
    );
    metrics.gauges(
        "venice_program_fault_p50_seconds",
        "Median time of the run's recent faults",
        each(&|row| Some(row.fault_p50_us? / 1e6)),
    );
    metrics.gauges(
        "venice_program_fault_p99_seconds",
        "99th percentile of the time of the run's recent faults",
        each(&|row| Some(row.fault_p99_us? / 1e6)),
    );
    metrics.gauges(
        "venice_program_missing_replica_slabs",
        "Slabs of the run that lack a copy, or a fragment, and can be read",
        each(&|row| Some(row.short_slabs.saturating_sub(row.lost_slabs) as f64)),
    );
    metrics.gauges(
        "venice_program_lost_slabs",
        "Slabs of the run that are lost: no copy is left, or too few fragments",
        each(&|row| Some(row.lost_slabs as f64)),
    );
    metrics.gauges(
        "venice_program_lost_donors",
        "Donors of the run that died or took their memory back",
        each(&|row| Some(row.lost_donors.len() as f64)),
    );
    metrics.text()
}

fn labels(row: &RunRow) -> Vec<Label> {
    // Not the arguments: they may be secret.
    let program = row.command.split_whitespace().next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default();
    let command = venice_control::to_label(program);
    vec![("run", row.run.to_string()), ("user", row.user.clone()), ("command", command)]
}
