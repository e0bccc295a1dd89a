//! Special TLS verifiers: for servers, which verify client certificates themselves later, and for
//! machines that have only the fingerprint of the rack's authority.

use super::authority::Fingerprint;
use super::error::IdentityError;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    PeerIncompatible, RootCertStore, SignatureScheme,
};
use std::sync::Arc;

type Signed<'a> = (&'a [u8], &'a CertificateDer<'a>, &'a DigitallySignedStruct);

/// Verifies that the peer has the key of its certificate. TLS 1.2 is not supported.
#[derive(Debug)]
struct Signatures(Arc<CryptoProvider>);

impl Signatures {
    fn new() -> Self {
        Self(Arc::new(rustls::crypto::ring::default_provider()))
    }

    fn tls12(&self) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::ServerDoesNotSupportTls12Or13.into())
    }

    fn tls13(&self, (message, cert, dss): Signed<'_>) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Makes TLS request a certificate and verify its key only. The certificate itself is verified when
/// the connection is up ([`super::Trust::verify`]): only then can the server report the reason of a
/// refusal, and only then does a peer without a certificate reach the one call allowed to it.
#[derive(Debug)]
pub(super) struct RequestOnly(Signatures);

impl RequestOnly {
    pub(super) fn new() -> Self {
        Self(Signatures::new())
    }
}

impl ClientCertVerifier for RequestOnly {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.tls13((message, cert, dss))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.schemes()
    }
}

/// TLS configuration that trusts the authority with this fingerprint and shows no certificate.
pub(crate) fn pinned_client(pinned: Fingerprint) -> Result<Arc<ClientConfig>, IdentityError> {
    let signatures = Signatures::new();
    let provider = Arc::clone(&signatures.0);
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned { pinned, signatures }))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// Finds the pinned authority in the shown chain and passes it to the usual verifier.
#[derive(Debug)]
struct Pinned {
    pinned: Fingerprint,
    signatures: Signatures,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let authority = intermediates.iter().find(|shown| Fingerprint::of(shown) == self.pinned);
        let authority = authority.ok_or(CertificateError::UnknownIssuer)?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let provider = Arc::clone(&self.signatures.0);
        let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let usual = usual.build().map_err(|error| Error::General(error.to_string()))?;
        // The way to the pinned authority may lead over the one that replaces it.
        usual.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signatures.tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signatures.tls13((message, cert, dss))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signatures.schemes()
    }
}
