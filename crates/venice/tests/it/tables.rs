//! A restarted Monitor Node, and another one of the same rack, have all tables of the first one:
//! compared record by record.

use std::fs;
use std::time::{Duration, Instant};

use crate::common::rack::Rack;
use crate::common::{self, Daemon};
use tokio::runtime::Runtime;
use venice_control::client::{EnrolmentClient, MonitorClient};
use venice_control::{Limits, QuotaFor, QuotaRecord};
use venice_testkit::etcd::Etcd;
use venice_testkit::tables::{ALL, Table, Tables};

/// Far longer than any step here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A rack with a record in every table.
struct Filled {
    rack: Rack,
    runtime: Runtime,
    _users: [Daemon; 3],
}

impl Filled {
    fn start(monitors: usize, words: &[&str]) -> Filled {
        let mut rack = Rack::start(monitors, words);
        fs::create_dir(rack.place.file("pool")).unwrap();
        let pool = format!("storage:{}=8MiB,scratch", rack.place.file("pool").display());
        rack.add_agent("donor1", &["--lend", "64MiB", "--offer", "accelerator:/dev/zero,fft"]);
        rack.add_agent("donor2", &["--lend", "64MiB", "--offer", &pool]);
        let runtime = Runtime::new().unwrap();
        runtime.block_on(admit_and_limit(&rack));
        rack.place.join("donor3", &rack.monitors[0].addr);
        let _users = borrow(&rack);
        Filled { rack, runtime, _users }
    }

    /// Tables of a Monitor Node, as soon as it answers.
    fn tables(&self, monitor: usize) -> Tables {
        let began = Instant::now();
        loop {
            match self.runtime.block_on(self.rack.tables(monitor)) {
                Ok(tables) => return tables,
                Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
            }
        }
    }

    fn wait_until_same(&self, before: &Tables, monitor: usize, not: Option<Table>) {
        let wanted = |tables: &Tables| not.map_or(tables.clone(), |table| tables.without(table));
        let began = Instant::now();
        loop {
            let now = self.tables(monitor);
            let differences = wanted(before).differences(&wanted(&now));
            if differences.is_empty() {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "monitor{monitor}:\n{}", differences.join("\n"));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until every table is filled and nothing is pending.
    fn settled(&self) -> Tables {
        let began = Instant::now();
        loop {
            let now = self.tables(0);
            let least = [2, 4, 3, 2, 2, 1, 3, 1];
            let is_there = ALL.iter().zip(least).all(|(table, least)| now.count(*table) >= least);
            let is_committed = |it: &serde_json::Map<_, _>| it["state"] == "committed";
            if is_there && now.records(Table::Grants).all(is_committed) {
                std::thread::sleep(Duration::from_secs(2));
                if self.tables(0) == now {
                    return now;
                }
            }
            assert!(began.elapsed() < PATIENCE, "not all is there: {now:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Adds an unused join token, a revoked node and quotas.
async fn admit_and_limit(rack: &Rack) {
    let access = rack.access(0);
    let mut gate = EnrolmentClient::connect(&access).await.unwrap();
    gate.new_token(Duration::from_secs(3600), "donor4").await.unwrap();
    gate.revoke("strange", true).await.unwrap();
    let mut monitor = MonitorClient::connect(&access).await.unwrap();
    let user = |name: &str| QuotaFor::User(name.to_owned());
    for (of, bytes) in [(user("somebody"), Some(1 << 30)), (QuotaFor::Others, Some(8 << 30))] {
        let limits = Limits::of_memory(bytes);
        monitor.set_quota(QuotaRecord { of, limits }).await.unwrap();
    }
}

/// Starts programs that hold memory, hold a device, and wait for more memory than is left.
fn borrow(rack: &Rack) -> [Daemon; 3] {
    let all = rack.all();
    let runtime = Runtime::new().unwrap();
    let start = |name: &str, words: &[&str], table: Table, least: usize| {
        let words = [&words[..1], &["--monitor", &all], &words[1..], &["--", "sleep", "600"]];
        let words = words.concat();
        let mut daemon = Daemon::start_named(&rack.place, name, &words);
        common::wait_until("it is in the tables", || {
            let log = || fs::read_to_string(rack.place.file(&format!("{name}.log"))).unwrap();
            assert!(daemon.0.try_wait().unwrap().is_none(), "{name} ended: {}", log());
            let tables = runtime.block_on(rack.tables(0));
            tables.is_ok_and(|tables| tables.count(table) >= least)
        });
        daemon
    };
    let more = ["run", "--local", "16MiB", "--remote", "64MiB", "--copies", "1", "--wait", "10min"];
    [
        start("memory", &["get", "memory=96MiB"], Table::Grants, 2),
        start("device", &["get", "accelerator"], Table::Grants, 3),
        start("wait", &more, Table::Queue, 1),
    ]
}

#[test]
fn restarted_monitor_recovers_every_table() {
    let mut filled = Filled::start(1, &[]);
    let before = filled.settled();
    filled.rack.monitors[0].kill();
    let place = &filled.rack.place;
    filled.rack.monitors[0].start(place);
    // At once it has what is in its store, and after the next heartbeats everything.
    let after = filled.tables(0);
    before.recorded().assert_same(&after.recorded(), "after kill -9");
    filled.wait_until_same(&before, 0, None);
}

#[test]
fn second_monitor_takes_over_every_table() {
    let etcd = Etcd::start(1);
    let store = format!("etcd://{}", etcd.addresses());
    let mut filled = Filled::start(2, &["--store", &store]);
    let before = filled.settled();
    // A queued request waits at one Monitor Node.
    filled.wait_until_same(&before, 1, Some(Table::Queue));
    filled.rack.monitors[0].kill();
    filled.tables(1).recorded().assert_same(&before.recorded(), "after the death of the other");
    filled.wait_until_same(&before, 1, None);
    let place = &filled.rack.place;
    filled.rack.monitors[0].start(place);
    let after = filled.tables(0);
    before.recorded().assert_same(&after.recorded(), "started again");
    filled.wait_until_same(&before, 0, Some(Table::Queue));
}
