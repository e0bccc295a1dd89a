//! The peer of a connection.

use crate::identity::{NotAdmitted, Said};
use rustls::pki_types::CertificateDer;
use std::net::SocketAddr;
use std::sync::Arc;
use tonic::Request;

/// The peer of a connection.
#[derive(Debug, Clone)]
pub(super) struct Visitor {
    pub(super) addr: SocketAddr,
    pub(super) chain: Arc<[CertificateDer<'static>]>,
    /// Verdict on its certificate at connection time.
    pub(super) said: Result<Arc<Said>, NotAdmitted>,
}

#[cfg(test)]
impl Visitor {
    /// A peer with this credential and this verdict.
    pub(super) fn showing(
        credential: &crate::identity::Credential,
        thought: Option<NotAdmitted>,
    ) -> Self {
        let chain = [credential.certificate().clone()].into();
        let said = thought.map_or_else(|| Ok(Arc::new(credential.said().clone())), Err);
        Self { addr: ([127, 0, 0, 1], 1).into(), chain, said }
    }
}

/// Returns the peer of a request.
pub(super) fn visitor<T>(request: &Request<T>) -> Visitor {
    let visitor = request.extensions().get::<Visitor>();
    visitor.expect("each connection has its peer").clone()
}
