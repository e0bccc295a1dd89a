//! Data integrity over time: programs that know what every byte must be, with two copies of their
//! far memory or coded 2+1, on a rack whose donors are killed, stalled, drained and short of memory one
//! after the other.
//!
//! [`jobs`] are the programs, [`injuries`] what happens to the donors, [`machines`] what these run on. One seed says what happens to
//! whom and when, and what the programs do; how that falls together is the machine's.

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

/// What each of the four nodes lends: three must have room for two copies of everything.
const LEND_MIB: u64 = 192;
const NODES: [&str; 4] = ["node1", "node2", "node3", "node4"];

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How far memory is reached.
    pub port: Port,
    /// Of everything that is drawn.
    pub seed: u64,
    /// How long; what was begun by then is brought to its end.
    pub lasting: Duration,
}

/// What was done. That there is one says that no byte was wrong, nothing hung, and nothing was lost.
#[derive(Clone, Debug)]
pub struct Report {
    plan: Plan,
    took: Duration,
    injuries: injuries::Inflicted,
    done: Vec<(&'static str, u64)>,
}

impl Report {
    /// Injuries of all kinds.
    pub fn injuries(&self) -> u64 {
        let injuries::Inflicted { kills, stalls, drains, shortages, .. } = self.injuries;
        kills + stalls + drains + shortages
    }

    /// Programs that ran to their end, and values that were compared.
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

/// What all threads of a soak share.
struct Soak {
    rack: Rack,
    machines: Machines,
    plan: Plan,
    began: Instant,
    /// Something was found to be wrong, or the time is over.
    is_over: AtomicBool,
    /// Held by who starts a program: it borrows from a rack that is well. And by who injures a donor,
    /// alone, until all copies are there again: the next death may then cost nothing.
    gate: RwLock<()>,
    /// What each program started so far says, by its process.
    said: Mutex<BTreeMap<u64, Listener>>,
    tally: Tally,
}

/// What was checked.
#[derive(Default)]
struct Tally {
    stress_runs: AtomicU64,
    sqlite_runs: AtomicU64,
    redis_values: AtomicU64,
    redis_saves: AtomicU64,
}

impl Soak {
    /// What `venice run` said of a program of process `pid`.
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

/// Soaks, and tells what was done; `tell` hears of each injury.
///
/// # Panics
/// At the first wrong byte, loss, or thing that does not come to its end.
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
    // What was left behind of a donor that stalled ends with its lease.
    crate::programs::wait_for("all to be given back", Duration::from_secs(60), || {
        (soak.rack.granted_bytes() == 0).then_some(())
    });
    Report { plan, took: soak.began.elapsed(), injuries, done }
}
