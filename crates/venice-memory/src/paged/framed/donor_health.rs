//! Donor health as one thread sees it.

use super::super::run_block::SILENT_LEASES;

/// The health of each donor, up to the highest index with a record: most donors never need one.
#[derive(Debug, Default)]
pub(super) struct DonorHealth(Vec<Record>);

#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// True if reads from it are being hedged. Other donors are tried first until it answers.
    is_slow: bool,
    /// The time since which it has not answered, nanoseconds; 0: it answers.
    silent_since_ns: u64,
    /// The time of the last failed request, nanoseconds.
    found_ns: u64,
}

impl DonorHealth {
    /// True if reads from this donor are being hedged.
    pub(super) fn is_slow(&self, donor: usize) -> bool {
        self.0.get(donor).is_some_and(|record| record.is_slow)
    }

    /// True if it stopped answering.
    pub(super) fn is_silent(&self, donor: usize) -> bool {
        self.0.get(donor).is_some_and(|record| record.silent_since_ns != 0)
    }

    /// Records an answer.
    pub(super) fn record_answer(&mut self, donor: usize) {
        if let Some(record) = self.0.get_mut(donor) {
            *record = Record::default();
        }
    }

    /// Records a late read.
    pub(super) fn record_late(&mut self, donor: usize) {
        self.record(donor).is_slow = true;
    }

    /// Records a request without an answer; `true`: none was answered during [`SILENT_LEASES`] of
    /// repeated requests.
    pub(super) fn record_no_answer(&mut self, donor: usize, now_ns: u64, lease_ns: u64) -> bool {
        let record = self.record(donor);
        record.is_slow = true;
        if record.silent_since_ns == 0 || now_ns > record.found_ns + lease_ns {
            record.silent_since_ns = now_ns;
        }
        record.found_ns = now_ns;
        now_ns > record.silent_since_ns + lease_ns * u64::from(SILENT_LEASES)
    }

    fn record(&mut self, donor: usize) -> &mut Record {
        if self.0.len() <= donor {
            self.0.resize(donor + 1, Record::default());
        }
        &mut self.0[donor]
    }
}
