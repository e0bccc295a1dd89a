//! The trust state: the listener's revocations and the authority's signing dates.

use crate::clock::wall_ms;
use std::sync::Arc;
use venice_control::identity::Authority;
use venice_control::server::TlsServer;
use venice_control::{Revocation, Revocations};

/// Upper bound for the time from reading the clock to a signed certificate.
pub(crate) const SIGNING_MARGIN_MS: u64 = 60_000;

/// The two places where a revocation takes effect.
#[derive(Clone)]
pub(crate) struct TrustState {
    pub(crate) door: Arc<TlsServer>,
    pub(crate) authority: Arc<Authority>,
    /// Version of the authorities to trust.
    pub(crate) version: u64,
}

impl TrustState {
    /// Returns the time of day, and the time until which a revocation made now voids certificates,
    /// in milliseconds since 1970. It covers all certificates signed and all being signed.
    pub(crate) fn now(&self) -> (u64, u64) {
        let wall_ms = wall_ms();
        let until_ms = wall_ms.max(self.authority.newest_ms()).saturating_add(SIGNING_MARGIN_MS);
        (wall_ms, until_ms)
    }

    /// Returns the reported revocations that carry this rack's seal.
    pub(crate) fn sealed_only(&self, node: &str, told: Vec<Revocation>) -> Vec<Revocation> {
        let (known, others): (Vec<_>, Vec<_>) =
            told.into_iter().partition(|it| self.authority.has_sealed(it));
        for other in others {
            tracing::debug!(node, of = other.node, "reports a revocation without this rack's seal");
        }
        known
    }

    /// Applies the revocations: the revoked nodes are rejected, and their connections end. The
    /// listener is updated first, so that a certificate signed under a later date meets the new
    /// state.
    pub(crate) fn revoke(&self, revoked: &Revocations) {
        self.door.set_revoked(revoked.clone());
        for revocation in revoked.list() {
            self.authority.sign_after(revocation.until_ms);
        }
    }
}
