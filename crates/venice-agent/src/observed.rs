//! The agent as probes and Prometheus see it. Its metrics are those of its last report to the
//! Monitor Node, and what it knows besides.

use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use venice_control::{DeviceReport, HeartbeatReport, HeldGrant, HeldState, ResourceKind};
use venice_observe::{Exposition, Label, NotReady, Source};
use venice_rack::pressure::PressureLevel;
use venice_wire::SLAB_BYTES;

use crate::identity::NodeIdentity;
use crate::lender::Lender;
use crate::ports::FramePorts;

/// Heartbeats without an acknowledgement after which an agent is not ready, and the least time.
const MISSED_HEARTBEATS: u32 = 5;
const LEAST_SILENCE: Duration = Duration::from_secs(5);

/// State of an agent for `--metrics`.
#[derive(Debug)]
pub(crate) struct Observed {
    identity: NodeIdentity,
    lender: Arc<Lender>,
    frames: FramePorts,
    started: SystemTime,
    membership: Mutex<Membership>,
}

#[derive(Debug, Default)]
struct Membership {
    /// Interval of heartbeats; `None`: the agent is not registered.
    heartbeat_interval: Option<Duration>,
    acknowledged: Option<Instant>,
    /// The last error of a Monitor Node, since the last acknowledgement.
    error: Option<String>,
    report: Option<HeartbeatReport>,
}

impl Observed {
    pub(crate) fn new(identity: NodeIdentity, lender: Arc<Lender>, frames: FramePorts) -> Self {
        let (started, membership) = (SystemTime::now(), Mutex::default());
        Self { identity, lender, frames, started, membership }
    }

    /// Notes a registration, or (`None`) that a new one is needed.
    pub(crate) fn note_registered(&self, heartbeat_interval: Option<Duration>) {
        let mut membership = self.membership();
        membership.heartbeat_interval = heartbeat_interval;
        membership.acknowledged = heartbeat_interval.map(|_| Instant::now());
        membership.error = None;
    }

    /// Notes a Monitor Node's acknowledgement.
    pub(crate) fn note_acknowledged(&self) {
        let mut membership = self.membership();
        membership.acknowledged = Some(Instant::now());
        membership.error = None;
    }

    /// Notes that a Monitor Node cannot be reached, or refuses this agent.
    pub(crate) fn note_error(&self, error: String) {
        self.membership().error = Some(error);
    }

    /// Keeps the last report.
    pub(crate) fn note_report(&self, report: &HeartbeatReport) {
        self.membership().report = Some(report.clone());
    }

    fn membership(&self) -> MutexGuard<'_, Membership> {
        self.membership.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> Result<(), NotReady> {
        let membership = self.membership();
        let Some(interval) = membership.heartbeat_interval else {
            let why = membership.error.as_deref().unwrap_or("the first call is under way");
            return Err(NotReady(format!("not registered at the Monitor Node yet: {why}")));
        };
        let silence = membership.acknowledged.map_or(Duration::MAX, |at| at.elapsed());
        if silence > (interval * MISSED_HEARTBEATS).max(LEAST_SILENCE) {
            let why = membership.error.as_deref().unwrap_or("there is no answer");
            return Err(NotReady(format!(
                "no Monitor Node has acknowledged a heartbeat for {} s; grants stay in force: {why}",
                silence.as_secs()
            )));
        }
        Ok(())
    }

    /// Adds what needs no report.
    fn expose_own(&self, metrics: &mut Exposition) {
        metrics.gauge(
            "venice_agent_ready",
            "1 if the agent is registered and its heartbeats are acknowledged, else 0",
            f64::from(self.check().is_ok()),
        );
        let since_1970 = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        metrics.gauge(
            "venice_agent_start_time_seconds",
            "Start of the agent's process, in seconds since 1970",
            since_1970.as_secs_f64(),
        );
        let acknowledged = self.membership().acknowledged;
        metrics.gauges(
            "venice_agent_acknowledgement_age_seconds",
            "Time since a Monitor Node last acknowledged a heartbeat; absent before the first",
            acknowledged.map(|at| (Vec::new(), at.elapsed().as_secs_f64())),
        );
        metrics.gauge(
            "venice_agent_certificate_expiry_timestamp_seconds",
            "End of the node's certificate, in seconds since 1970",
            self.identity.expires_s() as f64,
        );
        metrics.counters(
            "venice_agent_refused_calls_total",
            "Connections and calls that the agent refused, by reason",
            self.identity
                .tls
                .refused()
                .by_reason()
                .map(|(reason, count)| (label("reason", reason), count as f64)),
        );
        let (own, relayed) =
            (self.frames.udp().total_traffic(), self.frames.with_relay(|it| it.total_traffic()));
        let relayed = relayed.unwrap_or_default();
        let directions = [
            ("received", own.received_bytes + relayed.received_bytes),
            ("sent", own.sent_bytes + relayed.sent_bytes),
        ];
        metrics.counters(
            "venice_agent_udp_bytes_total",
            "Payload of accepted datagrams of the UDP port, and of the relay for this node; tests of \
             links by other nodes count, those by this node do not",
            directions.map(|(direction, bytes)| (label("direction", direction), bytes as f64)),
        );
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let bytes = |key| status_bytes(&status, key).map(|bytes| (Vec::new(), bytes as f64));
        metrics.gauges(
            "venice_agent_locked_bytes",
            "Locked address space of the agent's process, touched or not",
            bytes("VmLck:"),
        );
        metrics.gauges(
            "venice_agent_resident_bytes",
            "Resident memory of the agent's process, lent memory included",
            bytes("VmRSS:"),
        );
        let withheld = self.lender.state().node.core().withheld_slabs();
        metrics.gauge(
            "venice_agent_withheld_bytes",
            "Memory to lend that was returned to the kernel, for this machine's own programs",
            slab_bytes(withheld),
        );
    }
}

