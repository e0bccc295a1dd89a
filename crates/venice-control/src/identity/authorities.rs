//! The authorities that a member of the rack trusts: one, and while it is rotated its former one too.
//!
//! During a rotation each member shows, behind its own certificate, the new authority's certificate,
//! the same signed by the former authority, and the former one's. So a peer that knows only one of the
//! two finds a way to it.

use super::authority::Fingerprint;
use rustls::pki_types::CertificateDer;
use rustls::{Error, RootCertStore};

type Certificate = CertificateDer<'static>;

/// The authorities of a rack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authorities {
    present: Certificate,
    rotation: Option<Rotation>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rotation {
    /// The present authority's certificate, signed by the former one.
    cross: Certificate,
    former: Certificate,
}

impl Authorities {
    /// A single authority.
    pub fn of(present: Certificate) -> Self {
        Self { present, rotation: None }
    }

    pub(super) fn rotated(present: Certificate, cross: Certificate, former: Certificate) -> Self {
        Self { present, rotation: Some(Rotation { cross, former }) }
    }

    /// Builds them from a message; `None` unless there are two further certificates or none.
    pub(crate) fn from_der(present: Vec<u8>, rotation: Vec<Vec<u8>>) -> Option<Self> {
        let present = present.into();
        let mut rotation = rotation.into_iter().map(Into::into);
        match (rotation.next(), rotation.next(), rotation.next()) {
            (None, ..) => Some(Self::of(present)),
            (Some(cross), Some(former), None) => Some(Self::rotated(present, cross, former)),
            _ => None,
        }
    }

    /// Returns the two further certificates of a rotation, for a message.
    pub(crate) fn rotation_der(&self) -> Vec<Vec<u8>> {
        self.more().map(|certificate| certificate.to_vec()).collect()
    }

    /// Certificate of the present authority, DER.
    pub fn present(&self) -> &Certificate {
        &self.present
    }

    /// Certificate of the former authority while it is rotated, DER.
    pub fn former(&self) -> Option<&Certificate> {
        self.rotation.as_ref().map(|rotation| &rotation.former)
    }

    /// Returns the certificates that a member shows behind its own.
    pub(super) fn shown(&self) -> impl Iterator<Item = &Certificate> {
        std::iter::once(&self.present).chain(self.more())
    }

    fn more(&self) -> impl Iterator<Item = &Certificate> {
        self.rotation.iter().flat_map(|rotation| [&rotation.cross, &rotation.former])
    }

    fn trusted(&self) -> impl Iterator<Item = &Certificate> {
        std::iter::once(&self.present).chain(self.former())
    }

    /// Returns the roots of trust.
    pub(super) fn roots(&self) -> Result<RootCertStore, Error> {
        let mut roots = RootCertStore::empty();
        self.trusted().try_for_each(|certificate| roots.add(certificate.clone()))?;
        Ok(roots)
    }

    /// True if both are of one rack, as far as their certificates tell.
    pub fn is_of_same_rack(&self, other: &Self) -> bool {
        self.trusted().any(|certificate| other.trusted().any(|it| it == certificate))
    }

    /// Returns a number for the trusted authorities; never 0.
    pub fn version(&self) -> u64 {
        let all: Vec<u8> = self.trusted().flat_map(|it| it.to_vec()).collect();
        let Fingerprint(hash) = Fingerprint::of(&all);
        let first = hash.first_chunk().expect("32 bytes");
        u64::from_be_bytes(*first).max(1)
    }
}
