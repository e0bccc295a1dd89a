//! How a run is, in one row.

use serde::{Deserialize, Serialize};

/// One row of `venice ps`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// The supervisor, `venice run`; or the program, if it borrows by itself.
    pub run: u32,
    /// The program.
    pub pid: u32,
    /// The program and its arguments.
    pub command: String,
    /// `paged`, `window` or `swap`; `library`: the program borrows by itself.
    pub mode: String,
    /// How the donors are reached.
    pub port: String,
    /// Seconds since it began.
    pub age_s: f64,
    /// Its processes that live now.
    pub processes: Vec<u32>,
    /// What all of them may keep here.
    pub local_bytes: u64,
    /// What they have here.
    pub resident_bytes: u64,
    /// Far memory in use.
    pub remote_bytes: u64,
    /// Far memory there is.
    pub borrowed_bytes: u64,
    /// Faults since it began.
    pub faults: u64,
    /// Of these, faults served in the thread that touched the page (`--faults in-thread`).
    #[serde(default)]
    pub in_thread_faults: u64,
    /// What compression does (`--compress`).
    #[serde(default)]
    pub compressed: Option<Compressed>,
    /// Faults a second, lately.
    pub faults_per_s: f64,
    /// Median time of a fault, lately, in microseconds.
    pub fault_p50_us: Option<f64>,
    /// The 99th percentile.
    pub fault_p99_us: Option<f64>,
    /// Redundancy of its far memory: `2 copies`, `coded 4+2`.
    #[serde(default)]
    pub replicas: String,
    /// Slabs that lack a copy, or a fragment.
    #[serde(default)]
    pub short_slabs: u64,
    /// What of them is missing, and how far it is built anew or why it is not, for people.
    #[serde(default)]
    pub missing: Option<String>,
    /// Who lends.
    pub donors: Vec<String>,
    /// Which of them died or took their memory back.
    pub lost_donors: Vec<String>,
    /// Which of them want their memory back, so that what is there moves elsewhere.
    #[serde(default)]
    pub leaving_donors: Vec<String>,
}

/// What compression does: the memory it has just now, and the rest since the run began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compressed {
    /// Resident memory that compressed pages take; 0 while it is given up.
    pub pool_bytes: u64,
    /// Pages kept compressed, in all.
    pub pages: u64,
    /// Their length then, in bytes.
    pub packed_bytes: u64,
    /// Pages that did not get half as long.
    pub incompressible: u64,
    /// Faults answered from there.
    pub faults: u64,
    /// Times it was given up for a while because few pages got half as long.
    pub packed_badly: u64,
    /// Times it was given up for a while because it did not pay.
    pub paid_badly: u64,
    /// Times it was given up for a while because all far memory was in use.
    pub yielded: u64,
}

impl RunRow {
    /// Does `pid` mean this run: its supervisor, its program, or a process of it?
    pub fn has(&self, pid: u32) -> bool {
        pid == self.run || pid == self.pid || self.processes.contains(&pid)
    }
}
