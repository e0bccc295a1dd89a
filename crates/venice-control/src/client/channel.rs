//! Opening a connection, and what it means when that fails.

use crate::error::{ControlError, PeerKind, is_refused};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// Opens a connection to `addr` (`host:port`). It heals by itself later: a call after the peer's
/// restart connects anew.
pub(super) async fn open(
    peer: PeerKind,
    addr: &str,
    connect_timeout: Duration,
    call_timeout: Duration,
) -> Result<Channel, ControlError> {
    let bad_address = || ControlError::BadAddress { addr: addr.to_owned() };
    if addr.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
        return Err(bad_address());
    }
    let endpoint = Endpoint::from_shared(format!("http://{addr}"))
        .map_err(|_| bad_address())?
        .connect_timeout(connect_timeout)
        .timeout(call_timeout)
        .tcp_nodelay(true);
    match tokio::time::timeout(connect_timeout, endpoint.connect()).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(unreachable(peer, addr, Box::new(error))),
        Err(late) => Err(unreachable(peer, addr, Box::new(late))),
    }
}

fn unreachable(
    peer: PeerKind,
    addr: &str,
    source: Box<dyn std::error::Error + Send + Sync>,
) -> ControlError {
    let refused = is_refused(source.as_ref());
    ControlError::Unreachable { peer, addr: addr.to_owned(), refused, source }
}
