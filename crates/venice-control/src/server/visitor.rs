//! Who is at the other end of a connection.

use crate::identity::{NotAdmitted, Said};
use rustls::pki_types::CertificateDer;
use std::net::SocketAddr;
use std::sync::Arc;
use tonic::Request;

/// Who is at the other end of a connection.
#[derive(Debug, Clone)]
pub(super) struct Visitor {
    pub(super) addr: SocketAddr,
    pub(super) chain: Arc<[CertificateDer<'static>]>,
    /// What it was worth when the connection was made.
    pub(super) said: Result<Arc<Said>, NotAdmitted>,
}

#[cfg(test)]
impl Visitor {
    /// Who shows this, and what was thought of it when it came.
    pub(super) fn showing(
        credential: &crate::identity::Credential,
        thought: Option<NotAdmitted>,
    ) -> Self {
        let chain = [credential.certificate().clone()].into();
        let said = thought.map_or_else(|| Ok(Arc::new(credential.said().clone())), Err);
        Self { addr: ([127, 0, 0, 1], 1).into(), chain, said }
    }
}

/// Who made a request.
pub(super) fn visitor<T>(request: &Request<T>) -> Visitor {
    let visitor = request.extensions().get::<Visitor>();
    visitor.expect("each connection of a door has its visitor").clone()
}
