//! Verification of callers' certificates.

use super::authorities::Authorities;
use super::credential::CertificateInfo;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, Error};
use std::sync::{Arc, PoisonError, RwLock};
use thiserror::Error;
use venice_rack::caller::Caller;
use venice_rack::revocation::Revocations;

/// Reason why a peer is not admitted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotAdmitted {
    /// It showed no certificate.
    #[error(
        "no certificate: a machine joins the rack with `venice join TOKEN`, and programs \
         use its socket"
    )]
    NoCertificate,
    /// Its certificate has expired.
    #[error(
        "the certificate of {0} has expired: check the clocks of both machines, else join again \
         with `venice join TOKEN`"
    )]
    Expired(Caller),
    /// Its certificate is not valid yet.
    #[error("the certificate of {0} is not valid yet: check the clocks of both machines")]
    NotYet(Caller),
    /// Its node was revoked.
    #[error(
        "the certificate of {0} was revoked (`venice node revoke`): join again with a new token to \
         re-enter the rack"
    )]
    Revoked(Caller),
    /// Its certificate was made by another authority.
    #[error(
        "its certificate was not made by this rack's authority: it is of another rack, or of an \
         authority that was retired (`venice identity rotate`); join again with `venice join TOKEN` \
         and restart the agent, or start the program again"
    )]
    Foreign,
}

/// A rack's authorities, with the revocations in force.
pub struct Trust {
    roots: RwLock<Roots>,
    revoked: RwLock<Revocations>,
}

#[derive(Clone)]
struct Roots {
    verifier: Arc<dyn ClientCertVerifier>,
    /// Version of the authorities.
    version: u64,
}

impl Roots {
    fn of(authorities: &Authorities) -> Result<Self, Error> {
        let roots = Arc::new(authorities.roots()?);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
        let verifier = verifier.build().map_err(|error| Error::General(error.to_string()))?;
        Ok(Self { verifier, version: authorities.version() })
    }
}

impl Trust {
    /// Trusts certificates signed by these authorities.
    ///
    /// # Errors
    /// Fails if a certificate is invalid.
    pub fn new(authorities: &Authorities) -> Result<Self, Error> {
        Ok(Self { roots: RwLock::new(Roots::of(authorities)?), revoked: RwLock::default() })
    }

    /// Trusts these authorities from now on.
    pub(crate) fn set_authorities(&self, authorities: &Authorities) -> Result<(), Error> {
        let roots = Roots::of(authorities)?;
        *self.roots.write().unwrap_or_else(PoisonError::into_inner) = roots;
        Ok(())
    }

    /// Version of the trusted authorities.
    pub(crate) fn version(&self) -> u64 {
        self.roots.read().unwrap_or_else(PoisonError::into_inner).version
    }

    /// Sets the revocations in force.
    pub fn set_revoked(&self, revoked: Revocations) {
        *self.revoked.write().unwrap_or_else(PoisonError::into_inner) = revoked;
    }

    pub(crate) fn revoked(&self) -> Revocations {
        self.revoked.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Version of the revocations in force.
    pub(crate) fn revoked_version(&self) -> u64 {
        self.revoked.read().unwrap_or_else(PoisonError::into_inner).version()
    }

    /// Returns the time until which a node's certificates are void, in milliseconds since 1970.
    pub(crate) fn revoked_until_ms(&self, node: &str) -> Option<u64> {
        self.revoked.read().unwrap_or_else(PoisonError::into_inner).until_ms(node)
    }

    /// Verifies a peer's certificate chain at the time `now`.
    ///
    /// # Errors
    /// The reason why it is not admitted.
    pub fn verify(
        &self,
        chain: Option<&[CertificateDer<'_>]>,
        now: UnixTime,
    ) -> Result<CertificateInfo, NotAdmitted> {
        let [certificate, rest @ ..] = chain.unwrap_or_default() else {
            return Err(NotAdmitted::NoCertificate);
        };
        let info = CertificateInfo::by(certificate).ok_or(NotAdmitted::Foreign)?;
        let verifier = {
            let roots = self.roots.read().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(&roots.verifier)
        };
        match verifier.verify_client_cert(certificate, rest, now) {
            Ok(_) => self.check_revoked(&info).map(|()| info),
            Err(Error::InvalidCertificate(error)) => Err(match error {
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    NotAdmitted::Expired(info.caller)
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    NotAdmitted::NotYet(info.caller)
                }
                _ => NotAdmitted::Foreign,
            }),
            Err(_) => Err(NotAdmitted::Foreign),
        }
    }

    /// Checks that an admitted peer has not been revoked since.
    ///
    /// # Errors
    /// [`NotAdmitted::Revoked`].
    pub fn check_revoked(&self, info: &CertificateInfo) -> Result<(), NotAdmitted> {
        let revoked = self.revoked.read().unwrap_or_else(PoisonError::into_inner);
        if revoked.covers(&info.caller, info.issued_ms) {
            return Err(NotAdmitted::Revoked(info.caller.clone()));
        }
        Ok(())
    }
}

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trust").field("revoked", &self.revoked).finish_non_exhaustive()
    }
}
