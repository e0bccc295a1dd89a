//! The accept loop of a TLS server: yields connections that have completed their handshake.

use super::handshake_limiter::{HandshakeLimiter, PendingHandshake};
use super::movable_stream::MovableStream;
use super::peer_identity::Peer;
use super::tls_server::TlsServer;
use crate::identity::IdentityError;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::error::Elapsed;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;
use venice_rack::caller::Caller;

/// Timeout of a handshake.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// Connections waiting to be served.
const QUEUE: usize = 64;

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

async fn accept_all(
    tls: Arc<TlsServer>,
    listener: TcpListener,
    (acceptor, patience): (TlsAcceptor, Duration),
    queues: Queues,
) {
    let limiter = HandshakeLimiter::new();
    loop {
        let (stream, addr) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or the peer is gone again.
                tracing::debug!(%error, "accepting a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        if queues.nodes.is_closed() && queues.others.is_closed() {
            return;
        }
        let Some(pending) = limiter.register(addr.ip()) else {
            tls.note_flood(addr);
            continue;
        };
        let (tls, acceptor, queues) = (Arc::clone(&tls), acceptor.clone(), queues.clone());
        tokio::spawn(async move {
            match handshake(&pending, (acceptor, patience), stream).await {
                Ok(Ok(stream)) => {
                    let peer = tls.identify(addr, stream.get_ref().1.peer_certificates());
                    // If nobody serves any more, the connection is closed.
                    let _ = queues.of(&peer).send(Connection { stream, peer }).await;
                }
                Ok(Err(error)) => tls.note_failure(addr, &error),
                Err(_) => tls.note_timeout(addr),
            }
        });
    }
}

async fn handshake(
    pending: &PendingHandshake,
    (acceptor, patience): (TlsAcceptor, Duration),
    stream: TcpStream,
) -> Result<io::Result<TlsStream<MovableStream>>, Elapsed> {
    // A silent peer takes no permit from others.
    tokio::time::timeout(patience, stream.peek(&mut [0])).await.map(drop)?;
    let _permit = pending.permit().await;
    let _ = stream.set_nodelay(true);
    tokio::time::timeout(patience, acceptor.accept(MovableStream::new(stream))).await
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
        Self::within(HANDSHAKE_PATIENCE, tls, listener)
    }

    fn within(
        patience: Duration,
        tls: &Arc<TlsServer>,
        listener: TcpListener,
    ) -> Result<Self, IdentityError> {
        let (sender, received) = mpsc::channel(QUEUE);
        let queues = Queues { nodes: sender.clone(), others: sender };
        let accepting = accept(patience, tls, listener, queues, &Handle::current())?;
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
        let accepting = accept(HANDSHAKE_PATIENCE, tls, listener, queues, nodes)?;
        let accept = |received| Self { received, _accepting: Arc::clone(&accepting) };
        Ok((accept(of_nodes), accept(of_others)))
    }
}

fn accept(
    patience: Duration,
    tls: &Arc<TlsServer>,
    listener: TcpListener,
    queues: Queues,
    runtime: &Handle,
) -> Result<Arc<Accepting>, IdentityError> {
    let acceptor = (tls.acceptor()?, patience);
    let accepting = runtime.spawn(accept_all(Arc::clone(tls), listener, acceptor, queues));
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
            match connection.stream.get_mut().0.move_here() {
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

/// A connection and its peer.
pub(super) struct Connection {
    stream: TlsStream<MovableStream>,
    peer: Peer,
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Authority, Holder};
    use tokio_rustls::TlsConnector;
    use tokio_stream::StreamExt as _;

    /// More than the permits of one address.
    const SILENT: usize = 100;

    #[tokio::test]
    async fn silent_peers_block_no_handshake() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create(dir.path()).unwrap();
        let holder = Holder::new(authority.credential(&Caller::Monitor).unwrap()).unwrap();
        let tls = TlsServer::new(holder.clone()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let hours = Duration::from_secs(36_000);
        let mut accept = Connections::within(hours, &tls, listener).unwrap();
        let mut silent = Vec::new();
        for _ in 0..SILENT {
            silent.push(TcpStream::connect(addr).await.unwrap());
        }
        let stream = TcpStream::connect(addr).await.unwrap();
        let dns = rustls::pki_types::ServerName::try_from(crate::identity::MONITOR_DNS).unwrap();
        let coming = TlsConnector::from(holder.client()).connect(dns, stream);
        let both = async { tokio::join!(coming, accept.next()) };
        let (came, connection) = tokio::time::timeout(Duration::from_secs(60), both)
            .await
            .expect("it waits for silent peers");
        came.unwrap();
        assert!(connection.unwrap().unwrap().peer.info.is_ok());
        drop(silent);
    }

    #[tokio::test]
    async fn nodes_have_their_own_stream() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create(dir.path()).unwrap();
        let holder = |caller| Holder::new(authority.credential(&caller).unwrap()).unwrap();
        let monitor = holder(Caller::Monitor);
        let tls = TlsServer::new(monitor.clone()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let elsewhere = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let (mut nodes, mut others) =
            Connections::apart(&tls, listener, elsewhere.handle()).unwrap();
        let user = venice_rack::caller::User {
            node: "node7".to_owned(),
            uid: 1,
            name: "ada".to_owned(),
            is_admin: false,
        };
        for (who, accept) in
            [(Caller::User(user), &mut others), (Caller::Node("node7".to_owned()), &mut nodes)]
        {
            let stream = TcpStream::connect(addr).await.unwrap();
            let dns = rustls::pki_types::ServerName::try_from(crate::identity::MONITOR_DNS);
            let connector = TlsConnector::from(holder(who.clone()).client());
            let coming = connector.connect(dns.unwrap(), stream);
            let (came, connection) = tokio::join!(coming, accept.next());
            came.unwrap();
            assert_eq!(connection.unwrap().unwrap().peer.info.unwrap().caller, who);
        }
        elsewhere.shutdown_background();
    }
}
