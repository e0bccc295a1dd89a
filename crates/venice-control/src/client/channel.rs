//! Connections to services, and the meaning of their failures.

use super::login::Login;
use crate::error::{ControlError, PeerKind, WrongPeer, cause, is_refused};
use crate::identity::{CertificateInfo, MONITOR_DNS, NODE_DNS};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;
use venice_rack::caller::Caller;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The peer to connect to.
#[derive(Debug, Clone)]
pub(super) enum Target {
    Monitor,
    /// An agent, by its node's name; empty: any node's.
    Agent(String),
}

impl Target {
    pub(super) fn kind(&self) -> PeerKind {
        match self {
            Target::Monitor => PeerKind::MonitorNode,
            Target::Agent(_) => PeerKind::Agent,
        }
    }

    fn dns(&self) -> ServerName<'static> {
        let name = match self {
            Target::Monitor => MONITOR_DNS,
            Target::Agent(_) => NODE_DNS,
        };
        ServerName::try_from(name).expect("a DNS name")
    }

    /// Checks that the (valid) certificate is the wanted peer's.
    fn check(&self, certificate: &[u8]) -> Result<(), WrongPeer> {
        let Target::Agent(wanted) = self else { return Ok(()) };
        let found = CertificateInfo::by(certificate).map(|info| info.caller);
        match found {
            Some(Caller::Node(name)) if wanted.is_empty() || name == *wanted => Ok(()),
            found => Err(WrongPeer::Other {
                found: found.map_or_else(|| "nobody".to_owned(), |caller| caller.to_string()),
                wanted: format!("node {wanted}"),
            }),
        }
    }
}

/// Interval and timeout of liveness checks if there are several Monitor Nodes; after a timeout the
/// next one is tried.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
const ALIVE_PATIENCE: Duration = Duration::from_secs(2);

/// Opens a connection to `addr` (`host:port`, or several separated by commas: the first that
/// answers). It reconnects by itself: a call after the peer's restart works.
pub(super) async fn open(
    whom: Target,
    addr: &str,
    login: &Login,
    connect_timeout: Duration,
    call_timeout: Duration,
) -> Result<Channel, ControlError> {
    let bad_address = || ControlError::BadAddress { addr: addr.to_owned() };
    let addrs: Vec<String> = addr.split(',').map(str::to_owned).collect();
    let is_bad =
        |addr: &String| addr.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err());
    if addrs.iter().any(is_bad) {
        return Err(bad_address());
    }
    // The connector does TLS and chooses the address. The timeout covers the network and the login.
    let patience = connect_timeout + login.patience();
    let mut endpoint = Endpoint::from_shared(format!("http://{}", addrs[0]))
        .map_err(|_| bad_address())?
        .connect_timeout(patience)
        .timeout(call_timeout);
    if addrs.len() > 1 {
        endpoint = endpoint
            .http2_keep_alive_interval(ALIVE_EVERY)
            .keep_alive_timeout(ALIVE_PATIENCE)
            .keep_alive_while_idle(true);
    }
    let peer = whom.kind();
    let each = connect_timeout / addrs.len() as u32;
    let way =
        |addr| Route { whom: whom.clone(), addr, login: login.clone(), connect_timeout: each };
    let ways: Arc<[Route]> = addrs.into_iter().map(way).collect();
    let connector = service_fn(move |_: Uri| connect_to_any(Arc::clone(&ways)));
    match tokio::time::timeout(patience, endpoint.connect_with_connector(connector)).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(failed(peer, addr, Box::new(error))),
        Err(late) => Err(failed(peer, addr, Box::new(late))),
    }
}

/// An address to connect to, with its login.
#[derive(Debug, Clone)]
struct Route {
    whom: Target,
    addr: String,
    login: Login,
    connect_timeout: Duration,
}

/// Connects to the first address that answers.
async fn connect_to_any(ways: Arc<[Route]>) -> Result<TokioIo<TlsStream<TcpStream>>, BoxError> {
    let mut failure: Option<BoxError> = None;
    for way in ways.iter() {
        match connect(way).await {
            Ok(stream) => return Ok(stream),
            // A refused connection is the least informative error.
            Err(error) if failure.as_ref().is_none_or(|before| is_refused(before.as_ref())) => {
                failure = Some(error);
            }
            Err(_) => {}
        }
    }
    Err(failure.unwrap_or_else(|| "there is no address".into()))
}

/// Connects, then logs in, then runs TLS: an unreachable address needs no login. If the peer
/// belongs to another rack than the login, other logins are tried: a machine may have sockets of
/// several racks.
async fn connect(way: &Route) -> Result<TokioIo<TlsStream<TcpStream>>, BoxError> {
    let mut stream = way.reach().await?;
    let mut shown = way.login.first().await?;
    let (mut tried, mut first_error) = (Vec::new(), None);
    loop {
        let error = match way.handshake(stream, Arc::clone(&shown.tls)).await {
            Ok(stream) => {
                way.login.settle(shown).await;
                return Ok(TokioIo::new(stream));
            }
            Err(error) => error,
        };
        let is_untrusted =
            matches!(error.downcast_ref::<WrongPeer>(), Some(WrongPeer::Untrusted(_)));
        let next = match is_untrusted {
            true => way.login.next(&shown, &mut tried).await,
            false => None,
        };
        // The first login's error is the most informative.
        let error = first_error.take().unwrap_or(error);
        let Some(next) = next else { return Err(error) };
        (shown, stream) = (next, way.reach().await?);
        first_error = Some(error);
    }
}

impl Route {
    async fn reach(&self) -> io::Result<TcpStream> {
        let connected = tokio::time::timeout(self.connect_timeout, TcpStream::connect(&self.addr));
        let stream = connected.await??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn handshake(
        &self,
        stream: TcpStream,
        tls: Arc<ClientConfig>,
    ) -> Result<TlsStream<TcpStream>, BoxError> {
        let shaken = TlsConnector::from(tls).connect(self.whom.dns(), stream);
        let shaken = tokio::time::timeout(self.connect_timeout, shaken).await?;
        let stream = shaken.map_err(stranger)?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        self.whom.check(certificate.map_or(&[], |certificate| certificate))?;
        Ok(stream)
    }
}

/// Separates an invalid certificate from a broken connection.
fn stranger(error: io::Error) -> BoxError {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(error @ rustls::Error::InvalidCertificate(_)) => {
            WrongPeer::Untrusted(error.clone()).into()
        }
        _ => error.into(),
    }
}

/// Converts a connection error.
fn failed(peer: PeerKind, addr: &str, source: BoxError) -> ControlError {
    let addr = addr.to_owned();
    if let Some(ControlError::NoLogin(why)) = cause::<ControlError>(source.as_ref()) {
        return ControlError::NoLogin(why.clone());
    }
    if let Some(why) = cause::<WrongPeer>(source.as_ref()) {
        return ControlError::WrongPeer { peer, addr, why: why.to_string() };
    }
    let refused = is_refused(source.as_ref());
    ControlError::Unreachable { peer, addr, refused, source }
}
