//! Certificates, revocations and refusal counts.

use crate::identity::Authorities;
use crate::proto;
use crate::server::Certified;
use tonic::Status;
use venice_rack::door::RefusedCounts;
use venice_rack::revocation::Revocation;

pub(crate) fn certified_in(response: proto::CertificateResponse) -> Result<Certified, Status> {
    let proto::CertificateResponse { certificate, authority, rotation } = response;
    let authorities = Authorities::from_der(authority, rotation);
    let authorities = authorities
        .ok_or_else(|| Status::invalid_argument("a rotation has two certificates, or none"))?;
    Ok(Certified { certificate, authorities })
}

pub(crate) fn certified_out(certified: Certified) -> proto::CertificateResponse {
    let Certified { certificate, authorities } = certified;
    let authority = authorities.present().to_vec();
    proto::CertificateResponse { certificate, authority, rotation: authorities.rotation_der() }
}

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
