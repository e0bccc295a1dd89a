//! All tables of a Monitor Node as one value, for tests that compare them record by record: before
//! and after a restart, or between several Monitor Nodes.

use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use venice_control::ControlError;
use venice_control::client::{Access, EnrolmentClient, MonitorClient};

/// Fields that change without events: ages, measurements, counts of datagrams and callers.
const TRANSIENT_FIELDS: [&str; 18] = [
    "age_s",
    "last_heartbeat_ms",
    "waited_s",
    "left_s",
    "latency_us",
    "loss_ratio",
    "bandwidth_mbps",
    "bytes_per_s",
    "replayed",
    "forged",
    "unsealed",
    "unknown_key",
    "xdp_received",
    "xdp_sent",
    "xdp_lost",
    "available_bytes",
    "stall_ratio",
    "refused",
];

/// Fields that only heartbeats set, by table: a restarted Monitor Node does not have them yet.
const HEARTBEAT_FIELDS: [(Table, &[&str]); 2] = [
    (
        Table::Nodes,
        &[
            "state",
            "lent_bytes",
            "free_bytes",
            "pressure",
            "certificate_expires_s",
            "pid",
            "relay_addr",
        ],
    ),
    (Table::Resources, &["free_bytes", "health", "available"]),
];

/// One of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// The nodes.
    Nodes,
    /// Lent memory and devices (RRT).
    Resources,
    /// Grants (RAT).
    Grants,
    /// Links (TST).
    Links,
    /// Join tokens.
    Tokens,
    /// Revoked nodes.
    Revocations,
    /// Quotas of users.
    Quotas,
    /// Queued requests.
    Queue,
}

/// All tables.
pub const ALL: [Table; 8] = [
    Table::Nodes,
    Table::Resources,
    Table::Grants,
    Table::Links,
    Table::Tokens,
    Table::Revocations,
    Table::Quotas,
    Table::Queue,
];

type Record = Map<String, Value>;

/// The tables of one Monitor Node at one moment, without the fields that change without events.
/// They are read one after the other, so two of them may differ by an event in between.
#[derive(Clone, PartialEq)]
pub struct Tables(BTreeMap<(Table, String), Record>);

impl Tables {
    /// Reads all tables of a Monitor Node, as an administrator.
    ///
    /// # Errors
    /// [`ControlError`]: it does not answer.
    pub async fn of(access: &Access) -> Result<Self, ControlError> {
        let mut monitor = MonitorClient::connect(access).await?;
        let mut gate = EnrolmentClient::connect(access).await?;
        let mut tables = Self(BTreeMap::new());
        tables.put(Table::Nodes, &["name"], records(monitor.nodes().await?));
        let key = ["node", "kind", "address"];
        tables.put(Table::Resources, &key, records(monitor.resources().await?));
        tables.put(Table::Grants, &["id"], records(monitor.grants().await?));
        let key = ["from", "to", "port", "reported_by"];
        tables.put(Table::Links, &key, records(monitor.links().await?));
        tables.put(Table::Queue, &["recipient", "purpose"], waits(monitor.queue().await?));
        let quotas = monitor.quotas().await?;
        tables.put(Table::Quotas, &["user"], records(quotas.users));
        let others = json!({
            "user": "(all others)",
            "quota": quotas.default,
        });
        tables.put(Table::Quotas, &["user"], records([others]));
        let token = |it: venice_control::server::TokenRow| json!({ "id": it.id, "node": it.node, "expires_ms": it.expires_ms, "used_by": it.used_by });
        tables.put(Table::Tokens, &["id"], records(gate.tokens().await?.into_iter().map(token)));
        tables.put(Table::Revocations, &["node"], records(gate.show().await?.revoked));
        Ok(tables)
    }

