//! Three Monitor Nodes, three members of etcd and three agents, all of them processes that are
//! killed or stopped while clients borrow, renew and give back all the time: nothing is lent twice,
//! nothing leaks, answers are honoured, and memory is still lent.
//!
//! `VENICE_LOOP_SEED=N VENICE_LOOP_SECONDS=600 cargo test -p venice --test alone_whoever_dies` for more.

mod calm;
mod clients;
#[path = "../it/common/mod.rs"]
mod common;
mod faults;
mod judge;
mod writers;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clients::{CLIENTS, Order, Stage};
use common::rack::Rack;
use faults::Faults;
use judge::Judge;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use venice_control::client::{Access, MonitorClient};
use venice_control::{AllocationRequest, ControlError, Queueing, Want};
use venice_testkit::etcd::Etcd;
use venice_testkit::random::SplitMix64;
use venice_wire::SLAB_BYTES;

const LEASE: Duration = Duration::from_secs(5);
/// Memory that each agent lends.
pub const LEND_BYTES: u64 = 10 * SLAB_BYTES;
/// Storage that one of them lends.
pub const POOL_BYTES: u64 = 8 << 20;
const WRITERS: u64 = 2;
/// Rounds: one with each kind of fault, with several at once among them.
const SEED: u64 = 1116;
const SECONDS: u64 = 40;
/// Time limit of any action.
const PATIENCE: Duration = Duration::from_secs(120);

/// Seconds measured in each round.
#[derive(Default)]
struct Figures {
    /// Time until a new client was granted memory.
    until_granted: Vec<f64>,
    /// Longest wait of a client without queueing.
    waited: Vec<f64>,
}

/// The rack and its users.
struct Trial {
    etcd: Etcd,
    rack: Rack,
    stage: Arc<Stage>,
    runtime: Runtime,
    random: SplitMix64,
    writers: Vec<JoinHandle<()>>,
    clients: Vec<tokio::task::JoinHandle<()>>,
    figures: BTreeMap<String, Figures>,
    probes: u128,
}

impl Trial {
    fn start(seed: u64) -> Trial {
        let etcd = Etcd::start(3);
        let (store, lease) = (format!("etcd://{}", etcd.addresses()), LEASE.as_secs().to_string());
        let times = ["--lease-s", &lease, "--heartbeat-interval-s", "0.5"];
        let mut rack = Rack::start(3, &[&["--store", &store], &times[..]].concat());
        fs::create_dir(rack.place.file("pool")).unwrap();
        let pool = format!("storage:{}=8MiB", rack.place.file("pool").display());
        for (name, offer) in [
            ("donor1", "accelerator:/dev/zero"),
            ("donor2", "accelerator:/dev/null"),
            ("donor3", pool.as_str()),
        ] {
            let lend = format!("{}MiB", LEND_BYTES >> 20);
            rack.add_agent(name, &["--lend", &lend, "--offer", offer]);
        }
        let monitors = rack.monitors.iter().map(|monitor| monitor.addr.clone()).collect();
        let (orders, resting) = (watch::Sender::new(Order::Rest), AtomicUsize::new(0));
        let stage = Stage { monitors, judge: Judge::new(LEASE), orders, resting };
        let mut trial = Trial {
            etcd,
            rack,
            stage: Arc::new(stage),
            runtime: Runtime::new().unwrap(),
            random: SplitMix64(seed),
            writers: Vec::new(),
            clients: Vec::new(),
            figures: BTreeMap::new(),
            probes: 0,
        };
        trial.begin(seed);
        trial
    }

    fn begin(&mut self, seed: u64) {
        for number in 0..CLIENTS {
            let client = clients::run(Arc::clone(&self.stage), number, seed);
            self.clients.push(self.runtime.spawn(client));
        }
        for number in CLIENTS..CLIENTS + WRITERS {
            let (stage, runtime) = (Arc::clone(&self.stage), self.runtime.handle().clone());
            let writer = move || writers::run(&stage, &runtime, number, seed);
            self.writers.push(thread::spawn(writer));
        }
    }

    /// Injects faults, observes their effect, and repairs them.
    fn round(&mut self) {
        let faults = Faults::draw(&mut self.random, &self.rack, &self.etcd);
        let lasts = Duration::from_millis(300 + self.random.below(9000));
        println!("{faults}, for {:.1} s", lasts.as_secs_f64());
        let began = Instant::now();
        self.stage.judge.longest_wait();
        faults.begin(&mut self.rack, &mut self.etcd, &self.stage.judge);
        let granted = (!faults.leave_no_majority()).then(|| self.time_until_granted());
        thread::sleep(lasts.saturating_sub(began.elapsed()));
        if let Some(granted) = granted {
            self.note(&faults.kind(), granted);
        }
        faults.end(&mut self.rack, &mut self.etcd, &self.stage.judge);
        let granted = self.time_until_granted();
        self.note(&format!("{}: made good", faults.kind()), granted);
        self.look_for_the_dead();
        self.look_at_the_judge();
    }

    /// Fails if a process has ended by itself.
    fn look_for_the_dead(&mut self) {
        for member in self.rack.monitors.iter_mut().chain(&mut self.rack.agents) {
            assert!(!member.has_ended(), "{} has ended by itself", member.name);
        }
    }

