//! How donors have behaved towards one thread.

/// By donor, as far as there is something to know: of most there never is.
#[derive(Debug, Default)]
pub(super) struct Manners(Vec<Known>);

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// It lets a read wait; others are asked first until it answers.
    is_slow: bool,
    /// Since when it has not answered, nanoseconds; 0: it does.
    silent_since_ns: u64,
    /// When that was last found.
    found_ns: u64,
}

impl Manners {
    /// Does it let a read wait?
    pub(super) fn is_slow(&self, donor: usize) -> bool {
        self.0.get(donor).is_some_and(|known| known.is_slow)
    }

    /// Has it fallen silent?
    pub(super) fn is_silent(&self, donor: usize) -> bool {
        self.0.get(donor).is_some_and(|known| known.silent_since_ns != 0)
    }

    /// It has answered.
    pub(super) fn answers(&mut self, donor: usize) {
        if let Some(known) = self.0.get_mut(donor) {
            *known = Known::default();
        }
    }

    /// It lets a read wait.
    pub(super) fn is_late(&mut self, donor: usize) {
        self.known(donor).is_slow = true;
    }

    /// It does not answer; `true`: all through a lease, in which it was asked again and again.
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
