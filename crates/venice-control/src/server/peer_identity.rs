//! The peer of a connection.

use crate::identity::{CertificateInfo, NotAdmitted};
use rustls::pki_types::CertificateDer;
use std::net::SocketAddr;
use std::sync::Arc;
use tonic::Request;

/// The peer of a connection.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pub(super) addr: SocketAddr,
    pub(super) chain: Arc<[CertificateDer<'static>]>,
    /// Verdict on its certificate at connection time.
    pub(super) info: Result<Arc<CertificateInfo>, NotAdmitted>,
}

#[cfg(test)]
impl Peer {
    /// A peer with this credential and this verdict.
    pub(super) fn showing(
        credential: &crate::identity::Credential,
        thought: Option<NotAdmitted>,
    ) -> Self {
        let chain = [credential.certificate().clone()].into();
        let info = thought.map_or_else(|| Ok(Arc::new(credential.info().clone())), Err);
        Self { addr: ([127, 0, 0, 1], 1).into(), chain, info }
    }
}

/// Returns the peer of a request.
pub(super) fn peer<T>(request: &Request<T>) -> Peer {
    let peer = request.extensions().get::<Peer>();
    peer.expect("each connection has its peer").clone()
}