    fn note(&mut self, what: &str, granted: Duration) {
        let waited = self.stage.judge.longest_wait();
        let [granted, waited] = [granted, waited].map(|it| it.as_secs_f64());
        println!("  {what}: granted after {granted:.2} s; others waited for {waited:.2} s at most");
        let figures = self.figures.entry(what.to_owned()).or_default();
        figures.until_granted.push(granted);
        figures.waited.push(waited);
    }

    /// Measures the time until a new caller has memory, or is told that there is no room.
    fn time_until_granted(&mut self) -> Duration {
        let (began, runtime) = (Instant::now(), self.runtime.handle().clone());
        while let Err(error) = runtime.block_on(self.probe()) {
            assert!(began.elapsed() < PATIENCE, "nothing is granted: {error}");
            self.look_for_the_dead();
        }
        began.elapsed()
    }

    async fn probe(&mut self) -> Result<(), ControlError> {
        self.probes += 1;
        let request = AllocationRequest {
            wants: vec![Want::memory(SLAB_BYTES, 1)],
            client_id: u128::MAX - self.probes,
            recipient: "probe".to_owned(),
            donors: Vec::new(),
            home: String::new(),
            placement: None,
            purpose: "probe".to_owned(),
            queueing: Queueing::default(),
        };
        let access = Access::new(
            self.stage.addresses(self.probes as u64),
            venice_testkit::identity::login(),
        );
        let mut monitor = MonitorClient::connect(&access).await?;
        match monitor.allocate(request).await {
            Ok(grants) => {
                let leases: Vec<_> = grants.iter().map(|grant| (grant.id, grant.key)).collect();
                // A return that fails expires with its lease.
                drop(monitor.release(&leases).await);
                Ok(())
            }
            Err(ControlError::NoRoom { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Stops all requests and checks that all agree.
    fn calm(&mut self) {
        self.stage.orders.send_replace(Order::Rest);
        let all = (CLIENTS + WRITERS) as usize;
        let began = Instant::now();
        while self.stage.resting.load(Ordering::Relaxed) < all {
            assert!(began.elapsed() < PATIENCE, "what was under way has no end");
            thread::sleep(Duration::from_millis(20));
        }
        self.settle();
        let held = self.stage.judge.held().len();
        println!("calm after {:.1} s; {held} grants held", began.elapsed().as_secs_f64());
    }

    fn settle(&mut self) {
        if let Err(wrong) = self.runtime.block_on(calm::settle(&self.rack, &self.stage)) {
            panic!("they do not agree:\n{}", wrong.join("\n"));
        }
        self.look_at_the_judge();
    }

    fn look_at_the_judge(&self) {
        let wrong = self.stage.judge.wrong();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    fn print_figures(&mut self) {
        let lease_s = LEASE.as_secs();
        println!("lease {lease_s} s; seconds, in parentheses leases:");
        println!("| what | times | granted anew: median | most | others waited: median | most |");
        for (what, Figures { until_granted, waited }) in std::mem::take(&mut self.figures) {
            let times = until_granted.len();
            let (granted, waited) = (median_and_most(until_granted), median_and_most(waited));
            println!("| {what} | {times} | {granted} | {waited} |");
        }
    }

    /// Returns all grants and checks that everything is free.
    fn end(mut self) {
        self.stage.orders.send_replace(Order::End);
        for client in self.clients.drain(..) {
            self.runtime.block_on(client).unwrap();
        }
        self.writers.drain(..).for_each(|writer| writer.join().unwrap());
        assert_eq!(self.stage.judge.held().len(), 0);
        self.settle();
        println!("{}", self.stage.judge.counts());
        self.print_figures();
        for member in self.rack.agents.iter_mut().chain(&mut self.rack.monitors) {
            assert_eq!(member.end(), Some(0), "{}", member.name);
        }
    }
}

fn median_and_most(mut seconds: Vec<f64>) -> String {
    seconds.sort_by(f64::total_cmp);
    let most = seconds[seconds.len() - 1];
    format!("{:.2} | {most:.2} ({:.2})", seconds[seconds.len() / 2], most / LEASE.as_secs_f64())
}

/// Returns a setting from the environment.
fn setting(name: &str, otherwise: u64) -> u64 {
    let said = std::env::var(name).ok();
    said.map_or(otherwise, |said| {
        said.parse().unwrap_or_else(|_| panic!("{name}={said}: no number"))
    })
}

#[test]
fn nothing_is_lent_twice_under_faults() {
    let seed = setting("VENICE_LOOP_SEED", SEED);
    let lasts = Duration::from_secs(setting("VENICE_LOOP_SECONDS", SECONDS));
    println!("VENICE_LOOP_SEED={seed} VENICE_LOOP_SECONDS={}", lasts.as_secs());
    let mut trial = Trial::start(seed);
    trial.settle();
    let began = Instant::now();
    while began.elapsed() < lasts {
        trial.stage.orders.send_replace(Order::Go);
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(trial.random.below(2000)));
            trial.round();
        }
        trial.calm();
    }
    trial.end();
}
