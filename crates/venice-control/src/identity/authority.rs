//! The certificate authority of a rack: a key, its certificate, and the certificates it signs for
//! nodes and users.

use super::authorities::Authorities;
use super::credential::{Credential, KeyPem};
use super::error::IdentityError;
use super::files::{read, write_private, write_public};
use super::role::{dns_of, uri_of};
use super::rotation;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
    SerialNumber,
};
use ring::digest::{SHA256, digest};
use ring::hmac;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use time::OffsetDateTime;
use venice_rack::caller::Caller;
use venice_rack::revocation::Revocation;

/// Lifetime of a rack's authority.
const AUTHORITY_LIFE: Duration = Duration::from_secs(20 * 365 * 86_400);
/// Backdating of certificates, since clocks differ.
pub(super) const BACKDATED: Duration = Duration::from_secs(10 * 60);
pub(super) const CERTIFICATE_FILE: &str = "authority.crt";
pub(super) const KEY_FILE: &str = "authority.key";

/// Lifetimes of certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    /// Lifetime for the Monitor Node and the nodes; they renew when a third is left.
    pub node: Duration,
    /// Lifetime for a program's user; it renews at half.
    pub user: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self { node: Duration::from_secs(30 * 86_400), user: Duration::from_secs(86_400) }
    }
}

/// SHA-256 over an authority's certificate; a join token pins it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Computes the fingerprint of a certificate, DER.
    pub fn of(certificate: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, certificate).as_ref());
        Self(bytes)
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The authority.
pub struct Authority {
    authorities: Authorities,
    issuer: Issuer<'static, KeyPair>,
    lifetimes: Lifetimes,
    /// Key of the seals on revocations.
    seals: hmac::Key,
    /// That of the former authority, while it is rotated.
    former_seals: Option<hmac::Key>,
    /// New certificates are dated later than this, whatever the clock says.
    signed_after_ms: AtomicU64,
    /// The latest date given.
    newest_ms: AtomicU64,
}

impl Authority {
    /// True if there is an authority in `dir`.
    pub fn exists(dir: &Path) -> bool {
        dir.join(CERTIFICATE_FILE).exists()
    }

    /// Names of an authority's files in its directory. The last one marks it as complete.
    pub const FILES: [&str; 3] = [KEY_FILE, rotation::FILE, CERTIFICATE_FILE];
    /// Names of the files that every authority has.
    pub const REQUIRED_FILES: [&str; 2] = [KEY_FILE, CERTIFICATE_FILE];

