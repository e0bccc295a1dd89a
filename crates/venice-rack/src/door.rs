//! What the doors of nodes have seen: who was refused, and why.

use crate::revocation::Revocation;
use serde::Serialize;

/// What a node's door has seen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DoorReport {
    /// Callers refused since the agent started.
    pub refused: RefusedCounts,
    /// When its certificate ends, in seconds since 1970.
    pub certificate_expires_s: u64,
    /// Which revocations it goes by ([`crate::revocation::Revocations::version`]).
    pub revoked_version: u64,
    /// Those of them that the Monitor Node did not know when it told its own.
    pub revoked_besides: Vec<Revocation>,
}

/// Callers that a door did not let in, or not do what they asked for, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct RefusedCounts {
    /// They did not speak TLS as the rack does.
    pub no_tls: u64,
    /// They showed no certificate.
    pub no_certificate: u64,
    /// Theirs was past its time, or before it.
    pub expired: u64,
    /// Theirs was revoked.
    pub revoked: u64,
    /// Theirs was another authority's, or they did not take this rack's.
    pub foreign: u64,
    /// They may not do what they asked for.
    pub forbidden: u64,
    /// They came with a join token that is worth nothing.
    pub bad_token: u64,
    /// They named a grant with a key that is not its own.
    pub wrong_key: u64,
}

impl RefusedCounts {
    /// All of them.
    pub fn total(&self) -> u64 {
        let Self { no_tls, no_certificate, expired, revoked, foreign, forbidden, .. } = self;
        let door = no_tls + no_certificate + expired + revoked + foreign + forbidden;
        door + self.bad_token + self.wrong_key
    }
}
