//! Listening for gRPC.

use super::connection_limits::{CALLS_OF_CONNECTION, PING_INTERVAL, PING_TIMEOUT};
use crate::identity::IdentityError;
use std::io;
use thiserror::Error;
use tokio::net::TcpListener;

/// An error of a service's listener.
#[derive(Debug, Error)]
pub enum ServeError {
    /// Another process listens on the address.
    #[error("{addr} is in use by another process: choose another address")]
    PortTaken {
        /// The address.
        addr: String,
        /// The system's error.
        source: io::Error,
    },
    /// The address cannot be used.
    #[error(
        "cannot listen on {addr}: it must be an address of this machine, or 0.0.0.0 with that port \
         (--listen, or `listen` in the configuration)"
    )]
    Listen {
        /// The address.
        addr: String,
        /// The system's error.
        source: io::Error,
    },
    /// The certificate cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The service failed.
    #[error("the gRPC service failed")]
    Serve(#[source] tonic::transport::Error),
}

/// Listens on `addr` (`host:port`; port 0 takes a free one).
///
/// # Errors
/// [`ServeError::PortTaken`] if another process listens there, else [`ServeError::Listen`].
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

/// Returns the transport of a TLS service: it pings its peers, so that none is mistaken for idle,
/// and bounds the calls of a connection.
pub(super) fn transport() -> tonic::transport::Server {
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .max_concurrent_streams(CALLS_OF_CONNECTION)
}
