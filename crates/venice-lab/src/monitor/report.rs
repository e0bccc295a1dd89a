//! The report of `venice bench monitor`, as JSON, tables and page.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::StoreKind;
use super::agent::Agents;
use super::load::Measured;
use crate::report_table::ReportTable;
use venice_measure::machine::Machine;

/// Aim for the p99 of an allocation with its commit, in milliseconds.
const AIM_MS: f64 = 1.0;

/// The report that `venice bench monitor --json` writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MonitorReport {
    /// Machine it was measured on.
    pub machine: Machine,
    /// Load average of the minute before.
    pub load: f64,
    /// Agents that reported once a second.
    pub agents: u32,
    /// Agents among them that lent memory.
    pub donors: u32,
    /// Rate of requests for memory, a second.
    pub requests_per_s: f64,
    /// Duration of the measurement, in seconds.
    pub seconds: f64,
    /// Time for a durable write of 4 KiB in the folder of the tables' file.
    pub durable_write: LatencyReport,
    /// Figures of each store.
    pub stores: Vec<StoreReport>,
}

/// Figures of a Monitor Node with one store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoreReport {
    /// The store.
    pub store: StoreKind,
    /// Time until all agents had joined, seconds.
    pub joined_s: f64,
    /// Processors that the Monitor Node kept busy, on average.
    pub monitor_cores: f64,
    /// Processors that its store's process kept busy, if there is one.
    pub store_cores: Option<f64>,
    /// Memory of the Monitor Node, bytes.
    pub resident_bytes: u64,
    /// Latency of heartbeats.
    pub heartbeats: LatencyReport,
    /// Heartbeats that were skipped, because earlier ones had no answer.
    pub late_heartbeats: u64,
    /// Latency of a request for one slab, with all its durable writes.
    pub requests: LatencyReport,
    /// Part until the donor's prepare: the request's way and the choice of a donor.
    pub to_prepare: LatencyReport,
    /// Part from there until the donor's commit: the answer, its durable record, and the call.
    pub to_commit: LatencyReport,
    /// Part from there until the recipient's answer: the answers' ways, and the last record.
    pub to_recipient: LatencyReport,
    /// Requests that were skipped, because too many had no answer.
    pub late_requests: u64,
    /// Requests that were refused, because donors were late with their heartbeats.
    pub refused: u64,
    /// Latency of releases.
    pub releases: LatencyReport,
}

/// A latency distribution.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LatencyReport {
    /// Number of samples.
    pub count: u64,
    /// Median, milliseconds.
    pub p50_ms: f64,
    /// 99th percentile, milliseconds.
    pub p99_ms: f64,
    /// Maximum, milliseconds.
    pub max_ms: f64,
}

impl LatencyReport {
    pub(super) fn of(histogram: &Histogram<u64>) -> Self {
        let at = |share: f64| histogram.value_at_quantile(share) as f64 / 1e6;
        Self {
            count: histogram.len(),
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            max_ms: histogram.max() as f64 / 1e6,
        }
    }
}

pub(super) fn of(store: StoreKind, agents: &Agents, measured: &Measured) -> StoreReport {
    let span_s = measured.span.as_secs_f64();
    let [to_prepare, to_commit, to_recipient] = &measured.legs;
    StoreReport {
        store,
        joined_s: agents.joined_in.as_secs_f64(),
        monitor_cores: measured.monitor_s / span_s,
        store_cores: measured.store_s.map(|used_s| used_s / span_s),
        resident_bytes: measured.resident_bytes,
        heartbeats: LatencyReport::of(&measured.heartbeats),
        late_heartbeats: measured.late_heartbeats,
        requests: LatencyReport::of(&measured.requests),
        to_prepare: LatencyReport::of(to_prepare),
        to_commit: LatencyReport::of(to_commit),
        to_recipient: LatencyReport::of(to_recipient),
        late_requests: measured.late_requests,
        refused: measured.refused,
        releases: LatencyReport::of(&measured.releases),
    }
}

/// Renders the report as text for a terminal.
pub(super) fn text(report: &MonitorReport) -> String {
    let MonitorReport { machine, load, agents, donors, requests_per_s, seconds, .. } = report;
    let LatencyReport { p50_ms, p99_ms, .. } = report.durable_write;
    let mut text = format!(
        "{}; load before: {load:.2}.\n{agents} agents report once a second, {donors} of them \
         lend, {requests_per_s} requests a second for one slab each, {seconds} s; \
         the Monitor Node has the first processor, all others share the rest. To make 4 KiB durable takes \
         {p50_ms:.3} ms here (p99 {p99_ms:.3} ms).\n\n{}\n",
        machine.line(),
        cost(report).text()
    );
    text += &waits(report).text();
    text
}

fn cost(report: &MonitorReport) -> ReportTable {
    let head = ["store", "all joined", "Monitor Node's processors", "store's processors", "memory"];
    let mut table = ReportTable::new("Resources", &head, 1);
    for store in &report.stores {
        table.rows.push(vec![
            store.store.name().to_owned(),
            format!("{:.1} s", store.joined_s),
            format!("{:.2}", store.monitor_cores),
            store.store_cores.map_or_else(|| "-".to_owned(), |cores| format!("{cores:.2}")),
            format!("{:.0} MiB", store.resident_bytes as f64 / f64::from(1 << 20)),
        ]);
        let met = if store.monitor_cores <= 1.0 { "met" } else { "MISSED" };
        table.notes.push(format!(
            "{}: within one processor: {met} ({:.2})",
            store.store.name(),
            store.monitor_cores
        ));
    }
    table
}

fn waits(report: &MonitorReport) -> ReportTable {
    let head = ["store", "operation", "count", "p50 ms", "p99 ms", "max ms", "late"];
    let mut table = ReportTable::new("Latencies", &head, 2);
    for store in &report.stores {
        let rows = [
            ("heartbeat", store.heartbeats, Some(store.late_heartbeats)),
            ("memory granted", store.requests, Some(store.late_requests)),
            ("- until its donor prepares", store.to_prepare, None),
            ("- until its donor commits", store.to_commit, None),
            ("- until the recipient has it", store.to_recipient, None),
            ("memory given back", store.releases, None),
        ];
        for (what, latency, late) in rows {
            table.rows.push(vec![
                store.store.name().to_owned(),
                what.to_owned(),
                latency.count.to_string(),
                format!("{:.3}", latency.p50_ms),
                format!("{:.3}", latency.p99_ms),
                format!("{:.3}", latency.max_ms),
                late.map_or_else(|| "-".to_owned(), |late| late.to_string()),
            ]);
        }
        if store.refused > 0 {
            table.notes.push(format!(
                "{}: {} requests refused: donors were late with their heartbeats",
                store.store.name(),
                store.refused
            ));
        }
        if store.store == StoreKind::File {
            let p99_ms = store.requests.p99_ms;
            let met = if p99_ms < AIM_MS { "met" } else { "MISSED" };
            table.notes.push(format!(
                "{}: memory granted, p99 under {AIM_MS} ms: {met} ({p99_ms:.3} ms)",
                store.store.name()
            ));
        }
    }
    table
}
