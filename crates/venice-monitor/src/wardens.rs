//! Who holds the keys to the door.

use crate::clock::wall_ms;
use std::sync::Arc;
use venice_control::identity::Authority;
use venice_control::server::TlsServer;
use venice_control::{Revocation, Revocations};

/// No certificate takes longer from the look at the clock until it is signed.
pub(crate) const STILL_SIGNING_MS: u64 = 60_000;

/// Who holds the keys to the door, to be told when somebody is turned out.
#[derive(Clone)]
pub(crate) struct Wardens {
    pub(crate) door: Arc<TlsServer>,
    pub(crate) authority: Arc<Authority>,
}

impl Wardens {
    /// Up to when a node that is turned out at this moment has its certificates void: beyond all
    /// that was signed and all that is being signed.
    pub(crate) fn moment_ms(&self) -> u64 {
        wall_ms().max(self.authority.newest_ms()).saturating_add(STILL_SIGNING_MS)
    }

    /// Revocations that a node tells, as far as a Monitor Node of this rack has made them.
    pub(crate) fn known_again(&self, node: &str, told: Vec<Revocation>) -> Vec<Revocation> {
        let (known, others): (Vec<_>, Vec<_>) =
            told.into_iter().partition(|it| self.authority.has_sealed(it));
        for other in others {
            tracing::debug!(node, of = other.node, "tells a revocation without this rack's seal");
        }
        known
    }

    /// Nobody of these comes in any more, and those who are in do nothing more. First the door is
    /// closed: whoever is signed for under a date that is good again finds it so.
    pub(crate) fn turn_out(&self, revoked: &Revocations) {
        self.door.set_revoked(revoked.clone());
        for revocation in revoked.list() {
            self.authority.sign_after(revocation.until_ms);
        }
    }
}
