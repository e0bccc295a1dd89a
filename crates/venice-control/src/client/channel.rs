//! Opening a connection, and what it means when that fails.

use super::login::Login;
use crate::error::{ControlError, PeerKind, Stranger, cause, is_refused};
use crate::identity::{MONITOR_DNS, NODE_DNS, Said};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;
use venice_rack::caller::Caller;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Whom a connection is to reach.
#[derive(Debug, Clone)]
pub(super) enum Whom {
    Monitor,
    /// An agent, by its node's name; empty: of any node.
    Agent(String),
}

impl Whom {
    pub(super) fn kind(&self) -> PeerKind {
        match self {
            Whom::Monitor => PeerKind::MonitorNode,
            Whom::Agent(_) => PeerKind::Agent,
        }
    }

    fn dns(&self) -> ServerName<'static> {
        let name = match self {
            Whom::Monitor => MONITOR_DNS,
            Whom::Agent(_) => NODE_DNS,
        };
        ServerName::try_from(name).expect("a DNS name")
    }

    /// That the certificate, which is good, is the right one's.
    fn check(&self, certificate: &[u8]) -> Result<(), Stranger> {
        let Whom::Agent(wanted) = self else { return Ok(()) };
        let found = Said::by(certificate).map(|said| said.caller);
        match found {
            Some(Caller::Node(name)) if wanted.is_empty() || name == *wanted => Ok(()),
            found => Err(Stranger::Other {
                found: found.map_or_else(|| "nobody".to_owned(), |caller| caller.to_string()),
                wanted: format!("node {wanted}"),
            }),
        }
    }
}

/// Opens a connection to `addr` (`host:port`). It heals by itself later: a call after the peer's
/// restart connects anew.
pub(super) async fn open(
    whom: Whom,
    addr: &str,
    login: &Login,
    connect_timeout: Duration,
    call_timeout: Duration,
) -> Result<Channel, ControlError> {
    let bad_address = || ControlError::BadAddress { addr: addr.to_owned() };
    if addr.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
        return Err(bad_address());
    }
    // TLS is the connector's business.
    let endpoint = Endpoint::from_shared(format!("http://{addr}"))
        .map_err(|_| bad_address())?
        .connect_timeout(connect_timeout)
        .timeout(call_timeout);
    let peer = whom.kind();
    let (to, login) = (addr.to_owned(), login.clone());
    let connector = service_fn(move |_: Uri| connect(whom.clone(), to.clone(), login.clone()));
    match tokio::time::timeout(connect_timeout, endpoint.connect_with_connector(connector)).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(failed(peer, addr, Box::new(error))),
        Err(late) => Err(failed(peer, addr, Box::new(late))),
    }
}

/// First the connection, then a login, then TLS: where nobody listens, no login is needed to say so.
async fn connect(
    whom: Whom,
    addr: String,
    login: Login,
) -> Result<TokioIo<TlsStream<TcpStream>>, BoxError> {
    let stream = TcpStream::connect(&addr).await?;
    stream.set_nodelay(true)?;
    let config = login.tls().await?;
    let stream = TlsConnector::from(config).connect(whom.dns(), stream).await.map_err(stranger)?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    whom.check(certificate.map_or(&[], |certificate| certificate))?;
    Ok(TokioIo::new(stream))
}

/// Tells a certificate that is not good from a connection that broke.
fn stranger(error: io::Error) -> BoxError {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(error @ rustls::Error::InvalidCertificate(_)) => {
            Stranger::Untrusted(error.clone()).into()
        }
        _ => error.into(),
    }
}

/// Why a connection could not be made.
fn failed(peer: PeerKind, addr: &str, source: BoxError) -> ControlError {
    let addr = addr.to_owned();
    if let Some(ControlError::NoLogin(why)) = cause::<ControlError>(source.as_ref()) {
        return ControlError::NoLogin(why.clone());
    }
    if let Some(why) = cause::<Stranger>(source.as_ref()) {
        return ControlError::Stranger { peer, addr, why: why.to_string() };
    }
    let refused = is_refused(source.as_ref());
    ControlError::Unreachable { peer, addr, refused, source }
}
