//! Who comes to a door: connections with their TLS handshake behind them.

use super::door::Door;
use super::turns::{Turns, Visit};
use super::visitor::Visitor;
use crate::identity::IdentityError;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::error::Elapsed;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

/// A handshake that takes longer is given up.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// Connections that wait to be served.
const QUEUE: usize = 64;

async fn accept_all(
    door: Arc<Door>,
    listener: TcpListener,
    (acceptor, patience): (TlsAcceptor, Duration),
    sender: mpsc::Sender<io::Result<Guest>>,
) {
    let turns = Turns::new();
    loop {
        let (stream, addr) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or the caller is gone again.
                tracing::debug!(%error, "accepting a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        if sender.is_closed() {
            return;
        }
        let Some(visit) = turns.come(addr.ip()) else {
            door.note_crowd(addr);
            continue;
        };
        let (door, acceptor, sender) = (Arc::clone(&door), acceptor.clone(), sender.clone());
        tokio::spawn(async move {
            match shake_hands(&visit, (acceptor, patience), stream).await {
                Ok(Ok(stream)) => {
                    let visitor = door.receive(addr, stream.get_ref().1.peer_certificates());
                    // Nobody serves any more: the connection ends.
                    let _ = sender.send(Ok(Guest { stream, visitor })).await;
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
) -> Result<io::Result<TlsStream<TcpStream>>, Elapsed> {
    // Whoever says nothing takes no turn from those who do.
    tokio::time::timeout(patience, stream.peek(&mut [0])).await.map(drop)?;
    let _turn = visit.turn().await;
    let _ = stream.set_nodelay(true);
    tokio::time::timeout(patience, acceptor.accept(stream)).await
}

/// Connections with their handshake behind them. Dropped, it listens no more.
pub(super) struct Guests {
    received: mpsc::Receiver<io::Result<Guest>>,
    accepting: AbortHandle,
}

impl Guests {
    /// Those who come to `door` at this listener.
    pub(super) fn at(door: &Arc<Door>, listener: TcpListener) -> Result<Self, IdentityError> {
        Self::within(HANDSHAKE_PATIENCE, door, listener)
    }

    fn within(
        patience: Duration,
        door: &Arc<Door>,
        listener: TcpListener,
    ) -> Result<Self, IdentityError> {
        let (sender, received) = mpsc::channel(QUEUE);
        let tls = (door.acceptor()?, patience);
        let accepting = tokio::spawn(accept_all(Arc::clone(door), listener, tls, sender));
        Ok(Self { received, accepting: accepting.abort_handle() })
    }
}

impl tokio_stream::Stream for Guests {
    type Item = io::Result<Guest>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.received.poll_recv(cx)
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A connection, and who is at its other end.
pub(super) struct Guest {
    stream: TlsStream<TcpStream>,
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
    use venice_rack::caller::Caller;

    /// More than have a turn at a time of one address.
    const SILENT: usize = 100;

    #[tokio::test]
    async fn who_says_nothing_keeps_nobody_waiting() {
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
            .expect("it waits for those who say nothing");
        came.unwrap();
        assert!(guest.unwrap().unwrap().visitor.said.is_ok());
        drop(silent);
    }
}
