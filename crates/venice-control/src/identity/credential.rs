//! A key with its certificate, and the certificate of the authority that both ends trust.

use super::authorities::Authorities;
use super::authority::{BACKDATED, issued_ms};
use super::error::IdentityError;
use super::files::{read, write_private};
use super::role::caller_of;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use venice_rack::caller::Caller;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// File of a credential in its directory: key, certificate and authority together, so that they
/// always match.
const FILE: &str = "identity.pem";
/// The previous credential: after a clock that was ahead, the new certificate may not be valid yet.
const FILE_BEFORE: &str = "identity.before.pem";

/// A private key.
pub struct KeyPem(KeyPair);

impl KeyPem {
    /// Generates a key (ECDSA over P-256).
    ///
    /// # Errors
    /// [`IdentityError::Crypto`].
    pub fn generate() -> Result<Self, IdentityError> {
        Ok(Self(KeyPair::generate()?))
    }

    /// Creates a certificate request signed with the key (PKCS #10, DER). It names no subject: the
    /// signer has that from elsewhere.
    ///
    /// # Errors
    /// [`IdentityError::Crypto`].
    pub fn request(&self) -> Result<Vec<u8>, IdentityError> {
        let params = CertificateParams::default();
        Ok(params.serialize_request(&self.0)?.der().to_vec())
    }

    pub(super) fn from_pem(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        KeyPair::from_pem(text).ok().map(Self)
    }

    pub(crate) fn pair(&self) -> &KeyPair {
        &self.0
    }
}

/// The facts of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateInfo {
    /// Subject of the certificate.
    pub caller: Caller,
    /// Date of issue, in milliseconds since 1970; revocations refer to it.
    pub issued_ms: u64,
    /// Start of validity, in seconds since 1970.
    pub begins_s: u64,
    /// End of validity, in seconds since 1970.
    pub expires_s: u64,
}

impl CertificateInfo {
    /// Parses a certificate, DER, without verifying it.
    pub(crate) fn by(certificate: &[u8]) -> Option<CertificateInfo> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let names = parsed.subject_alternative_name().ok()??;
        let caller = names.value.general_names.iter().find_map(|name| match name {
            GeneralName::URI(uri) => caller_of(uri),
            _ => None,
        })?;
        let validity = parsed.validity();
        let begins_s = u64::try_from(validity.not_before.timestamp()).ok()?;
        let expires_s = u64::try_from(validity.not_after.timestamp()).ok()?;
        Some(CertificateInfo {
            caller,
            issued_ms: issued_ms(parsed.raw_serial())?,
            begins_s,
            expires_s,
        })
    }

    /// True if the certificate has expired.
    pub fn is_over(&self) -> bool {
        // Its last second is part of its validity.
        since_1970().as_secs() > self.expires_s
    }

    /// Returns the time until the certificate has expired.
    pub(crate) fn left(&self) -> Duration {
        // Its last second is part of its validity.
        Duration::from_secs(self.expires_s.saturating_add(1)).saturating_sub(since_1970())
    }

    /// True if the certificate is valid now, by this machine's clock.
    pub fn is_current(&self) -> bool {
        since_1970().as_secs() >= self.begins_s && !self.is_over()
    }

    /// Time until renewal: when a third of the lifetime is left, and at once if the certificate is
    /// not valid yet, because a clock was ahead.
    pub fn renew_in(&self) -> Duration {
        self.renew_in_at(since_1970())
    }

    fn renew_in_at(&self, now: Duration) -> Duration {
        if now.as_secs() < self.begins_s {
            return Duration::ZERO;
        }
        let renew_at = Duration::from_secs(self.expires_s).saturating_sub(self.life() / 3);
        renew_at.saturating_sub(now)
    }

    /// Lifetime of the certificate.
    pub fn life(&self) -> Duration {
        let all = Duration::from_secs(self.expires_s.saturating_sub(self.begins_s));
        all.saturating_sub(BACKDATED)
    }
}

/// Time since 1970 by this machine's clock.
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A key, its certificate, and the authority's certificate.
pub struct Credential {
    certificate: CertificateDer<'static>,
    authorities: Authorities,
    key: KeyPem,
    info: CertificateInfo,
}

impl Credential {
    /// Builds a credential.
    ///
    /// # Errors
    /// [`IdentityError::NamesNobody`] for a certificate without a subject in a rack.
    pub fn new(
        certificate: CertificateDer<'static>,
        authorities: Authorities,
        key: KeyPem,
    ) -> Result<Self, IdentityError> {
        let info = CertificateInfo::by(&certificate).ok_or(IdentityError::NamesNobody)?;
        Ok(Self { certificate, authorities, key, info })
    }

    /// Loads the credential in `dir`. If it is not valid yet and the previous one still is, loads
    /// the previous one: this machine's clock was ahead for a while.
    ///
    /// # Errors
    /// [`IdentityError::NoCredential`], [`IdentityError::File`], [`IdentityError::Damaged`].
    pub fn load(dir: &Path) -> Result<Self, IdentityError> {
        let path = dir.join(FILE);
        if !path.exists() {
            return Err(IdentityError::NoCredential { dir: dir.to_owned() });
        }
        let newest = Self::read_from(&path)?;
        if newest.info.is_current() || newest.info.is_over() {
            return Ok(newest);
        }
        let before = Self::read_from(&dir.join(FILE_BEFORE)).ok();
        let is_good = |before: &Self| before.info.is_current() && before.replaces(&newest);
        Ok(before.filter(is_good).unwrap_or(newest))
    }