    fn put(&mut self, table: Table, key: &[&str], records: Vec<Record>) {
        for mut record in records {
            record.retain(|field, _| !TRANSIENT_FIELDS.contains(&field.as_str()));
            if let Some(leaving) = record.get_mut("preempted_in_s") {
                *leaving = (!leaving.is_null()).into();
            }
            let words = key.iter().map(|field| match &record[*field] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            });
            let name = words.collect::<Vec<_>>().join(" ");
            // One process may have two links to a donor.
            let names = (1..).map(|number| match number {
                1 => name.clone(),
                _ => format!("{name} #{number}"),
            });
            let is_new = |name: &String| !self.0.contains_key(&(table, name.clone()));
            let name = names.into_iter().find(is_new).expect("numbers do not end");
            self.0.insert((table, name), record);
        }
    }

    /// Returns the part that a Monitor Node has from the store as soon as it serves: without the
    /// links, which heartbeats report, and without the queue, whose requests are repeated.
    #[must_use]
    pub fn recorded(&self) -> Self {
        let mut tables = self.clone();
        tables.0.retain(|(table, _), _| !matches!(table, Table::Links | Table::Queue));
        for ((table, _), record) in &mut tables.0 {
            let told =
                HEARTBEAT_FIELDS.iter().filter(|(of, _)| of == table).flat_map(|(_, told)| *told);
            told.for_each(|field| drop(record.remove(*field)));
        }
        tables
    }

    /// Returns the other tables.
    #[must_use]
    pub fn without(&self, table: Table) -> Self {
        let mut tables = self.clone();
        tables.0.retain(|(of, _), _| *of != table);
        tables
    }

    /// Returns the records of one table.
    pub fn records(&self, table: Table) -> impl Iterator<Item = &Map<String, Value>> {
        self.0.iter().filter(move |((of, _), _)| *of == table).map(|(_, record)| record)
    }

    /// Returns the number of records in a table.
    pub fn count(&self, table: Table) -> usize {
        self.records(table).count()
    }

    /// Returns a line for each field of each record that differs.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let keys: BTreeSet<_> = self.0.keys().chain(other.0.keys()).collect();
        let mut lines = Vec::new();
        for key @ (table, name) in keys {
            match (self.0.get(key), other.0.get(key)) {
                (Some(_), None) => lines.push(format!("{table:?} {name}: gone")),
                (None, Some(_)) => lines.push(format!("{table:?} {name}: new")),
                (Some(one), Some(two)) => {
                    let fields: BTreeSet<_> = one.keys().chain(two.keys()).collect();
                    let fields =
                        fields.into_iter().filter(|field| one.get(*field) != two.get(*field));
                    lines.extend(fields.map(|field| {
                        let of = |record: &Record| record.get(field).cloned().unwrap_or_default();
                        format!("{table:?} {name}: {field}: {} and {}", of(one), of(two))
                    }));
                }
                (None, None) => {}
            }
        }
        lines
    }

    /// Asserts that the other tables are the same.
    ///
    /// # Panics
    /// When they differ, with [`Self::differences`].
    pub fn assert_same(&self, other: &Self, what: &str) {
        let differences = self.differences(other);
        assert!(differences.is_empty(), "{what}:\n{}", differences.join("\n"));
    }
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|((table, name), record)| {
            writeln!(f, "{table:?} {name}: {}", Value::Object(record.clone()))
        })
    }
}

/// Names queued requests by recipient: their numbers differ between Monitor Nodes.
fn waits(rows: impl IntoIterator<Item = impl Serialize>) -> Vec<Record> {
    let mut records = records(rows);
    records.iter_mut().for_each(|record| drop(record.remove("id")));
    records
}

fn records(rows: impl IntoIterator<Item = impl Serialize>) -> Vec<Record> {
    let rows =
        rows.into_iter().map(|row| serde_json::to_value(row).expect("rows have only plain data"));
    rows.map(|row| match row {
        Value::Object(record) => record,
        other => panic!("{other} is no record"),
    })
    .collect()
}
