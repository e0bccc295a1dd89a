//! The Monitor Node's metrics: a snapshot of its tables, and counters of its own.

use crate::event_log::EventLog;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use venice_control::server::ConnectionCounts;
use venice_control::{GrantRow, LinkRow, NodeRow, QueueRow, RefusedCounts, ResourceRow};
use venice_observe::{Exposition, Histogram, Label, exponential_buckets};

/// Most users with series of their own: those with most granted bytes. The others are summed up.
const MOST_USERS: usize = 100;
/// Label of the sum of all other users.
const OTHERS: &str = "(others)";
const NODE_STATES: [&str; 5] = ["up", "unreachable", "down", "stopped", "revoked"];
const GRANT_STATES: [&str; 5] = ["prepared", "committed", "transferring", "releasing", "lost"];
const LINK_STATES: [&str; 2] = ["up", "down"];
const QUEUE_NEEDS: [&str; 4] = ["room", "device", "quota", "donors"];

/// The tables at one moment.
pub(crate) struct Snapshot {
    pub(crate) nodes: Vec<NodeRow>,
    pub(crate) resources: Vec<ResourceRow>,
    pub(crate) grants: Vec<GrantRow>,
    pub(crate) queue: Vec<QueueRow>,
    pub(crate) links: Vec<LinkRow>,
}

/// Counters of the Monitor Node itself, since its process started.
#[derive(Debug)]
pub(crate) struct Counters {
    started: SystemTime,
    store_writes: Histogram,
    stalled_ns: AtomicU64,
    pub(crate) events: EventLog,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self {
            started: SystemTime::now(),
            // 0.1 ms to 6.5 s.
            store_writes: Histogram::new(exponential_buckets(0.0001, 4.0, 9)),
            stalled_ns: AtomicU64::new(0),
            events: EventLog::new(),
        }
    }

    /// Records the duration of one write to the store.
    pub(crate) fn note_write(&self, took: Duration) {
        self.store_writes.observe(took.as_secs_f64());
    }

    /// Records time in which the driver stood still.
    pub(crate) fn note_stall(&self, missed: Duration) {
        let missed_ns = u64::try_from(missed.as_nanos()).unwrap_or(u64::MAX);
        self.stalled_ns.fetch_add(missed_ns, Ordering::Relaxed);
    }

    /// Adds them to `metrics`.
    pub(crate) fn expose(&self, metrics: &mut Exposition) {
        let since_1970 = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        metrics.gauge(
            "venice_monitor_start_time_seconds",
            "Start of the Monitor Node's process, in seconds since 1970",
            since_1970.as_secs_f64(),
        );
        metrics.counter(
            "venice_monitor_stalled_seconds_total",
            "Time in which the Monitor Node stood still; it does not count against the nodes",
            self.stalled_ns.load(Ordering::Relaxed) as f64 / 1e9,
        );
        metrics.histogram(
            "venice_store_write_seconds",
            "Durations of durable writes to the store",
            &self.store_writes,
        );
        metrics.counters(
            "venice_events_total",
            "Events by kind, as `venice events` lists them",
            self.events.by_kind().into_iter().map(|(kind, n)| (label("kind", &kind), n as f64)),
        );
        metrics.counters(
            "venice_requests_refused_total",
            "Refused requests for memory or devices, by reason; what a program repeats within a minute \
             counts once",
            self.events.refused().into_iter().map(|(why, n)| (label("reason", &why), n as f64)),
        );
    }
}

/// Adds the connections and refused calls of the control port to `metrics`.
pub(crate) fn expose_door(
    metrics: &mut Exposition,
    open: ConnectionCounts,
    refused: RefusedCounts,
) {
    let ConnectionCounts { all, strangers, users } = open;
    let rest = all.saturating_sub(strangers + users);
    let classes = [("stranger", strangers), ("user", users), ("other", rest)];
    metrics.gauges(
        "venice_monitor_connections",
        "Open connections of the control port by class: peers without a valid certificate, users, \
         and others (agents, Monitor Nodes, administrators, handshakes)",
        classes.map(|(class, count)| (label("class", class), count as f64)),
    );
    metrics.counters(
        "venice_monitor_refused_calls_total",
        "Connections and calls that the control port refused, by reason",
        refused.by_reason().map(|(reason, count)| (label("reason", reason), count as f64)),
    );
}

impl Snapshot {
    /// Adds the tables to `metrics`.
    pub(crate) fn expose(&self, metrics: &mut Exposition) {
        self.expose_nodes(metrics);
        self.expose_datagrams(metrics);
        self.expose_grants(metrics);
        self.expose_devices(metrics);
        self.expose_queue(metrics);
        metrics.gauges(
            "venice_links",
            "Links of the rack by state",
            counted("state", &LINK_STATES, self.links.iter().map(|row| row.state.as_str())),
        );
    }

