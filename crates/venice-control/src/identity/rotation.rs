//! Rotation of a rack's authority.
//!
//! It begins with one file beside the authority: the next authority's key, its certificate, and that
//! certificate signed by the present authority. From then on the next authority signs, and both are
//! trusted. It ends as the next authority's key and certificate replace the former one's and the file
//! is removed, in this order: an authority whose rotation was cut off anywhere can be opened.

use super::authority::{
    Authority, CERTIFICATE_FILE, Fingerprint, KEY_FILE, authority_params, damaged,
};
use super::error::IdentityError;
use super::files::{read, write_private, write_public};
use rcgen::{Issuer, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fs;
use std::io;
use std::path::Path;

pub(super) const FILE: &str = "rotation.pem";

/// The next authority.
pub(super) struct Next {
    pub(super) key: KeyPair,
    pub(super) certificate: CertificateDer<'static>,
    /// Its certificate signed by the former authority.
    pub(super) cross: CertificateDer<'static>,
}

/// Loads the next authority in `dir`, if there is one.
pub(super) fn load(dir: &Path) -> Result<Option<Next>, IdentityError> {
    let path = dir.join(FILE);
    if !path.exists() {
        return Ok(None);
    }
    let text = String::from_utf8(read(&path)?).map_err(|_| damaged(dir, FILE))?;
    let key = KeyPair::from_pem(&text).map_err(|_| damaged(dir, FILE))?;
    let mut certificates = CertificateDer::pem_slice_iter(text.as_bytes());
    let mut next = || certificates.next().and_then(Result::ok);
    match (next(), next()) {
        (Some(certificate), Some(cross)) => Ok(Some(Next { key, certificate, cross })),
        _ => Err(damaged(dir, FILE)),
    }
}

impl Authority {
    /// Begins the rotation of the authority in `dir`; returns the fingerprint of the next one.
    ///
    /// # Errors
    /// [`IdentityError::Rotating`] during a rotation; those of [`Self::open`]; [`IdentityError::File`].
    pub fn begin_rotation(dir: &Path) -> Result<Fingerprint, IdentityError> {
        if load(dir)?.is_some() {
            return Err(IdentityError::Rotating);
        }
        let former = CertificateDer::from_pem_slice(&read(&dir.join(CERTIFICATE_FILE))?)
            .map_err(|_| damaged(dir, CERTIFICATE_FILE))?;
        let key =
            String::from_utf8(read(&dir.join(KEY_FILE))?).map_err(|_| damaged(dir, KEY_FILE))?;
        let key = KeyPair::from_pem(&key).map_err(|_| damaged(dir, KEY_FILE))?;
        let issuer = Issuer::from_ca_cert_der(&former, key)?;
        let (next, params) = (KeyPair::generate()?, authority_params()?);
        let certificate = params.self_signed(&next)?;
        let cross = params.signed_by(&next, &issuer)?;
        let text = [next.serialize_pem(), certificate.pem(), cross.pem()].concat();
        write_private(&dir.join(FILE), text.as_bytes())?;
        Ok(Fingerprint::of(certificate.der()))
    }

    /// Ends the rotation of the authority in `dir`; returns the fingerprint of the present one. The
    /// former one is void, and its key is gone.
    ///
    /// # Errors
    /// [`IdentityError::NotRotating`]; those of [`Self::open`]; [`IdentityError::File`].
    pub fn finish_rotation(dir: &Path) -> Result<Fingerprint, IdentityError> {
        let Some(Next { key, certificate, .. }) = load(dir)? else {
            return Err(IdentityError::NotRotating);
        };
        write_private(&dir.join(KEY_FILE), key.serialize_pem().as_bytes())?;
        let pem = super::credential::pem_of(&certificate);
        write_public(&dir.join(CERTIFICATE_FILE), pem.as_bytes())?;
        let path = dir.join(FILE);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(IdentityError::File { path, source })
            }
            _ => Ok(Fingerprint::of(&certificate)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Credential, NotAdmitted, Trust};
    use rustls::pki_types::UnixTime;
    use venice_rack::caller::Caller;
    use venice_rack::revocation::Revocation;

    fn shows(credential: &Credential) -> Vec<CertificateDer<'static>> {
        credential.chain()
    }

    /// True if a member that trusts as `one` does admits `other`.
    fn admits(one: &Credential, other: &Credential) -> Result<(), NotAdmitted> {
        let trust = Trust::new(one.authorities()).unwrap();
        trust.verify(Some(&shows(other)), UnixTime::now()).map(drop)
    }

    #[test]
    fn rotation_bridges_both_authorities() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        let of_node =
            |authority: &Authority| authority.credential(&Caller::Node("node7".into())).unwrap();
        let first = Authority::create(dir).unwrap();
        let old = of_node(&first);
        let sealed = first.seal(Revocation::new("node1", 7));
        assert!(matches!(Authority::finish_rotation(dir), Err(IdentityError::NotRotating)));

        let next = Authority::begin_rotation(dir).unwrap();
        assert!(matches!(Authority::begin_rotation(dir), Err(IdentityError::Rotating)));
        let second = Authority::open(dir).unwrap();
        assert_eq!(second.fingerprint(), next);
        assert!(second.has_sealed(&sealed));
        let between = of_node(&second);
        for (one, other) in [(&old, &between), (&between, &old)] {
            assert_eq!(admits(one, other), Ok(()));
        }

        assert_eq!(Authority::finish_rotation(dir).unwrap(), next);
        let third = Authority::open(dir).unwrap();
        assert_eq!(third.fingerprint(), next);
        let new = of_node(&third);
        for (one, other) in [(&new, &between), (&between, &new), (&between, &old)] {
            assert_eq!(admits(one, other), Ok(()));
        }
        for (one, other) in [(&new, &old), (&old, &new)] {
            assert_eq!(admits(one, other), Err(NotAdmitted::Foreign));
        }
        assert!(!third.has_sealed(&sealed));
        let versions = [&old, &between, &new].map(|it| it.authorities().version());
        assert!(versions[0] != versions[1] && versions[1] != versions[2]);
        // Both ends of a rotation are of one rack.
        assert!(between.replaces(&old) && new.replaces(&between) && !new.replaces(&old));
    }

    #[test]
    fn interrupted_finish_can_be_repeated() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        Authority::create(dir).unwrap();
        let next = Authority::begin_rotation(dir).unwrap();
        let half = fs::read(dir.join(FILE)).unwrap();
        let old = fs::read(dir.join(CERTIFICATE_FILE)).unwrap();
        Authority::finish_rotation(dir).unwrap();
        // Cut off before the last file, and before the last but one.
        fs::write(dir.join(FILE), half).unwrap();
        let opened = Authority::open(dir).unwrap();
        assert_eq!((opened.fingerprint(), opened.authorities().former()), (next, None));
        let new = fs::read(dir.join(CERTIFICATE_FILE)).unwrap();
        fs::write(dir.join(CERTIFICATE_FILE), old).unwrap();
        assert!(Authority::open(dir).unwrap().authorities().former().is_some());
        Authority::finish_rotation(dir).unwrap();
        assert_eq!(fs::read(dir.join(CERTIFICATE_FILE)).unwrap(), new);
        assert_eq!(Authority::open(dir).unwrap().fingerprint(), next);
    }

    #[test]
    fn credential_keeps_former_authority() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, own) = (temp.path().join("authority"), temp.path().join("own"));
        Authority::create(&dir).unwrap();
        Authority::begin_rotation(&dir).unwrap();
        let authority = Authority::open(&dir).unwrap();
        authority.credential(&Caller::Node("node7".into())).unwrap().save(&own).unwrap();
        let loaded = Credential::load(&own).unwrap();
        assert_eq!(loaded.authorities(), authority.authorities());
    }
}
