//! The accept loop of a TLS server: yields connections that have completed their handshake.

use super::door::Door;
use super::line::Line;
use super::turns::{Turns, Visit};
use super::visitor::Visitor;
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
struct Rooms {
    nodes: mpsc::Sender<Guest>,
    others: mpsc::Sender<Guest>,
}

impl Rooms {
    fn of(&self, visitor: &Visitor) -> &mpsc::Sender<Guest> {
        let is_node = matches!(&visitor.said, Ok(said) if matches!(said.caller, Caller::Node(_)));
        if is_node { &self.nodes } else { &self.others }
    }
}

async fn accept_all(
    door: Arc<Door>,
    listener: TcpListener,
    (acceptor, patience): (TlsAcceptor, Duration),
    rooms: Rooms,
) {
    let turns = Turns::new();
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
        if rooms.nodes.is_closed() && rooms.others.is_closed() {
            return;
        }
        let Some(visit) = turns.come(addr.ip()) else {
            door.note_crowd(addr);
            continue;
        };
        let (door, acceptor, rooms) = (Arc::clone(&door), acceptor.clone(), rooms.clone());
        tokio::spawn(async move {
            match shake_hands(&visit, (acceptor, patience), stream).await {
                Ok(Ok(stream)) => {
                    let visitor = door.receive(addr, stream.get_ref().1.peer_certificates());
                    // If nobody serves any more, the connection is closed.
                    let _ = rooms.of(&visitor).send(Guest { stream, visitor }).await;
                }
                Ok(Err(error)) => door.note_failure(addr, &error),
                Err(_) => door.note_silence(addr),
            }
        });
    }
}

async fn shake_hands(
    visit: &Visit,
    (acceptor, patience): (TlsAcceptor, Duration),
    stream: TcpStream,
) -> Result<io::Result<TlsStream<Line>>, Elapsed> {
    // A silent peer takes no permit from others.
    tokio::time::timeout(patience, stream.peek(&mut [0])).await.map(drop)?;
    let _turn = visit.turn().await;
    let _ = stream.set_nodelay(true);
    tokio::time::timeout(patience, acceptor.accept(Line::new(stream))).await
}

/// Accepted connections. Dropping the last stream stops the listener.
pub(super) struct Guests {
    received: mpsc::Receiver<Guest>,
    /// The accept task, shared with the other stream.
    _accepting: Arc<Accepting>,
}

/// The accept task, aborted when its last stream is dropped.
struct Accepting(AbortHandle);

impl Guests {
    /// Accepts the connections of `door` at this listener.
    pub(super) fn at(door: &Arc<Door>, listener: TcpListener) -> Result<Self, IdentityError> {
        Self::within(HANDSHAKE_PATIENCE, door, listener)
    }

    fn within(
        patience: Duration,
        door: &Arc<Door>,
        listener: TcpListener,
    ) -> Result<Self, IdentityError> {
        let (sender, received) = mpsc::channel(QUEUE);
        let rooms = Rooms { nodes: sender.clone(), others: sender };
        let accepting = accept(patience, door, listener, rooms, &Handle::current())?;
        Ok(Self { received, _accepting: accepting })
    }

    /// Accepts nodes and other peers as two streams. The certificate decides; handshakes run in the
    /// runtime `nodes`.
    pub(super) fn apart(
        door: &Arc<Door>,
        listener: TcpListener,
        nodes: &Handle,
    ) -> Result<(Self, Self), IdentityError> {
        let ((nodes_in, of_nodes), (others_in, of_others)) =
            (mpsc::channel(QUEUE), mpsc::channel(QUEUE));
        let rooms = Rooms { nodes: nodes_in, others: others_in };
        let accepting = accept(HANDSHAKE_PATIENCE, door, listener, rooms, nodes)?;
        let guests = |received| Self { received, _accepting: Arc::clone(&accepting) };
        Ok((guests(of_nodes), guests(of_others)))
    }
}

fn accept(
    patience: Duration,
    door: &Arc<Door>,
    listener: TcpListener,
    rooms: Rooms,
    runtime: &Handle,
) -> Result<Arc<Accepting>, IdentityError> {
    let tls = (door.acceptor()?, patience);
    let accepting = runtime.spawn(accept_all(Arc::clone(door), listener, tls, rooms));
    Ok(Arc::new(Accepting(accepting.abort_handle())))
}

impl tokio_stream::Stream for Guests {
    type Item = io::Result<Guest>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let Some(mut guest) = ready!(self.received.poll_recv(cx)) else {
                return Poll::Ready(None);
            };
            // A connection that cannot move to this runtime is dropped, and the next one is taken.
            match guest.stream.get_mut().0.move_here() {
                Ok(()) => return Poll::Ready(Some(Ok(guest))),
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
pub(super) struct Guest {
    stream: TlsStream<Line>,
    visitor: Visitor,
}

impl Connected for Guest {
    type ConnectInfo = Visitor;

    fn connect_info(&self) -> Visitor {
        self.visitor.clone()
    }
}

impl AsyncRead for Guest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Guest {
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
        let door = Door::new(holder.clone()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let hours = Duration::from_secs(36_000);
        let mut guests = Guests::within(hours, &door, listener).unwrap();
        let mut silent = Vec::new();
        for _ in 0..SILENT {
            silent.push(TcpStream::connect(addr).await.unwrap());
        }
        let stream = TcpStream::connect(addr).await.unwrap();
        let dns = rustls::pki_types::ServerName::try_from(crate::identity::MONITOR_DNS).unwrap();
        let coming = TlsConnector::from(holder.client()).connect(dns, stream);
        let both = async { tokio::join!(coming, guests.next()) };
        let (came, guest) = tokio::time::timeout(Duration::from_secs(60), both)
            .await
            .expect("it waits for silent peers");
        came.unwrap();
        assert!(guest.unwrap().unwrap().visitor.said.is_ok());
        drop(silent);
    }

    #[tokio::test]
    async fn nodes_have_their_own_stream() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create(dir.path()).unwrap();
        let holder = |caller| Holder::new(authority.credential(&caller).unwrap()).unwrap();
        let monitor = holder(Caller::Monitor);
        let door = Door::new(monitor.clone()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let elsewhere = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let (mut nodes, mut others) = Guests::apart(&door, listener, elsewhere.handle()).unwrap();
        let user = venice_rack::caller::User {
            node: "node7".to_owned(),
            uid: 1,
            name: "ada".to_owned(),
            is_admin: false,
        };
        for (who, guests) in
            [(Caller::User(user), &mut others), (Caller::Node("node7".to_owned()), &mut nodes)]
        {
            let stream = TcpStream::connect(addr).await.unwrap();
            let dns = rustls::pki_types::ServerName::try_from(crate::identity::MONITOR_DNS);
            let connector = TlsConnector::from(holder(who.clone()).client());
            let coming = connector.connect(dns.unwrap(), stream);
            let (came, guest) = tokio::join!(coming, guests.next());
            came.unwrap();
            assert_eq!(guest.unwrap().unwrap().visitor.said.unwrap().caller, who);
        }
        elsewhere.shutdown_background();
    }
}
