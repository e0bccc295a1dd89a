//! The credential in use by a process, and its TLS configurations. A new credential replaces the
//! old one at run time: open connections stay, later ones use it.

use super::authorities::Authorities;
use super::credential::Credential;
use super::error::IdentityError;
use super::verifiers::RequestOnly;
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};
use std::sync::{Arc, PoisonError, RwLock};

/// Protocol inside TLS, for both ends.
const ALPN: &[u8] = b"h2";

/// A credential in use. Clones share it.
#[derive(Clone)]
pub struct Holder(Arc<RwLock<Arc<InUse>>>);

struct InUse {
    credential: Credential,
    certified: Arc<CertifiedKey>,
    client: Arc<ClientConfig>,
}

impl Holder {
    /// Starts with this credential.
    ///
    /// # Errors
    /// [`IdentityError::Tls`].
    pub fn new(credential: Credential) -> Result<Self, IdentityError> {
        Ok(Self(Arc::new(RwLock::new(Arc::new(InUse::new(credential)?)))))
    }

    /// Replaces the credential.
    ///
    /// # Errors
    /// [`IdentityError::Tls`]; the old credential then stays in use.
    pub fn replace(&self, credential: Credential) -> Result<(), IdentityError> {
        let next = Arc::new(InUse::new(credential)?);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    /// Returns the facts of the present certificate.
    pub fn info(&self) -> super::CertificateInfo {
        self.in_use().credential.info().clone()
    }

    /// Certificate of the authority, DER.
    pub fn authority(&self) -> CertificateDer<'static> {
        self.in_use().credential.authority().clone()
    }

    /// The authorities that its owner trusts.
    pub fn authorities(&self) -> Authorities {
        self.in_use().credential.authorities().clone()
    }

    /// TLS configuration for outgoing connections.
    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.in_use().client)
    }

    /// TLS configuration for incoming connections, whose peers are verified afterwards
    /// ([`super::Trust`]).
    pub(crate) fn server(&self) -> Result<Arc<ServerConfig>, IdentityError> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(Arc::new(RequestOnly::new()));
        let mut config = builder.with_cert_resolver(Arc::new(Present(self.clone())));
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Arc::new(config))
    }

    fn in_use(&self) -> Arc<InUse> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl std::fmt::Debug for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.in_use().credential.fmt(f)
    }
}

impl InUse {
    fn new(credential: Credential) -> Result<Self, IdentityError> {
        let chain = credential.chain();
        let certified = CertifiedKey::from_der(chain.clone(), credential.key_der(), &provider())?;
        let roots = credential.authorities().roots()?;
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, credential.key_der())?;
        client.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self { credential, certified: Arc::new(certified), client: Arc::new(client) })
    }
}

/// Presents the certificate in use.
#[derive(Debug)]
struct Present(Holder);

impl ResolvesServerCert for Present {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.in_use().certified))
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
