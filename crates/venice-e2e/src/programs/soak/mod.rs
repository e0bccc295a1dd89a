//! Data integrity over time: programs that can compute every byte, with two replicas of their far
//! memory or coded 2+1, on a rack whose donors are killed, stalled, drained and short of memory one
//! after the other.
//!
//! [`jobs`] are the programs, [`injuries`] the donors' faults, [`machines`] the donors' simulated
//! machines. One seed determines all faults and the programs' work; their interleaving depends on
//! the machine.

mod injuries;
mod jobs;
mod machines;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use machines::Machines;

use crate::programs::Listener;
use crate::programs::rack::{Port, Rack};

/// Memory lent by each of the four nodes: three must have room for two replicas of everything.
const LEND_MIB: u64 = 192;
const NODES: [&str; 4] = ["node1", "node2", "node3", "node4"];

/// Plan of a soak.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Port of the rack.
    pub port: Port,
    /// Seed of all random choices.
    pub seed: u64,
    /// Duration; work begun by then is finished.
    pub lasting: Duration,
}

/// Report of a soak. Its existence means that no byte was wrong, nothing hung, and nothing was
/// lost.
#[derive(Clone, Debug)]
pub struct Report {
    plan: Plan,
    took: Duration,
    injuries: injuries::Inflicted,
    done: Vec<(&'static str, u64)>,
}

impl Report {
    /// Returns the number of faults of all kinds.
    pub fn injuries(&self) -> u64 {
        let injuries::Inflicted { kills, stalls, drains, shortages, .. } = self.injuries;
        kills + stalls + drains + shortages
    }

    /// Returns the programs that ran to their end, plus the compared values.
    pub fn checks(&self) -> u64 {
        self.done.iter().map(|(_, count)| count).sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { plan: Plan { port, seed, .. }, took, injuries, done } = self;
        writeln!(f, "seed {seed} over {port}: {} s, zero wrong bytes", took.as_secs())?;
        writeln!(f, "{injuries}")?;
        let done: Vec<String> =
            done.iter().map(|(what, count)| format!("{count} {what}")).collect();
        write!(f, "checked: {}", done.join(", "))
    }
}

/// State shared by all threads of a soak.
struct Soak {
    rack: Rack,
    machines: Machines,
    plan: Plan,
    began: Instant,
    /// True after an error, or when the time is over.
    is_over: AtomicBool,
    /// Held for reading while a program starts, so that it borrows from a healthy rack; held for
    /// writing by the fault injector until all replicas exist again, since the next death may then
    /// cost nothing.
    gate: RwLock<()>,
    /// Standard error of each program so far, by its process.
    said: Mutex<BTreeMap<u64, Listener>>,
    tally: Tally,
}

/// Counts of checks.
#[derive(Default)]
struct Tally {
    stress_runs: AtomicU64,
    sqlite_runs: AtomicU64,
    redis_values: AtomicU64,
    redis_saves: AtomicU64,
}

impl Soak {
    /// Returns the last lines of `venice run` for a program of process `pid`.
    fn last_words(&self, pid: u64) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.get(&pid).map(Listener::last_words).unwrap_or_default()
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire) || self.began.elapsed() >= self.plan.lasting
    }
}

/// Ends the soak when its thread ends, in whatever way.
struct EndsAll<'a>(&'a AtomicBool);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs the soak and returns its report; `tell` is called for each fault.
///
/// # Panics
/// At the first wrong byte, loss, or timeout.
pub fn soak(plan: Plan, tell: impl Fn(&str)) -> Report {
    let rack = Rack::start(plan.port, LEND_MIB);
    let machines = Machines::under(&rack);
    let soak = Soak {
        rack,
        machines,
        plan,
        began: Instant::now(),
        is_over: AtomicBool::new(false),
        gate: RwLock::new(()),
        said: Mutex::default(),
        tally: Tally::default(),
    };
    let injuries = std::thread::scope(|scope| {
        for job in [jobs::stress, jobs::sqlite, jobs::redis] {
            let soak = &soak;
            scope.spawn(move || {
                let _end = EndsAll(&soak.is_over);
                job(soak);
            });
        }
        let _end = EndsAll(&soak.is_over);
        injuries::inflict(&soak, tell)
    });
    let Tally { stress_runs, sqlite_runs, redis_values, redis_saves } = &soak.tally;
    let done = [
        ("runs of stress-ng --verify", stress_runs),
        ("runs of sqlite", sqlite_runs),
        ("values of redis", redis_values),
        ("background saves of redis", redis_saves),
    ];
    let done = done.map(|(what, count)| (what, count.load(Ordering::Relaxed))).to_vec();
    // Memory left behind at a stalled donor ends with its lease.
    crate::programs::wait_for("all to be given back", Duration::from_secs(60), || {
        (soak.rack.granted_bytes() == 0).then_some(())
    });
    Report { plan, took: soak.began.elapsed(), injuries, done }
}
