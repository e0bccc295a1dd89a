//! The state of a run, in one row.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use venice_control::Grant;
use venice_wire::GrantId;

use super::{RefaultBound, Unmanaged};

/// One row of `venice ps`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// The supervisor, `venice run`; or the program, if it borrows by itself.
    pub run: u32,
    /// The user whose program it is; `venice ps` fills it in.
    #[serde(default)]
    pub user: String,
    /// The program's process.
    pub pid: u32,
    /// The program and its arguments.
    pub command: String,
    /// `paged`, `window` or `swap`; `library`: the program borrows by itself; `devices`: it has
    /// devices and no borrowed memory.
    pub mode: String,
    /// The reason for that mode, for users; empty for `library` and `devices`.
    #[serde(default)]
    pub mode_reason: String,
    /// The port to the donors.
    pub port: String,
    /// Seconds since it began.
    pub age_s: f64,
    /// Its living processes.
    pub processes: Vec<u32>,
    /// The budget of all of them, in bytes.
    pub local_bytes: u64,
    /// Resident bytes of all of them.
    pub resident_bytes: u64,
    /// Memory of its processes that Venice does not manage, by cause. Parts of a process below
    /// 4 MiB are left out.
    #[serde(default)]
    pub unmanaged: Vec<Unmanaged>,
    /// Far memory in use, in bytes.
    pub remote_bytes: u64,
    /// Far memory borrowed, in bytes.
    pub borrowed_bytes: u64,
    /// Faults since it began.
    pub faults: u64,
    /// Faults of these served in the thread that touched the page (`--faults in-thread`).
    #[serde(default)]
    pub in_thread_faults: u64,
    /// Faults since it began on pages that had been evicted.
    #[serde(default)]
    pub refaults: u64,
    /// Seconds that threads waited for those pages, as estimated from the mean time of a fault.
    #[serde(default)]
    pub refault_wait_s: f64,
    /// The remedy, if it has been bound by refaults so far.
    #[serde(default)]
    pub refault_bound: Option<RefaultBound>,
    /// Recent faults a second.
    pub faults_per_s: f64,
    /// Recent median time of a fault, in microseconds.
    pub fault_p50_us: Option<f64>,
    /// The 99th percentile.
    pub fault_p99_us: Option<f64>,
    /// Redundancy of its far memory: `2 copies`, `coded 4+2`.
    #[serde(default)]
    pub replicas: String,
    /// Slabs that lack a copy, or a fragment; lost ones included.
    #[serde(default)]
    pub short_slabs: u64,
    /// Slabs without any copy, or with too few fragments: their data is lost.
    #[serde(default)]
    pub lost_slabs: u64,
    /// The missing copies, with the progress of the rebuild or its error, for users.
    #[serde(default)]
    pub missing: Option<String>,
    /// The donors.
    pub donors: Vec<String>,
    /// Donors that died or took their memory back.
    pub lost_donors: Vec<String>,
    /// The lost donors whose memory was transferred to another owner.
    #[serde(default)]
    pub transferred_donors: Vec<String>,
    /// Donors that reclaim their memory: its data moves to other donors.
    #[serde(default)]
    pub leaving_donors: Vec<String>,
    /// The devices granted to it.
    #[serde(default)]
    pub devices: Vec<RunDevice>,
    /// Address of the Monitor Node that granted them; empty: it has none.
    #[serde(default)]
    pub monitor: String,
}

/// A device granted to a run. The usage is that of [`venice_control::GrantRow`]: the run leaves it
/// out, `venice ps` gets it from the Monitor Node. `None` is unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunDevice {
    /// The number of its grant.
    pub grant: u64,
    /// Its donor.
    pub node: String,
    /// The name of its kind.
    pub kind: String,
    /// Its name at the donor.
    pub address: String,
    /// Share of the last seconds in which it had something to do, 0 to 1.
    #[serde(default)]
    pub busy_ratio: Option<f64>,
    /// Bytes sent to its service.
    #[serde(default)]
    pub in_bytes: Option<u64>,
    /// Bytes received from it.
    #[serde(default)]
    pub out_bytes: Option<u64>,
    /// Commands or tasks carried out.
    #[serde(default)]
    pub commands: Option<u64>,
}

impl RunDevice {
    /// Describes a granted device; `None` for memory.
    pub fn of(grant: &Grant) -> Option<Self> {
        let (kind, address) = grant.share.device()?;
        Some(Self {
            grant: grant.id.0,
            node: grant.donor.clone(),
            kind: kind.name().to_owned(),
            address: address.to_owned(),
            ..Self::default()
        })
    }
}

/// The devices of a run, which change when one moves.
#[derive(Clone, Debug, Default)]
pub struct RunDevices(Arc<Mutex<Vec<RunDevice>>>);

impl RunDevices {
    /// Describes granted devices.
    pub fn of(grants: &[Grant]) -> Self {
        Self(Arc::new(Mutex::new(grants.iter().filter_map(RunDevice::of).collect())))
    }

    /// Returns the present ones.
    pub fn rows(&self) -> Vec<RunDevice> {
        self.lock().clone()
    }

    /// Puts another device in the place of that of a grant.
    pub fn replace(&self, former: GrantId, grant: &Grant) {
        let mut rows = self.lock();
        let at = rows.iter().position(|row| row.grant == former.0);
        if let (Some(at), Some(row)) = (at, RunDevice::of(grant)) {
            rows[at] = row;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RunDevice>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunRow {
    /// True if `pid` belongs to this run: its supervisor, its program, or a process of it.
    pub fn has(&self, pid: u32) -> bool {
        pid == self.run || pid == self.pid || self.processes.contains(&pid)
    }
}
