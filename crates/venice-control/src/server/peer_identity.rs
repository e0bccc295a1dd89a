//! The peer of a connection.

use crate::identity::{CertificateInfo, NotAdmitted};
use rustls::pki_types::CertificateDer;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tonic::Request;

/// The peer of a connection.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pub(super) addr: SocketAddr,
    pub(super) chain: Arc<[CertificateDer<'static>]>,
    /// Verdict on its certificate at connection time.
    pub(super) info: Result<Arc<CertificateInfo>, NotAdmitted>,
    /// End of its certificate by the clock at connection time. A clock that jumps later ends no
    /// open connection: leases are renewed over it.
    pub(super) expires: Instant,
    /// Version of the authorities by which it was judged.
    pub(super) trust_version: u64,
}

impl Peer {
    pub(super) fn new(
        addr: SocketAddr,
        chain: Arc<[CertificateDer<'static>]>,
        info: Result<Arc<CertificateInfo>, NotAdmitted>,
        trust_version: u64,
    ) -> Self {
        let left = info.as_ref().map_or(Duration::ZERO, |info| info.left());
        Self { addr, chain, info, expires: Instant::now() + left, trust_version }
    }

    /// True if the certificate has expired since the connection was opened.
    pub(super) fn has_expired(&self) -> bool {
        self.info.is_ok() && self.expires <= Instant::now()
    }
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
        let trust_version = credential.authorities().version();
        Self::new(([127, 0, 0, 1], 1).into(), chain, info, trust_version)
    }
}

/// Returns the peer of a request.
pub(super) fn peer<T>(request: &Request<T>) -> Peer {
    let peer = request.extensions().get::<Peer>();
    peer.expect("each connection has its peer").clone()
}
