//! Listening for gRPC.

use crate::identity::IdentityError;
use std::io;
use thiserror::Error;
use tokio::net::TcpListener;

/// Why a service cannot be served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// Somebody else listens there already.
    #[error("{addr} is in use by another process: choose another address")]
    PortTaken {
        /// The address.
        addr: String,
        /// What the system said.
        source: io::Error,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}")]
    Listen {
        /// The address.
        addr: String,
        /// What the system said.
        source: io::Error,
    },
    /// Its certificate cannot be shown.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The service broke off.
    #[error("the gRPC service broke off")]
    Serve(#[source] tonic::transport::Error),
}

/// Listens on `addr` (`host:port`; port 0 lets the system choose).
///
/// # Errors
/// [`ServeError::PortTaken`] when somebody else listens there, [`ServeError::Listen`] otherwise.
pub async fn bind(addr: &str) -> Result<TcpListener, ServeError> {
    TcpListener::bind(addr).await.map_err(|source| {
        let addr = addr.to_owned();
        if source.kind() == io::ErrorKind::AddrInUse {
            ServeError::PortTaken { addr, source }
        } else {
            ServeError::Listen { addr, source }
        }
    })
}
