//! Donor health as one thread sees it.

/// The health of each donor, up to the highest index with a record: most donors never need one.
#[derive(Debug, Default)]
pub(super) struct Manners(Vec<Known>);

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// True if reads from it are being hedged. Other donors are tried first until it answers.
    is_slow: bool,
    /// The time since which it has not answered, nanoseconds; 0: it answers.
    silent_since_ns: u64,
    /// The time of the last failed request, nanoseconds.
    found_ns: u64,
}

impl Manners {
    /// True if reads from this donor are being hedged.
    pub(super) fn is_slow(&self, donor: usize) -> bool {
        self.0.get(donor).is_some_and(|known| known.is_slow)
    }

    /// True if it stopped answering.
    pub(super) fn is_silent(&self, donor: usize) -> bool {
        self.0.get(donor).is_some_and(|known| known.silent_since_ns != 0)
    }

    /// Records an answer.
    pub(super) fn answers(&mut self, donor: usize) {
        if let Some(known) = self.0.get_mut(donor) {
            *known = Known::default();
        }
    }

    /// Records a late read.
    pub(super) fn is_late(&mut self, donor: usize) {
        self.known(donor).is_slow = true;
    }

    /// Records a request without an answer; `true`: none was answered during a whole lease of
    /// repeated requests.
    pub(super) fn falls_silent(&mut self, donor: usize, now_ns: u64, lease_ns: u64) -> bool {
        let known = self.known(donor);
        known.is_slow = true;
        if known.silent_since_ns == 0 || now_ns > known.found_ns + lease_ns {
            known.silent_since_ns = now_ns;
        }
        known.found_ns = now_ns;
        now_ns > known.silent_since_ns + lease_ns
    }

    fn known(&mut self, donor: usize) -> &mut Known {
        if self.0.len() <= donor {
            self.0.resize(donor + 1, Known::default());
        }
        &mut self.0[donor]
    }
}
