//! The release of grants.

use crate::types::Grant;
use std::collections::VecDeque;
use venice_wire::GrantId;

/// An output of a release.
#[derive(Debug, Clone, PartialEq)]
pub enum ReleasingOutput {
    /// Release these grants at any Monitor Node, then [`Releasing::handle_released`].
    AtMonitor(Vec<Grant>),
    /// Release a grant at its donor, once. Poll again then, whatever its result.
    AtDonor(Grant),
}

/// A release: at the Monitor Node, or if it is gone or cannot, at the donors. What does not get
/// through ends with its lease. It has the same effect twice as once.
#[derive(Debug)]
pub struct Releasing {
    outputs: VecDeque<ReleasingOutput>,
    grants: Vec<Grant>,
}

impl Releasing {
    /// Begins a release.
    pub fn new(grants: Vec<Grant>) -> Self {
        Self { outputs: [ReleasingOutput::AtMonitor(grants.clone())].into(), grants }
    }

    /// Handles the result of [`ReleasingOutput::AtMonitor`]: the grants whose keys it lacks; `None`: it
    /// failed.
    pub fn handle_released(&mut self, keyless: Option<&[GrantId]>) {
        let mut left = std::mem::take(&mut self.grants);
        left.retain(|grant| keyless.is_none_or(|keyless| keyless.contains(&grant.id)));
        self.outputs.extend(left.into_iter().map(ReleasingOutput::AtDonor));
    }

    /// Returns the next output; `None`, once the last one has its result: the release is over.
    pub fn poll_output(&mut self) -> Option<ReleasingOutput> {
        self.outputs.pop_front()
    }
}
