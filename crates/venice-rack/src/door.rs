//! Counts of callers that a node's servers refused, by reason.

use crate::revocation::Revocation;
use serde::Serialize;

/// The report of a node's server on its callers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DoorReport {
    /// Callers refused since the agent started.
    pub refused: RefusedCounts,
    /// Expiry of the server's certificate, in seconds since 1970.
    pub certificate_expires_s: u64,
    /// Version of the revocations in force there ([`crate::revocation::Revocations::version`]).
    pub revoked_version: u64,
    /// Revocations in force there that the Monitor Node lacked when it sent its own.
    pub revoked_besides: Vec<Revocation>,
    /// Version of the authorities that the node trusts; 0: unknown.
    pub trust_version: u64,
}

/// Refused callers and refused calls, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct RefusedCounts {
    /// The peer did not speak the rack's TLS.
    pub no_tls: u64,
    /// The peer sent no certificate.
    pub no_certificate: u64,
    /// The certificate had expired, or was not yet valid.
    pub expired: u64,
    /// The certificate was revoked.
    pub revoked: u64,
    /// The certificate came from another authority, or the peer rejected this rack's.
    pub foreign: u64,
    /// The caller lacked permission for the call.
    pub forbidden: u64,
    /// The join token was unknown, used or expired.
    pub bad_token: u64,
    /// The call named a grant with a wrong key.
    pub wrong_key: u64,
    /// The connection was closed because its peer showed no certificate, and did not join in time.
    pub uncertified: u64,
    /// The connection, or the call, was beyond a bound.
    pub too_many: u64,
}

impl RefusedCounts {
    /// Returns the counts with the names of their reasons.
    pub fn by_reason(&self) -> [(&'static str, u64); 10] {
        [
            ("no_tls", self.no_tls),
            ("no_certificate", self.no_certificate),
            ("expired", self.expired),
            ("revoked", self.revoked),
            ("foreign", self.foreign),
            ("forbidden", self.forbidden),
            ("bad_token", self.bad_token),
            ("wrong_key", self.wrong_key),
            ("uncertified", self.uncertified),
            ("too_many", self.too_many),
        ]
    }

    /// Returns the sum over all reasons.
    pub fn total(&self) -> u64 {
        self.by_reason().into_iter().map(|(_, count)| count).sum()
    }
}