    fn expose_nodes(&self, metrics: &mut Exposition) {
        metrics.gauges(
            "venice_nodes",
            "Nodes by state",
            counted("state", &NODE_STATES, self.nodes.iter().map(|row| row.state.as_str())),
        );
        let each = |value: fn(&NodeRow) -> Option<f64>| {
            let sample = move |row: &NodeRow| Some((label("node", &row.name), value(row)?));
            self.nodes.iter().filter_map(sample).collect::<Vec<_>>()
        };
        metrics.gauges(
            "venice_node_up",
            "1 if the node reports, else 0",
            each(|row| Some(f64::from(row.reports()))),
        );
        metrics.gauges(
            "venice_node_unreachable",
            "1 if the node reports and calls to it fail, else 0",
            each(|row| Some(f64::from(row.state == "unreachable"))),
        );
        metrics.gauges(
            "venice_node_stopped",
            "1 if the node's agent was stopped in an orderly way, else 0",
            each(|row| Some(f64::from(row.state == "stopped"))),
        );
        metrics.gauges(
            "venice_node_revoked",
            "1 if the node was revoked and has not joined again, else 0",
            each(|row| Some(f64::from(row.state == "revoked"))),
        );
        metrics.gauges(
            "venice_node_draining",
            "1 if the node is being drained, else 0",
            each(|row| Some(f64::from(row.draining))),
        );
        metrics.gauges(
            "venice_node_lent_bytes",
            "Memory that the node lends altogether",
            each(|row| Some(row.lent_bytes as f64)),
        );
        metrics.gauges(
            "venice_node_free_bytes",
            "Memory that the node would grant now",
            each(|row| Some(row.free_bytes as f64)),
        );
        metrics.gauges(
            "venice_node_granted_bytes",
            "Memory of the node that is granted",
            each(|row| Some(row.granted_bytes as f64)),
        );
        metrics.gauges(
            "venice_node_available_bytes",
            "Memory available on the node's machine, as its kernel reports it",
            each(|row| row.available_bytes.map(|bytes| bytes as f64)),
        );
        metrics.gauges(
            "venice_node_stall_ratio",
            "Share of the last ten seconds in which tasks of the node waited for memory, 0 to 1",
            each(|row| row.stall_ratio),
        );
        metrics.gauges(
            "venice_node_pressure_level",
            "Memory pressure on the node's machine: 0 none, 1 low (nothing is offered), 2 high \
             (lent memory is reclaimed)",
            each(|row| pressure_level(&row.pressure)),
        );
        metrics.gauges(
            "venice_node_heartbeat_age_seconds",
            "Time since the node's last heartbeat",
            each(|row| row.last_heartbeat_ms.map(|ms| ms as f64 / 1e3)),
        );
        metrics.gauges(
            "venice_node_certificate_expiry_timestamp_seconds",
            "End of the node's certificate, in seconds since 1970",
            each(|row| row.certificate_expires_s.map(|seconds| seconds as f64)),
        );
        metrics.counters(
            "venice_node_refused_calls_total",
            "Connections and calls that the node's agent refused, since it started",
            each(|row| Some(row.refused as f64)),
        );
    }

    fn expose_datagrams(&self, metrics: &mut Exposition) {
        let dropped = self.nodes.iter().flat_map(|row| {
            let reasons = [
                ("replayed", row.replayed),
                ("forged", row.forged),
                ("unsealed", row.unsealed),
                ("unknown_key", row.unknown_key),
            ];
            let labels = |reason: &str| vec![("node", row.name.clone()), ("reason", reason.into())];
            reasons.map(|(reason, count)| (labels(reason), count as f64))
        });
        metrics.counters(
            "venice_node_dropped_datagrams_total",
            "Datagrams that the node's UDP port dropped, since its agent started, by reason",
            dropped,
        );
    }

    fn expose_grants(&self, metrics: &mut Exposition) {
        metrics.gauges(
            "venice_grants",
            "Grants by state",
            counted("state", &GRANT_STATES, self.grants.iter().map(|row| row.state.as_str())),
        );
        let users = by_user(&self.grants);
        metrics.gauges(
            "venice_user_grants",
            "Grants of a user, of memory and devices; of the 100 users with most granted bytes, \
             and of all others together",
            users.iter().map(|(user, (grants, _))| (label("user", user), *grants as f64)),
        );
        metrics.gauges(
            "venice_user_granted_bytes",
            "Granted bytes of a user, all copies together; users as in venice_user_grants",
            users.iter().map(|(user, (_, bytes))| (label("user", user), *bytes as f64)),
        );
    }

    fn expose_devices(&self, metrics: &mut Exposition) {
        let mut devices: BTreeMap<(&str, &str, &str), u64> = BTreeMap::new();
        for row in self.resources.iter().filter(|row| row.kind.is_device()) {
            let state = match () {
                () if row.health != "ok" => "faulty",
                () if row.available => "free",
                () => "granted",
            };
            for each in ["free", "granted", "faulty"] {
                let count = devices.entry((&row.node, row.kind.spec().name, each)).or_default();
                *count += u64::from(each == state);
            }
        }
        let labels = |(node, kind, state): (&str, &str, &str)| {
            vec![("node", node.to_owned()), ("kind", kind.to_owned()), ("state", state.to_owned())]
        };
        metrics.gauges(
            "venice_devices",
            "Offered devices by node, kind and state: free, granted, or faulty (that of a node that \
             is down, too)",
            devices.into_iter().map(|(of, count)| (labels(of), count as f64)),
        );
    }

