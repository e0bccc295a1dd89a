//! Revocations and refusal counts.

use crate::proto;
use venice_rack::door::RefusedCounts;
use venice_rack::revocation::Revocation;

pub(crate) fn revocation_in(revocation: proto::Revocation) -> Revocation {
    Revocation { node: revocation.node, until_ms: revocation.until_ms, seal: revocation.seal }
}

pub(crate) fn revocation_out(revocation: Revocation) -> proto::Revocation {
    proto::Revocation {
        node: revocation.node,
        until_ms: revocation.until_ms,
        seal: revocation.seal,
    }
}

pub(crate) fn refused_in(counts: proto::RefusedCounts) -> RefusedCounts {
    let proto::RefusedCounts { no_tls, no_certificate, expired, revoked, foreign, .. } = counts;
    let proto::RefusedCounts { forbidden, bad_token, wrong_key, uncertified, too_many, .. } =
        counts;
    let door =
        RefusedCounts { no_tls, no_certificate, expired, revoked, ..RefusedCounts::default() };
    RefusedCounts { foreign, forbidden, bad_token, wrong_key, uncertified, too_many, ..door }
}

pub(crate) fn refused_out(counts: RefusedCounts) -> proto::RefusedCounts {
    let RefusedCounts { no_tls, no_certificate, expired, revoked, foreign, .. } = counts;
    let RefusedCounts { forbidden, bad_token, wrong_key, uncertified, too_many, .. } = counts;
    proto::RefusedCounts {
        no_tls,
        no_certificate,
        expired,
        revoked,
        foreign,
        forbidden,
        bad_token,
        wrong_key,
        uncertified,
        too_many,
    }
}
