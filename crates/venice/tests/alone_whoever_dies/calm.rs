//! Quiescence: while nothing is dead and nothing is requested, the clients' grants, the tables of
//! each Monitor Node and the state of each donor agree.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;
use venice_control::client::AgentClient;
use venice_control::{Caller, ControlError, DonorAnswer, DonorCall, DonorStatus};
use venice_testkit::tables::{Table, Tables};
use venice_wire::SLAB_BYTES;

use crate::clients::Stage;
use crate::common::rack::Rack;

/// Far longer than two leases, even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until all agree.
pub async fn settle(rack: &Rack, stage: &Stage) -> Result<(), Vec<String>> {
    let began = Instant::now();
    loop {
        let still = disagreements(rack, stage).await;
        if still.is_empty() {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            return Err(still);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn disagreements(rack: &Rack, stage: &Stage) -> Vec<String> {
    let mut said = Vec::new();
    for monitor in 0..rack.monitors.len() {
        match rack.tables(monitor).await {
            Ok(tables) => said.push(tables),
            Err(error) => return vec![format!("monitor{monitor} says nothing: {error}")],
        }
    }
    let mut wrong = Vec::new();
    for other in &said[1..] {
        wrong.extend(said[0].differences(other));
    }
    wrong.extend(against_clients(&said[0], stage));
    wrong.extend(against_donors(&said[0], rack).await);
    wrong
}

/// Compares the tables with the clients' grants.
fn against_clients(tables: &Tables, stage: &Stage) -> Vec<String> {
    let id = |row: &serde_json::Map<String, Value>| row["id"].as_u64().unwrap_or_default();
    let listed: BTreeSet<u64> = tables.records(Table::Grants).map(id).collect();
    let held: BTreeSet<u64> = stage.judge.held().iter().map(|grant| grant.id.0).collect();
    let mut wrong = Vec::new();
    wrong.extend(held.difference(&listed).map(|id| format!("grant {id} is held and in no table")));
    wrong.extend(listed.difference(&held).map(|id| format!("grant {id} is nobody's")));
    let states = tables.records(Table::Grants).filter(|row| row["state"] != "committed");
    wrong.extend(states.map(|row| format!("grant {} is {}", id(row), row["state"])));
    wrong
}

/// Compares the tables with the grants of each donor.
async fn against_donors(tables: &Tables, rack: &Rack) -> Vec<String> {
    let mut granted: BTreeMap<String, u64> = BTreeMap::new();
    for row in tables.records(Table::Grants).filter(|row| row["kind"] == "memory") {
        let donor = row["donor"].as_str().unwrap_or_default().to_owned();
        *granted.entry(donor).or_default() +=
            row["bytes"].as_u64().unwrap_or_default() / SLAB_BYTES;
    }
    let mut wrong = Vec::new();
    for row in tables.records(Table::Nodes) {
        let (name, addr) = (row["name"].as_str().unwrap(), row["control_addr"].as_str().unwrap());
        let granted = granted.get(name).copied().unwrap_or(0);
        if row["state"] != "up" {
            wrong.push(format!("{name} is {}", row["state"]));
            continue;
        }
        let bytes = |field: &str| row[field].as_u64().unwrap_or_default();
        let told = (bytes("lent_bytes") - bytes("free_bytes")) / SLAB_BYTES;
        match asked(name, addr).await {
            Ok(status) => {
                let lent = u64::from(status.total_slabs - status.free_slabs);
                if [told, granted] != [lent; 2] {
                    wrong.push(format!(
                        "{name} has lent {lent} slabs, the tables say {told}, the grants {granted}"
                    ));
                }
            }
            Err(error) => wrong.push(format!("{name} does not answer: {error}")),
        }
    }
    if tables.count(Table::Nodes) != rack.agents.len() {
        wrong.push(format!("{} nodes", tables.count(Table::Nodes)));
    }
    wrong.extend(devices(tables));
    wrong
}

/// Checks that a device is available unless it is granted.
fn devices(tables: &Tables) -> Vec<String> {
    let mut wrong = Vec::new();
    for device in tables.records(Table::Resources).filter(|row| row["kind"] != "memory") {
        let of = |row: &&serde_json::Map<String, Value>| {
            (&row["donor"], &row["address"]) == (&device["node"], &device["address"])
        };
        let grants: Vec<_> = tables.records(Table::Grants).filter(of).collect();
        let bytes: u64 = grants.iter().map(|row| row["bytes"].as_u64().unwrap_or_default()).sum();
        let is_right = match device["kind"].as_str() {
            Some("storage") => {
                let of = |field: &str| device[field].as_u64().unwrap_or_default();
                of("bytes") - of("free_bytes") == bytes
            }
            _ => device["available"] == grants.is_empty() && grants.len() <= 1,
        };
        if !is_right {
            wrong.push(format!("{} of {}: {device:?}", device["address"], device["node"]));
        }
    }
    wrong
}

/// Returns a donor's status, as the Monitor Node asks for it.
async fn asked(name: &str, addr: &str) -> Result<DonorStatus, ControlError> {
    let login = venice_testkit::identity::login_of(&Caller::Monitor);
    let mut agent = AgentClient::connect(&login, name, addr, Duration::from_secs(2)).await?;
    match agent.call(DonorCall::Release(Vec::new())).await? {
        DonorAnswer::Status(status) => Ok(status),
        DonorAnswer::Pong(pong) => panic!("a release was answered as a ping: {pong:?}"),
    }
}
