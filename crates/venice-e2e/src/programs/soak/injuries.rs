//! Faults of donors: one at a time, and the next only when every program has all its replicas
//! again.

use std::fmt;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use venice_testkit::random::SplitMix64;

use super::{NODES, Soak};
use crate::programs::rack::kill_now;
use crate::programs::wait_for;

/// Time limit until all replicas exist again, on a busy machine.
pub const WHOLE_WITHIN: Duration = Duration::from_secs(300);
/// Time limit for noticing a death: a program without memory at that donor never does.
const NOTICED_WITHIN: Duration = Duration::from_secs(20);
/// Longest stall, longer than a lease.
const LONGEST_STALL_MS: u64 = 13_000;

/// Faults inflicted on donors.
#[derive(Clone, Debug, Default)]
pub struct Inflicted {
    pub kills: u64,
    pub stalls: u64,
    pub drains: u64,
    pub shortages: u64,
    /// Longest time from a fault until all replicas existed again.
    longest: Duration,
    /// Rebuilt replicas, of programs that ran at the end of a fault.
    rebuilt: u64,
    /// Replicas moved for a reclaim, of the same programs.
    moved: u64,
}

impl fmt::Display for Inflicted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inflicted { kills, stalls, drains, shortages, longest, rebuilt, moved } = self;
        write!(
            f,
            "donors killed {kills}, stalled {stalls}, drained {drains}, short of memory {shortages}; \
             slabs copied anew {rebuilt}, moved {moved}; all well again within {:.1} s",
            longest.as_secs_f64()
        )
    }
}

/// Injures donors until the soak is over.
pub fn inflict(soak: &Soak, tell: impl Fn(&str)) -> Inflicted {
    let (mut dice, mut done) = (SplitMix64(soak.plan.seed), Inflicted::default());
    let mut draw = |below: u64| dice.below(below);
    wait_for("the programs to run", WHOLE_WITHIN, || {
        (soak.is_over() || runs(soak).len() == 3).then_some(())
    });
    while !soak.is_over() {
        pause(soak, 500 + draw(2000));
        let (node, kind, share) = (NODES[draw(4) as usize], draw(5), draw(1000));
        let closed = soak.gate.write().unwrap_or_else(PoisonError::into_inner);
        let before = (sum(soak, "rebuilt"), sum(soak, "moved"));
        let began = Instant::now();
        match kind {
            0 | 1 => {
                tell(&format!("{node} is killed"));
                done.kills += 1;
                kill(soak, node);
            }
            2 => {
                let most_ms = (soak.plan.lasting.as_millis() as u64 / 8).min(LONGEST_STALL_MS);
                let stall = Duration::from_millis(100 + most_ms * share / 1000);
                tell(&format!("{node} is stalled for {stall:?}"));
                done.stalls += 1;
                stall_for(soak, node, stall);
            }
            3 => {
                tell(&format!("{node} is drained"));
                done.drains += 1;
                drain_for(soak, node, 500 + 3 * share);
            }
            _ => {
                tell(&format!("{node} runs short of memory"));
                done.shortages += 1;
                starve_for(soak, node, 2000 + 6 * share);
            }
        }
        wait_until_whole(soak);
        drop(closed);
        done.longest = done.longest.max(began.elapsed());
        done.rebuilt += sum(soak, "rebuilt").saturating_sub(before.0);
        done.moved += sum(soak, "moved").saturating_sub(before.1);
    }
    done
}

/// Kills an agent; it restarts empty once its recipients have noticed.
fn kill(soak: &Soak, node: &str) {
    let lenders: Vec<(u64, u64)> = runs(soak)
        .iter()
        .map(|run| (number(&run["process"]["pid"]), number(&run["to_rebuild"])))
        .filter(|(pid, _)| lends(soak, node, *pid))
        .collect();
    kill_now(soak.rack.agent_pid(node));
    let killed = Instant::now();
    wait_for("a dead donor to be noticed", WHOLE_WITHIN, || {
        let runs = runs(soak);
        let knows = |(pid, before): &(u64, u64)| {
            let run = runs.iter().find(|run| number(&run["process"]["pid"]) == *pid);
            run.is_none_or(|run| number(&run["to_rebuild"]) > *before)
        };
        let is_over = lenders.iter().all(knows) || killed.elapsed() > NOTICED_WITHIN;
        is_over.then_some(())
    });
    soak.machines.start(&soak.rack, node);
}

/// True if `node` has lent memory to the process.
fn lends(soak: &Soak, node: &str, pid: u64) -> bool {
    let grants = soak.rack.json(&["grants"]);
    let of_it = |grant: &Value| {
        let recipient = grant["recipient"].as_str().unwrap_or_default();
        grant["donor"] == node && recipient.ends_with(&format!("/{pid}"))
    };
    grants.as_array().is_some_and(|grants| grants.iter().any(of_it))
}

fn stall_for(soak: &Soak, node: &str, stall: Duration) {
    let agent = soak.rack.agent_pid(node);
    let agent = Pid::from_raw(agent as i32).expect("a process id");
    kill_process(agent, Signal::STOP).expect("an agent of this rack");
    // The stopped agent is resumed in any case: it would delay the end of the rack.
    let awake = Awake(agent);
    std::thread::sleep(stall);
    drop(awake);
    // A recipient that suspects the donor reports it within this time.
    std::thread::sleep(Duration::from_secs(1));
}

struct Awake(Pid);

impl Drop for Awake {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

fn drain_for(soak: &Soak, node: &str, millis: u64) {
    for option in ["--no-wait", "--undo"] {
        let said = soak.rack.venice(&["drain", node, option]);
        let why = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.status.success(), "venice drain {node} {option}: {why}");
        if option == "--no-wait" {
            pause(soak, millis);
        }
    }
}

/// Makes the machine of `node` short of memory, so that free memory is withdrawn at once and lent
/// memory is reclaimed; ends that after a while, or after all is returned.
fn starve_for(soak: &Soak, node: &str, millis: u64) {
    soak.machines.run_short(node);
    pause(soak, millis);
    soak.machines.recover(node);
}

/// Waits until every node is up and lends all it should, and every program has all its replicas; no
/// slab may be lost.
fn wait_until_whole(soak: &Soak) {
    wait_for("all copies to be there again", WHOLE_WITHIN, || {
        let runs = runs(soak);
        for run in &runs {
            let said = || soak.last_words(number(&run["process"]["pid"]));
            assert_eq!(run["lost_slabs"], 0, "a slab was lost: {run}\n{}", said());
        }
        let all_there = runs.iter().all(|run| run["short_slabs"] == 0);
        (all_there && soak.machines.are_well(&soak.rack)).then_some(())
    });
}

/// Returns a sum over all running programs.
fn sum(soak: &Soak, what: &str) -> u64 {
    runs(soak).iter().map(|run| number(&run[what])).sum()
}

/// Returns the running programs' rows of `venice status`.
pub fn runs(soak: &Soak) -> Vec<Value> {
    soak.rack.json(&["status"])["runs"].as_array().cloned().unwrap_or_default()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("not a number: {value}"))
}

fn pause(soak: &Soak, millis: u64) {
    let until = Instant::now() + Duration::from_millis(millis);
    while Instant::now() < until && !soak.is_over() {
        std::thread::sleep(Duration::from_millis(50));
    }
}