    /// Returns the path of the credential's file.
    pub fn file_in(dir: &Path) -> PathBuf {
        dir.join(FILE)
    }

    fn read_from(path: &Path) -> Result<Self, IdentityError> {
        let text = read(path)?;
        let damaged =
            |why: &str| IdentityError::Damaged { path: path.to_owned(), why: why.to_owned() };
        let mut certificates = CertificateDer::pem_slice_iter(&text);
        let mut next = || certificates.next().and_then(Result::ok);
        let (Some(certificate), Some(authority)) = (next(), next()) else {
            return Err(damaged("it does not contain two certificates"));
        };
        let authorities = match (next(), next()) {
            (Some(cross), Some(former)) => Authorities::rotated(authority, cross, former),
            _ => Authorities::of(authority),
        };
        let key =
            PrivateKeyDer::from_pem_slice(&text).map_err(|_| damaged("it contains no key"))?;
        let key = KeyPair::try_from(key.secret_der()).map_err(|_| damaged("its key is invalid"))?;
        Self::new(certificate, authorities, KeyPem(key))
            .map_err(|_| damaged("its certificate has no subject in a rack"))
    }

    /// True if it has the same subject in the same rack as `other`.
    pub fn replaces(&self, other: &Self) -> bool {
        self.info.caller == other.info.caller
            && self.authorities.is_of_same_rack(&other.authorities)
    }

    /// Stores it in `dir`, for its owner only. The present credential there becomes the previous
    /// one.
    ///
    /// # Errors
    /// [`IdentityError::File`].
    pub fn save(&self, dir: &Path) -> Result<(), IdentityError> {
        if let Ok(before) = read(&dir.join(FILE)) {
            write_private(&dir.join(FILE_BEFORE), &before)?;
        }
        let mut text = self.key.0.serialize_pem();
        self.chain().iter().for_each(|certificate| text.push_str(&pem_of(certificate)));
        write_private(&dir.join(FILE), text.as_bytes())
    }

    /// Returns the facts of the certificate.
    pub fn info(&self) -> &CertificateInfo {
        &self.info
    }

    /// The certificate, DER.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Certificate of the authority, DER.
    pub fn authority(&self) -> &CertificateDer<'static> {
        self.authorities.present()
    }

    /// The authorities that its owner trusts.
    pub fn authorities(&self) -> &Authorities {
        &self.authorities
    }

    /// Returns the certificates to show: its own, then the authorities', for peers that know only
    /// the fingerprint of one, or only the other authority of a rotation.
    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        std::iter::once(&self.certificate).chain(self.authorities.shown()).cloned().collect()
    }

    pub(crate) fn key_der(&self) -> PrivateKeyDer<'static> {
        let der = self.key.0.serialize_der();
        PrivateKeyDer::try_from(der).expect("a key that was made here")
    }
}

impl std::fmt::Debug for Credential {
    /// Omits the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential").field("info", &self.info).finish_non_exhaustive()
    }
}

pub(super) fn pem_of(certificate: &CertificateDer<'_>) -> String {
    let lines = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new("CERTIFICATE", certificate.as_ref()), lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Authority;
    use time::OffsetDateTime;

    fn info(begins_s: u64, life_s: u64) -> CertificateInfo {
        let caller = Caller::Node("node7".into());
        let expires_s = begins_s + BACKDATED.as_secs() + life_s;
        CertificateInfo { caller, issued_ms: 0, begins_s, expires_s }
    }

    #[test]
    fn renewal_is_due_at_two_thirds() {
        let info = info(100_000, 3000);
        let made = Duration::from_secs(100_000) + BACKDATED;
        let third = Duration::from_secs(1000);
        assert_eq!(info.life(), third * 3);
        assert_eq!(info.renew_in_at(made), third * 2);
        assert_eq!(info.renew_in_at(made + third), third);
        assert_eq!(info.renew_in_at(made + third * 4), Duration::ZERO);
        // The clock was ahead when it was made, and was corrected.
        assert_eq!(info.renew_in_at(made - BACKDATED - third), Duration::ZERO);
    }

    #[test]
    fn previous_certificate_survives_clock_jump() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("identity");
        let authority = Authority::create(&temp.path().join("authority")).unwrap();
        let node7 = Caller::Node("node7".into());
        let tomorrow = OffsetDateTime::now_utc() + Duration::from_secs(86_400);
        let good = authority.credential(&node7).unwrap();
        good.save(&dir).unwrap();
        let early = authority.credential_at(tomorrow, &node7).unwrap();
        assert!(!early.info().is_current());
        early.save(&dir).unwrap();
        assert_eq!(Credential::load(&dir).unwrap().info(), good.info());
        // The previous credential of another rack is not used.
        good.save(&dir).unwrap();
        let other = Authority::create(&temp.path().join("other")).unwrap();
        let other = other.credential_at(tomorrow, &node7).unwrap();
        other.save(&dir).unwrap();
        assert_eq!(Credential::load(&dir).unwrap().info(), other.info());
    }
}