    /// Returns the names of the files of the authority in `dir`.
    pub fn files_in(dir: &Path) -> Vec<&'static str> {
        Self::FILES.into_iter().filter(|name| dir.join(name).exists()).collect()
    }

    /// Creates an authority and stores it in `dir`, which is created for its owner only.
    ///
    /// # Errors
    /// [`IdentityError::Exists`] if there is one; [`IdentityError::File`].
    pub fn create(dir: &Path) -> Result<Self, IdentityError> {
        if Self::exists(dir) {
            return Err(IdentityError::Exists { dir: dir.to_owned() });
        }
        let (key, params) = (KeyPair::generate()?, authority_params()?);
        let certificate = params.self_signed(&key)?;
        // The certificate is written last: it marks the authority as complete.
        write_private(&dir.join(KEY_FILE), key.serialize_pem().as_bytes())?;
        write_public(&dir.join(CERTIFICATE_FILE), certificate.pem().as_bytes())?;
        Self::open(dir)
    }

    /// Opens the authority in `dir`.
    ///
    /// # Errors
    /// [`IdentityError::NoAuthority`], [`IdentityError::File`], [`IdentityError::Damaged`].
    pub fn open(dir: &Path) -> Result<Self, IdentityError> {
        let certificate = read(&dir.join(CERTIFICATE_FILE)).map_err(|error| match error {
            IdentityError::File { source, .. } if source.kind() == ErrorKind::NotFound => {
                IdentityError::NoAuthority { dir: dir.to_owned() }
            }
            error => error,
        })?;
        let certificate = CertificateDer::from_pem_slice(&certificate)
            .map_err(|_| damaged(dir, CERTIFICATE_FILE))?;
        let key =
            String::from_utf8(read(&dir.join(KEY_FILE))?).map_err(|_| damaged(dir, KEY_FILE))?;
        let key = KeyPair::from_pem(&key).map_err(|_| damaged(dir, KEY_FILE))?;
        let seals = seal_key(&key);
        let rotation = rotation::load(dir)?;
        let (authorities, issuer, seals, former_seals) = match rotation {
            None => {
                let issuer = Issuer::from_ca_cert_der(&certificate, key)?;
                (Authorities::of(certificate), issuer, seals, None)
            }
            Some(next) => {
                let issuer = Issuer::from_ca_cert_der(&next.certificate, next.key)?;
                // The end of a rotation has been cut off.
                let is_over = next.certificate == certificate;
                let former_seals = (!is_over).then_some(seals);
                let authorities = match is_over {
                    true => Authorities::of(certificate),
                    false => Authorities::rotated(next.certificate, next.cross, certificate),
                };
                let seals = seal_key(issuer.key());
                (authorities, issuer, seals, former_seals)
            }
        };
        let (lifetimes, signed_after_ms) = (Lifetimes::default(), AtomicU64::new(0));
        let newest_ms = AtomicU64::new(0);
        Ok(Self { authorities, issuer, lifetimes, seals, former_seals, signed_after_ms, newest_ms })
    }

    /// Sets the lifetimes of certificates.
    #[must_use]
    pub fn with_lifetimes(self, lifetimes: Lifetimes) -> Self {
        Self { lifetimes, ..self }
    }

    /// Dates new certificates later than a revocation up to this moment, in milliseconds since
    /// 1970, even if the clock has gone back. Set the revocation in force first: a signature with
    /// such a date vouches for the caller.
    pub fn sign_after(&self, revoked_ms: u64) {
        self.signed_after_ms.fetch_max(revoked_ms, Ordering::AcqRel);
    }

    /// Returns the latest date of a certificate signed by this process, in milliseconds since 1970;
    /// ahead of the clock if that went back. 0: none was signed.
    pub fn newest_ms(&self) -> u64 {
        self.newest_ms.load(Ordering::Acquire)
    }

    /// Seals a revocation, so that every Monitor Node of this rack recognises it.
    #[must_use]
    pub fn seal(&self, revocation: Revocation) -> Revocation {
        let seal = hmac::sign(&self.seals, &sealed_bytes(&revocation)).as_ref().to_vec();
        Revocation { seal, ..revocation }
    }

    /// True if a Monitor Node of this rack has sealed the revocation.
    pub fn has_sealed(&self, revocation: &Revocation) -> bool {
        let mut keys = std::iter::once(&self.seals).chain(&self.former_seals);
        let bytes = sealed_bytes(revocation);
        keys.any(|key| hmac::verify(key, &bytes, &revocation.seal).is_ok())
    }

    /// Returns the fingerprint that a join token pins.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(self.certificate())
    }

    /// Certificate of the authority, DER.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        self.authorities.present()
    }

    /// The authority, with the former one while it is rotated.
    pub fn authorities(&self) -> &Authorities {
        &self.authorities
    }

    /// Returns the time at which the present authority was made, in milliseconds since 1970.
    pub fn made_ms(&self) -> u64 {
        use x509_parser::prelude::{FromDer, X509Certificate};
        let parsed = X509Certificate::from_der(self.certificate()).ok();
        parsed.and_then(|(_, it)| issued_ms(it.raw_serial())).unwrap_or(0)
    }

    /// Generates a key with a certificate for `caller`.
    ///
    /// # Errors
    /// [`IdentityError::Crypto`].
    pub fn credential(&self, caller: &Caller) -> Result<Credential, IdentityError> {
        self.credential_at(OffsetDateTime::now_utc(), caller)
    }

    /// Generates a credential as of `now`.
    pub(super) fn credential_at(
        &self,
        now: OffsetDateTime,
        caller: &Caller,
    ) -> Result<Credential, IdentityError> {
        let key = KeyPem::generate()?;
        let certificate = self.sign(now, caller, key.pair())?;
        Credential::new(certificate, self.authorities.clone(), key)
    }

    /// Signs a certificate for `caller` and the key that signed `request` (PKCS #10, DER). Other
    /// contents of the request are ignored.
    ///
    /// # Errors
    /// [`IdentityError::BadRequest`] for a malformed request or a wrong signature.
    pub fn answer(
        &self,
        caller: &Caller,
        request: &[u8],
    ) -> Result<CertificateDer<'static>, IdentityError> {
        let request = CertificateSigningRequestParams::from_der(&request.into())
            .map_err(|_| IdentityError::BadRequest)?;
        self.sign(OffsetDateTime::now_utc(), caller, &request.public_key)
    }

    fn sign(
        &self,
        now: OffsetDateTime,
        caller: &Caller,
        key: &impl PublicKeyData,
    ) -> Result<CertificateDer<'static>, IdentityError> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.distinguished_name.push(DnType::CommonName, caller.to_string());
        let uri = uri_of(caller).try_into().map_err(|_| IdentityError::BadRequest)?;
        params.subject_alt_names.push(SanType::URI(uri));
        if let Some(dns) = dns_of(caller) {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
            let dns = dns.try_into().map_err(|_| IdentityError::BadRequest)?;
            params.subject_alt_names.push(SanType::DnsName(dns));
        }
        let life = match caller {
            Caller::Monitor | Caller::Node(_) => self.lifetimes.node,
            Caller::User(_) => self.lifetimes.user,
        };
        (params.not_before, params.not_after) = (now - BACKDATED, now + life);
        let dated_ms = self.date_ms(now);
        params.serial_number = Some(serial(dated_ms)?);
        Ok(params.signed_by(key, &self.issuer)?.der().clone())
    }

    /// Returns the date of a certificate signed now, for revocations.
    fn date_ms(&self, now: OffsetDateTime) -> u64 {
        let after_ms = self.signed_after_ms.load(Ordering::Acquire);
        let dated_ms = unix_ms(now).max(after_ms.saturating_add(1));
        self.newest_ms.fetch_max(dated_ms, Ordering::AcqRel);
        dated_ms
    }
}

