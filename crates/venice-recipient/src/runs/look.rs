//! The state of a run, and the combined state of several shown as one.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use venice_memory::paged::run_block::{Donor, FaultTimes};
use venice_wire::PAGE_BYTES;

use super::{RefaultCounts, Unmanaged};
use crate::holding::Holding;

/// The state of a run: its part of [`RunRow`](super::RunRow).
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// The port to the donors.
    pub port: String,
    /// The reason for its mode, for users; empty: it has no choice of modes.
    pub mode_reason: String,
    /// The budget of all its processes, in bytes.
    pub local_bytes: u64,
    /// Resident bytes of all its processes.
    pub resident_bytes: u64,
    /// Memory that Venice does not manage, by cause.
    pub unmanaged: Vec<Unmanaged>,
    /// Far memory in use, in bytes.
    pub remote_bytes: u64,
    /// Far memory borrowed, in bytes.
    pub borrowed_bytes: u64,
    /// In so many copies, or coded.
    pub replicas: String,
    /// Slabs that lack a copy, or a fragment; lost ones included.
    pub short_slabs: u64,
    /// Slabs without any copy, or with too few fragments.
    pub lost_slabs: u64,
    /// The missing copies and the remedy under way; `None`: nothing is missing.
    pub missing: Option<String>,
    /// The donors.
    pub donors: Vec<String>,
    /// Donors that died or took their memory back.
    pub lost_donors: Vec<String>,
    /// The lost donors whose memory was transferred to another owner.
    pub transferred_donors: Vec<String>,
    /// Donors that reclaim their memory.
    pub leaving_donors: Vec<String>,
    /// Faults served in the thread that touched the page.
    pub in_thread_faults: u64,
    /// Its refaults.
    pub refaults: RefaultCounts,
    /// Times of requests, p50 and p99 in microseconds, where faults are not timed.
    pub request_us: Option<(Option<f64>, Option<f64>)>,
    /// Its processes.
    pub processes: Vec<u32>,
}

/// The faults up to one moment.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Their number.
    pub faults: u64,
    /// Their times, where all are timed.
    pub times: Option<FaultTimes>,
}

impl Look {
    /// Reads the state of a holding. Resident memory is as counted by the pagers of its processes;
    /// unmanaged memory and processes are left empty.
    pub fn of(holding: &Holding) -> Look {
        let (block, copies) = (holding.block(), holding.copies());
        let resident = block.pagers().map(|(_, it)| it.charge().resident_pages);
        let donors = block.donors();
        Look {
            port: block.port().to_string(),
            local_bytes: block.limit_pages.load(Ordering::Relaxed) * PAGE_BYTES,
            resident_bytes: resident.sum::<u64>() * PAGE_BYTES,
            remote_bytes: block.slots_used.load(Ordering::Relaxed) * PAGE_BYTES,
            borrowed_bytes: block.holders().len() as u64 * PAGE_BYTES,
            replicas: copies.replicas(),
            short_slabs: copies.short_slabs,
            lost_slabs: copies.lost_slabs,
            missing: copies.missing(),
            donors: names(donors, |donor| !donor.is_given_back()),
            lost_donors: names(donors, Donor::is_lost),
            transferred_donors: names(donors, |donor| donor.transferred_to().is_some()),
            leaving_donors: names(donors, |it| it.is_reclaiming() && !it.is_given_back()),
            in_thread_faults: block.counters.in_thread_faults.load(Ordering::Relaxed),
            refaults: RefaultCounts::of(block),
            ..Look::default()
        }
    }

    /// Combines both; unmanaged memory, requests and processes are those of the first.
    pub fn and(self, other: Look) -> Look {
        let missing = self.missing.into_iter().chain(other.missing);
        Look {
            port: both_words(self.port, &other.port),
            mode_reason: self.mode_reason,
            local_bytes: self.local_bytes + other.local_bytes,
            resident_bytes: self.resident_bytes + other.resident_bytes,
            remote_bytes: self.remote_bytes + other.remote_bytes,
            borrowed_bytes: self.borrowed_bytes + other.borrowed_bytes,
            replicas: both_words(self.replicas, &other.replicas),
            short_slabs: self.short_slabs + other.short_slabs,
            lost_slabs: self.lost_slabs + other.lost_slabs,
            missing: missing.reduce(|one, other| format!("{one}; {other}")),
            donors: union(self.donors, other.donors),
            lost_donors: union(self.lost_donors, other.lost_donors),
            transferred_donors: union(self.transferred_donors, other.transferred_donors),
            leaving_donors: union(self.leaving_donors, other.leaving_donors),
            in_thread_faults: self.in_thread_faults + other.in_thread_faults,
            refaults: self.refaults.and(other.refaults),
            unmanaged: self.unmanaged,
            request_us: self.request_us,
            processes: self.processes,
        }
    }
}

impl Sample {
    /// Reads the fault counters of a holding.
    pub fn of(holding: &Holding) -> Sample {
        let block = holding.block();
        let faults = block.counters.faults.load(Ordering::Relaxed);
        Sample { faults, times: Some(block.fault_times()) }
    }

    /// Adds both.
    pub fn and(self, other: Sample) -> Sample {
        let times = match (self.times, other.times) {
            (Some(one), Some(other)) => Some(one.and(&other)),
            (one, other) => one.or(other),
        };
        Sample { faults: self.faults + other.faults, times }
    }
}

/// Returns the names of donors, each once.
fn names(donors: &[Donor], which: impl Fn(&Donor) -> bool) -> Vec<String> {
    let names: BTreeSet<_> = donors.iter().filter(|donor| which(donor)).map(Donor::name).collect();
    names.into_iter().collect()
}

fn union(one: Vec<String>, other: Vec<String>) -> Vec<String> {
    let names: BTreeSet<_> = one.into_iter().chain(other).collect();
    names.into_iter().collect()
}

/// Joins `one` and `other`, without repetition and empty parts.
fn both_words(one: String, other: &str) -> String {
    let says_it = other.is_empty() || one.split("; ").any(|word| word == other);
    match (one.is_empty(), says_it) {
        (true, _) => other.to_owned(),
        (false, true) => one,
        (false, false) => format!("{one}; {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(port: &str, replicas: &str, donors: &[&str]) -> Look {
        Look {
            port: port.into(),
            replicas: replicas.into(),
            local_bytes: 4,
            missing: Some(format!("{replicas} lack one")),
            donors: donors.iter().map(ToString::to_string).collect(),
            ..Look::default()
        }
    }

    #[test]
    fn combined_state_is_summed_without_repetition() {
        let both = look("shm", "2 copies", &["a", "c"]).and(look("shm", "1 copy", &["b", "c"]));
        assert_eq!((both.port.as_str(), both.replicas.as_str()), ("shm", "2 copies; 1 copy"));
        assert_eq!(both.missing.as_deref(), Some("2 copies lack one; 1 copy lack one"));
        assert_eq!((both.local_bytes, both.donors.join(",")), (8, "a,b,c".to_owned()));
        let again = Look::default().and(both).and(look("udp", "1 copy", &[]));
        assert_eq!(
            (again.port.as_str(), again.replicas.as_str()),
            ("shm; udp", "2 copies; 1 copy")
        );
        let faults = |faults| Sample { faults, times: None };
        assert_eq!(faults(3).and(faults(4)).faults, 7);
    }
}
