//! The accept loop of a TLS server: yields connections that have completed their handshake.

use super::connection::Connection;
use super::connection_limiter::{ConnectionLimiter, ConnectionPermit};
use super::connection_limits::ConnectionLimits;
use super::handshake_limiter::{HandshakeLimiter, PendingHandshake};
use super::movable_stream::MovableStream;
use super::peer_identity::Peer;
use super::tls_server::TlsServer;
use crate::identity::IdentityError;
use rustls::ServerConfig;
use rustls::server::Acceptor;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use venice_rack::caller::Caller;

/// Timeout of a handshake: of the wait for the peer's first message, and of the rest.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// Timeout of the rest where many connections of the peer's network are in their handshake.
const CROWDED_PATIENCE: Duration = Duration::from_secs(2);
/// Connections waiting to be served.
const QUEUE: usize = 64;
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Queues of accepted connections: nodes, and all other peers.
#[derive(Clone)]
struct Queues {
    nodes: mpsc::Sender<Connection>,
    others: mpsc::Sender<Connection>,
}

impl Queues {
    fn of(&self, peer: &Peer) -> &mpsc::Sender<Connection> {
        let is_node = matches!(&peer.info, Ok(info) if matches!(info.caller, Caller::Node(_)));
        if is_node { &self.nodes } else { &self.others }
    }
}

/// A listener's settings.
#[derive(Clone)]
struct Settings {
    config: Arc<ServerConfig>,
    patience: Duration,
    limits: ConnectionLimits,
}

async fn accept_all(
    tls: Arc<TlsServer>,
    listener: TcpListener,
    settings: Settings,
    queues: Queues,
) {
    let handshakes = HandshakeLimiter::within(settings.limits.in_handshake);
    let connections = ConnectionLimiter::new(settings.limits);
    tls.watch_connections(&connections);
    loop {
        let (stream, addr) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tls.note_accept_failure(&error);
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if queues.nodes.is_closed() && queues.others.is_closed() {
            return;
        }
        let Some(permit) = connections.open() else {
            tls.note_full(addr);
            continue;
        };
        let Some(pending) = handshakes.register(addr.ip()) else {
            tls.note_flood(addr);
            continue;
        };
        let incoming = Incoming { tls: Arc::clone(&tls), settings: settings.clone(), addr, permit };
        tokio::spawn(incoming.admit(pending, stream, queues.clone()));
    }
}

/// An accepted connection on its way to be served.
struct Incoming {
    tls: Arc<TlsServer>,
    settings: Settings,
    addr: SocketAddr,
    permit: ConnectionPermit,
}

/// The reason why a handshake did not complete.
enum NoHandshake {
    Failed(io::Error),
    Late,
    /// A newer connection needed its place.
    Displaced,
}

impl Incoming {
    /// Completes the handshake, and queues the connection to be served.
    async fn admit(mut self, pending: PendingHandshake, stream: TcpStream, queues: Queues) {
        let stream = match self.handshake(pending, stream).await {
            Ok(stream) => stream,
            Err(NoHandshake::Failed(error)) => return self.tls.note_failure(self.addr, &error),
            Err(NoHandshake::Late) => return self.tls.note_timeout(self.addr),
            Err(NoHandshake::Displaced) => return self.tls.note_flood(self.addr),
        };
        let peer = self.tls.identify(self.addr, stream.get_ref().1.peer_certificates());
        let Ok(displacement) = self.permit.classify(&peer) else {
            return self.tls.note_full_for(&peer);
        };
        let queue = queues.of(&peer);
        let Self { tls, settings, permit, .. } = self;
        let connection =
            Connection::new(stream, (peer, tls), (permit, displacement), settings.limits);
        // If nobody serves any more, the connection is closed.
        let _ = queue.send(connection).await;
    }

    async fn handshake(
        &self,
        mut pending: PendingHandshake,
        stream: TcpStream,
    ) -> Result<TlsStream<MovableStream>, NoHandshake> {
        let patience = self.settings.patience;
        let _ = stream.set_nodelay(true);
        // A silent peer takes no permit from others.
        let hello = LazyConfigAcceptor::new(Acceptor::default(), MovableStream::new(stream));
        let hello = pending.until_heard(timeout(patience, hello)).await;
        let hello = hello.ok_or(NoHandshake::Displaced)?.map_err(|_| NoHandshake::Late)?;
        let hello = hello.map_err(NoHandshake::Failed)?;
        let _permit = pending.permit().await;
        let patience = match pending.is_crowded() {
            true => patience.min(CROWDED_PATIENCE),
            false => patience,
        };
        let shaken = hello.into_stream(Arc::clone(&self.settings.config));
        let shaken = timeout(patience, shaken).await.map_err(|_| NoHandshake::Late)?;
        shaken.map_err(NoHandshake::Failed)
    }
}

/// Accepted connections. Dropping the last stream stops the listener.
pub(super) struct Connections {
    received: mpsc::Receiver<Connection>,
    /// The accept task, shared with the other stream.
    _accepting: Arc<Accepting>,
}

/// The accept task, aborted when its last stream is dropped.
struct Accepting(AbortHandle);

impl Connections {
    /// Accepts the connections of `tls` at this listener.
    pub(super) fn at(tls: &Arc<TlsServer>, listener: TcpListener) -> Result<Self, IdentityError> {
        Self::within((HANDSHAKE_PATIENCE, ConnectionLimits::of_process()), tls, listener)
    }

    fn within(
        bounds: (Duration, ConnectionLimits),
        tls: &Arc<TlsServer>,
        listener: TcpListener,
    ) -> Result<Self, IdentityError> {
        let (sender, received) = mpsc::channel(QUEUE);
        let queues = Queues { nodes: sender.clone(), others: sender };
        let accepting = accept(bounds, tls, listener, queues, &Handle::current())?;
        Ok(Self { received, _accepting: accepting })
    }

    /// Accepts nodes and other peers as two streams. The certificate decides; handshakes run in the
    /// runtime `nodes`.
    pub(super) fn apart(
        tls: &Arc<TlsServer>,
        listener: TcpListener,
        nodes: &Handle,
    ) -> Result<(Self, Self), IdentityError> {
        let ((nodes_in, of_nodes), (others_in, of_others)) =
            (mpsc::channel(QUEUE), mpsc::channel(QUEUE));
        let queues = Queues { nodes: nodes_in, others: others_in };
        let accepting = accept(
            (HANDSHAKE_PATIENCE, ConnectionLimits::of_process()),
            tls,
            listener,
            queues,
            nodes,
        )?;
        let accept = |received| Self { received, _accepting: Arc::clone(&accepting) };
        Ok((accept(of_nodes), accept(of_others)))
    }
}

fn accept(
    (patience, limits): (Duration, ConnectionLimits),
    tls: &Arc<TlsServer>,
    listener: TcpListener,
    queues: Queues,
    runtime: &Handle,
) -> Result<Arc<Accepting>, IdentityError> {
    let settings = Settings { config: tls.config()?, patience, limits };
    let accepting = runtime.spawn(accept_all(Arc::clone(tls), listener, settings, queues));
    Ok(Arc::new(Accepting(accepting.abort_handle())))
}

impl tokio_stream::Stream for Connections {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let Some(mut connection) = ready!(self.received.poll_recv(cx)) else {
                return Poll::Ready(None);
            };
            // A connection that cannot move to this runtime is dropped, and the next one is taken.
            match connection.move_here() {
                Ok(()) => return Poll::Ready(Some(Ok(connection))),
                Err(error) => tracing::warn!(%error, "cannot serve a connection"),
            }
        }
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests;