/// Returns the contents of a new authority's certificate.
pub(super) fn authority_params() -> Result<CertificateParams, IdentityError> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, "Venice rack");
    let now = OffsetDateTime::now_utc();
    (params.not_before, params.not_after) = (now - BACKDATED, now + AUTHORITY_LIFE);
    params.serial_number = Some(serial(unix_ms(now))?);
    Ok(params)
}

pub(super) fn damaged(dir: &Path, name: &str) -> IdentityError {
    let why = "not a PEM file of the expected kind".to_owned();
    IdentityError::Damaged { path: dir.join(name), why }
}

/// Returns the SHA-256 over the public key in a certificate request (PKCS #10, DER). The requester
/// has proved possession of the private key.
///
/// # Errors
/// [`IdentityError::BadRequest`] for a malformed request or a wrong signature.
pub(crate) fn hash_of_requested_key(request: &[u8]) -> Result<[u8; 32], IdentityError> {
    let request = CertificateSigningRequestParams::from_der(&request.into())
        .map_err(|_| IdentityError::BadRequest)?;
    let hash = Fingerprint::of(&request.public_key.subject_public_key_info());
    Ok(hash.0)
}

/// Derives the seal key from the authority's key, whose owner can make revocations as well as
/// certificates.
fn seal_key(key: &KeyPair) -> hmac::Key {
    let mut hash = ring::digest::Context::new(&SHA256);
    hash.update(b"venice revocation seal");
    hash.update(&key.serialize_der());
    hmac::Key::new(hmac::HMAC_SHA256, hash.finish().as_ref())
}

fn sealed_bytes(revocation: &Revocation) -> Vec<u8> {
    [&revocation.until_ms.to_be_bytes(), revocation.node.as_bytes()].concat()
}

fn unix_ms(now: OffsetDateTime) -> u64 {
    u64::try_from(now.unix_timestamp_nanos() / 1_000_000).unwrap_or(0)
}

/// Creates a serial number from its date, in milliseconds since 1970, and random bits: a revocation
/// names a time.
fn serial(millis: u64) -> Result<SerialNumber, IdentityError> {
    let mut bytes = [0u8; 16];
    // Positive, without a leading zero byte.
    bytes[..8].copy_from_slice(&(millis | 1 << 62).to_be_bytes());
    super::random::fill(&mut bytes[8..])?;
    Ok(SerialNumber::from_slice(&bytes))
}

/// Returns the date of a serial number, in milliseconds since 1970.
pub(crate) fn issued_ms(serial: &[u8]) -> Option<u64> {
    let first = serial.first_chunk::<8>().filter(|_| serial.len() == 16)?;
    Some(u64::from_be_bytes(*first) & !(1 << 62))
}
