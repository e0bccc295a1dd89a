//! Listening for gRPC.

use super::connection_limits::{CALLS_OF_CONNECTION, PING_INTERVAL, PING_TIMEOUT};
use crate::identity::IdentityError;
use std::io;
use std::time::Duration;
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
    pinging(PING_INTERVAL, PING_TIMEOUT)
}

fn pinging(interval: Duration, timeout: Duration) -> tonic::transport::Server {
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(interval))
        .http2_keepalive_timeout(Some(timeout))
        .max_concurrent_streams(CALLS_OF_CONNECTION)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio_stream::StreamExt as _;
    use tonic::service::Routes;

    // RFC 9113, sections 3.4, 6.5 and 6.7.
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const ACK: u8 = 1;
    /// Far longer than the pings take.
    const BOUND: Duration = Duration::from_secs(60);
    /// More than one ping, so that an answer is seen to count.
    const ENOUGH: usize = 5;

    fn frame(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 0], body].concat()
    }

    /// Reads frames until the server closes the connection or has pinged often enough; returns the
    /// number of pings.
    async fn count_pings(mut peer: DuplexStream, answers: bool) -> usize {
        peer.write_all(&[PREFACE, &frame(SETTINGS, 0, &[])].concat()).await.unwrap();
        let mut pings = 0;
        while pings < ENOUGH {
            let mut head = [0; 9];
            if peer.read_exact(&mut head).await.is_err() {
                break;
            }
            let mut body = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            peer.read_exact(&mut body).await.unwrap();
            let answer = match (head[3], head[4] & ACK) {
                (SETTINGS, 0) => frame(SETTINGS, ACK, &[]),
                (PING, 0) => {
                    pings += 1;
                    if answers { frame(PING, ACK, &body) } else { Vec::new() }
                }
                _ => Vec::new(),
            };
            peer.write_all(&answer).await.unwrap();
        }
        pings
    }

    #[tokio::test]
    async fn idle_peer_stays_while_it_answers() {
        let interval = Duration::from_millis(20);
        for answers in [true, false] {
            // Long for one that answers, on a busy machine.
            let timeout = if answers { PING_TIMEOUT } else { 3 * interval };
            let (peer, served) = duplex(1 << 16);
            let incoming = tokio_stream::once(Ok::<_, io::Error>(served));
            let incoming = incoming.chain(tokio_stream::pending());
            let server = pinging(interval, timeout).add_routes(Routes::default());
            let serving = tokio::spawn(server.serve_with_incoming(incoming));
            let pings = tokio::time::timeout(BOUND, count_pings(peer, answers)).await;
            let pings = pings.expect("the server neither pings nor closes");
            assert_eq!(pings == ENOUGH, answers, "{pings} pings");
            serving.abort();
        }
    }
}
