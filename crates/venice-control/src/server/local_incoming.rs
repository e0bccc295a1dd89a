//! Connections at a local socket: bounded by user, short, and accepted even when the process is out
//! of file descriptors, so that an administrator can log in and look.

use super::bounded_stream::{Bound, BoundedStream};
use super::short_lived::{Displacement, ShortLived};
use super::tls_server::is_out_of_descriptors;
use futures_util::stream::unfold;
use std::future::Future as _;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Context;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;
use tonic::transport::server::{Connected, UdsConnectInfo};

/// Connections in all, and of one user; the oldest makes room.
const MOST: usize = 256;
const MOST_OF_USER: usize = 32;
/// Life of a connection: a login is one call.
const LIFE: Duration = Duration::from_secs(30);
/// Descriptors given up, one for each connection, when no other is left.
const SPARES: usize = 8;
/// Pause when these are used up too.
const PAUSE: Duration = Duration::from_millis(50);

type Open = Arc<Mutex<ShortLived<u32>>>;

/// Returns the connections of a listener.
pub(super) fn incoming(
    listener: UnixListener,
) -> impl Stream<Item = io::Result<LocalConnection>> + Send {
    let open: Open = Arc::new(Mutex::new(ShortLived::new(MOST, MOST_OF_USER)));
    let incoming = Incoming { listener, open, spares: Vec::new(), is_short: false };
    unfold(incoming, |mut incoming| async move {
        let accepted = incoming.accept().await;
        Some((accepted, incoming))
    })
}

struct Incoming {
    listener: UnixListener,
    open: Open,
    spares: Vec<OwnedFd>,
    /// True while the process is out of descriptors.
    is_short: bool,
}

impl Incoming {
    async fn accept(&mut self) -> io::Result<LocalConnection> {
        self.fill_spares();
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => return Ok(LocalConnection::new(stream, &self.open)),
                Err(error) if is_out_of_descriptors(&error) => {
                    if !std::mem::replace(&mut self.is_short, true) {
                        tracing::error!(
                            %error,
                            "no file descriptor is left: raise the limit (LimitNOFILE, ulimit -n)"
                        );
                    }
                    if self.spares.pop().is_none() {
                        sleep(PAUSE).await;
                        self.fill_spares();
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn fill_spares(&mut self) {
        while self.spares.len() < SPARES {
            let Ok(spare) = rustix::io::fcntl_dupfd_cloexec(&self.listener, 0) else { return };
            self.spares.push(spare);
        }
        self.is_short = false;
    }
}

/// A connection at a local socket. It fails with [`io::ErrorKind::TimedOut`] when its time is over.
pub(super) type LocalConnection = BoundedStream<UnixStream, Visit>;

/// The life of a connection at a local socket, and its place among the others.
pub(super) struct Visit {
    until: Pin<Box<Sleep>>,
    displacement: Displacement,
    is_over: bool,
    number: u64,
    open: Open,
}

impl LocalConnection {
    fn new(stream: UnixStream, open: &Open) -> Self {
        let uid = stream.peer_cred().map_or(u32::MAX, |peer| peer.uid());
        let (number, displacement) = open.lock().unwrap_or_else(PoisonError::into_inner).enter(uid);
        let (until, open) = (Box::pin(sleep(LIFE)), Arc::clone(open));
        let bound = Visit { until, displacement, is_over: false, number, open };
        Self { stream, bound }
    }
}

impl Bound for Visit {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.is_over = self.is_over
            || Pin::new(&mut self.displacement).poll(cx).is_ready()
            || self.until.as_mut().poll(cx).is_ready();
        match self.is_over {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(()),
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).leave(self.number);
    }
}

impl Connected for LocalConnection {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> UdsConnectInfo {
        self.stream.connect_info()
    }
}