    fn expose_queue(&self, metrics: &mut Exposition) {
        metrics.gauges(
            "venice_queue_requests",
            "Queued requests by what they wait for",
            counted("needs", &QUEUE_NEEDS, self.queue.iter().map(|row| row.needs.as_str())),
        );
        let longest = self.queue.iter().map(|row| row.waited_s).fold(0.0, f64::max);
        metrics.gauge(
            "venice_queue_longest_wait_seconds",
            "Time that the longest waiting request has waited; 0 without one",
            longest,
        );
        let memory = self.queue.iter().flat_map(|row| &row.wants);
        let memory = memory.filter(|want| !want.kind.is_device()).map(|want| want.wanted);
        metrics.gauge(
            "venice_queue_wanted_bytes",
            "Memory that queued requests want altogether",
            memory.sum::<u64>() as f64,
        );
    }
}

fn label(name: &'static str, value: &str) -> Vec<Label> {
    vec![(name, value.to_owned())]
}

/// Counts values; all of `values` have a sample, also with none.
fn counted<'a>(
    name: &'static str,
    values: &[&'static str],
    found: impl Iterator<Item = &'a str>,
) -> Vec<(Vec<Label>, f64)> {
    let mut counts: BTreeMap<&str, u64> = values.iter().map(|value| (*value, 0)).collect();
    found.for_each(|value| *counts.entry(value).or_default() += 1);
    counts.into_iter().map(|(value, count)| (label(name, value), count as f64)).collect()
}

fn pressure_level(name: &str) -> Option<f64> {
    ["none", "low", "high"].iter().position(|it| *it == name).map(|at| at as f64)
}

/// Returns grants and granted bytes of each user: of those with most bytes, and of the others
/// together.
fn by_user(grants: &[GrantRow]) -> Vec<(String, (u64, u64))> {
    let mut users: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for row in grants.iter().filter(|row| row.state != "lost") {
        let (grants, bytes) = users.entry(&row.owner_user).or_default();
        *grants += 1;
        *bytes += row.bytes;
    }
    let mut users: Vec<_> = users.into_iter().collect();
    users.sort_by_key(|(_, (_, bytes))| std::cmp::Reverse(*bytes));
    let others = users.split_off(users.len().min(MOST_USERS));
    let mut users: Vec<_> = users.into_iter().map(|(user, sums)| (user.to_owned(), sums)).collect();
    if !others.is_empty() {
        let add = |(a, b), (_, (c, d)): (&str, (u64, u64))| (a + c, b + d);
        users.push((OTHERS.to_owned(), others.into_iter().fold((0, 0), add)));
    }
    users
}

#[cfg(test)]
mod tests {
    use super::*;
    use venice_control::ResourceKind;

    fn grant(user: &str, bytes: u64) -> GrantRow {
        GrantRow {
            id: 1,
            donor: "n1".into(),
            donor_epoch: 1,
            owner_user: user.into(),
            owner_node: "n2".into(),
            recipient: String::new(),
            home: String::new(),
            hops: None,
            kind: ResourceKind::Memory,
            address: String::new(),
            bytes,
            bandwidth_bps: 0,
            state: "committed".into(),
            lease_s: 10.0,
            age_s: 1.0,
            purpose: String::new(),
            priority: 100,
            preempted_in_s: None,
            ownership: 1,
            busy_ratio: None,
            in_bytes: None,
            out_bytes: None,
            commands: None,
        }
    }

    #[test]
    fn users_with_least_are_summed() {
        let grants: Vec<_> = (0..300).map(|n| grant(&format!("u{n:03}"), n)).collect();
        let users = by_user(&grants);
        assert_eq!(users.len(), MOST_USERS + 1);
        assert_eq!(users[0], ("u299".to_owned(), (1, 299)));
        assert_eq!(users[MOST_USERS], (OTHERS.to_owned(), (200, (0..200).sum())));
        let bytes: u64 = users.iter().map(|(_, (_, bytes))| bytes).sum();
        assert_eq!(bytes, (0..300).sum::<u64>());
        assert_eq!(by_user(&grants[..2]).len(), 2, "no sum of none");
    }

    #[test]
    fn absent_states_count_zero() {
        let counts = counted("state", &NODE_STATES, ["up", "up"].into_iter());
        let text: Vec<_> = counts.iter().map(|(labels, n)| (labels[0].1.as_str(), *n)).collect();
        assert_eq!(
            text,
            [("down", 0.0), ("revoked", 0.0), ("stopped", 0.0), ("unreachable", 0.0), ("up", 2.0)]
        );
    }
}