fn expose_report(metrics: &mut Exposition, report: &HeartbeatReport) {
    let memory = &report.memory;
    metrics.gauge(
        "venice_agent_lent_bytes",
        "Memory that the agent lends altogether, less the withheld",
        slab_bytes(memory.status.total_slabs),
    );
    metrics.gauge(
        "venice_agent_free_bytes",
        "Memory that the agent would lend now",
        slab_bytes(memory.status.free_slabs),
    );
    let held = |kind| {
        let committed = memory.held.iter().filter(|held| held.state == HeldState::Committed);
        committed.filter(move |held: &&HeldGrant| held.share.kind == kind)
    };
    metrics.gauges(
        "venice_agent_grants",
        "Grants that the agent serves, by kind",
        ResourceKind::ALL
            .into_iter()
            .filter(|kind| kind.is_granted())
            .map(|kind| (label("kind", kind.spec().name), held(kind).count() as f64)),
    );
    metrics.gauge(
        "venice_agent_pressure_level",
        "Memory pressure on this machine: 0 none, 1 low (nothing is offered), 2 high (lent memory \
         is reclaimed)",
        match report.pressure.level {
            PressureLevel::None => 0.0,
            PressureLevel::Low => 1.0,
            PressureLevel::High => 2.0,
        },
    );
    metrics.gauges(
        "venice_agent_available_bytes",
        "Memory available on this machine, as its kernel reports it",
        report.pressure.available_bytes.map(|bytes| (Vec::new(), bytes as f64)),
    );
    metrics.gauges(
        "venice_agent_stall_ratio",
        "Share of the last ten seconds in which tasks of this machine waited for memory, 0 to 1",
        report.pressure.stall_ratio.map(|ratio| (Vec::new(), ratio)),
    );
    let dropped = report.port.dropped;
    let reasons = [
        ("replayed", dropped.replayed),
        ("forged", dropped.forged),
        ("unsealed", dropped.unsealed),
        ("unknown_key", dropped.unknown_key),
    ];
    metrics.counters(
        "venice_agent_dropped_datagrams_total",
        "Datagrams that the UDP port and the relay dropped, by reason",
        reasons.map(|(reason, count)| (label("reason", reason), count as f64)),
    );
    expose_devices(metrics, report);
}

fn expose_devices(metrics: &mut Exposition, report: &HeartbeatReport) {
    let faulty =
        |it: &DeviceReport| (device(it.kind, &it.address), f64::from(!it.fault.is_empty()));
    metrics.gauges(
        "venice_agent_device_faulty",
        "1 if the device cannot be lent because of a fault or a use of this machine's own, else 0",
        report.memory.devices.iter().map(faulty),
    );
    let of_grant = |grant| {
        let held = report.memory.held.iter().find(|held| held.id == grant)?;
        Some(device(held.share.kind, &held.share.address))
    };
    let usage: Vec<_> =
        report.usage.iter().filter_map(|it| Some((of_grant(it.grant)?, it))).collect();
    metrics.gauges(
        "venice_agent_device_busy_ratio",
        "Share of the last seconds in which the granted device had something to do, 0 to 1",
        usage.iter().filter_map(|(labels, it)| Some((labels.clone(), it.busy_ratio?))),
    );
    metrics.counters(
        "venice_agent_device_in_bytes_total",
        "Bytes that the recipient of the device has sent to it; each grant begins at 0",
        usage.iter().filter_map(|(labels, it)| Some((labels.clone(), it.in_bytes? as f64))),
    );
    metrics.counters(
        "venice_agent_device_out_bytes_total",
        "Bytes that the recipient of the device has received from it; each grant begins at 0",
        usage.iter().filter_map(|(labels, it)| Some((labels.clone(), it.out_bytes? as f64))),
    );
    metrics.counters(
        "venice_agent_device_commands_total",
        "Commands or tasks that the device has carried out; each grant begins at 0",
        usage.iter().map(|(labels, it)| (labels.clone(), it.commands as f64)),
    );
}

fn label(name: &'static str, value: &str) -> Vec<Label> {
    vec![(name, value.to_owned())]
}

fn device(kind: ResourceKind, address: &str) -> Vec<Label> {
    vec![("kind", kind.spec().name.to_owned()), ("device", address.to_owned())]
}

fn slab_bytes(slabs: u32) -> f64 {
    (u64::from(slabs) * SLAB_BYTES) as f64
}

/// Parses a line of /proc/self/status, in bytes.
fn status_bytes(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

impl Source for Observed {
    async fn metrics(&self) -> Exposition {
        let mut metrics = Exposition::new(env!("CARGO_PKG_VERSION"));
        self.expose_own(&mut metrics);
        let report = self.membership().report.clone();
        if let Some(report) = report {
            expose_report(&mut metrics, &report);
        }
        metrics
    }

    async fn ready(&self) -> Result<(), NotReady> {
        self.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_status_is_parsed() {
        let text = "VmPeak:\t  9 kB\nVmLck:\t   65536 kB\n";
        assert_eq!(status_bytes(text, "VmLck:"), Some(64 << 20));
        assert_eq!(status_bytes(text, "VmRSS:"), None);
    }
}
