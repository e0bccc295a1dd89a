//! An accepted connection: its peer, and the reasons to close it.

use super::bounded_stream::{Bound, BoundedStream};
use super::connection_limiter::ConnectionPermit;
use super::connection_limits::ConnectionLimits;
use super::movable_stream::MovableStream;
use super::peer_identity::Peer;
use super::short_lived::Displacement;
use super::tls_server::TlsServer;
use crate::identity::NotAdmitted;
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

/// A connection and its peer. It fails with [`io::ErrorKind::TimedOut`] once it is to be closed.
pub(super) type Connection = BoundedStream<TlsStream<MovableStream>, Admission>;

/// The peer of a connection, and the life that the peer's certificate permits.
pub(super) struct Admission {
    peer: Peer,
    tls: Arc<TlsServer>,
    life: Life,
    _permit: ConnectionPermit,
}

/// The reason why a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closed {
    /// A peer that is not admitted had its time, or made room for another.
    Stranger,
    /// The certificate has expired.
    Expired,
    /// The peer was silent for too long.
    Idle,
}

/// The life of a connection.
struct Life {
    /// Set for a peer that is not admitted.
    displacement: Option<Displacement>,
    /// End for a peer that is not admitted.
    stranger_until: Option<Instant>,
    /// Expiry of the certificate of an admitted peer.
    expires: Option<Instant>,
    idle: Duration,
    heard: Instant,
    /// Created in the runtime that serves the connection.
    timer: Option<Pin<Box<Sleep>>>,
    closed: Option<Closed>,
}

impl Connection {
    pub(super) fn new(
        stream: TlsStream<MovableStream>,
        (peer, tls): (Peer, Arc<TlsServer>),
        (permit, displacement): (ConnectionPermit, Option<Displacement>),
        limits: ConnectionLimits,
    ) -> Self {
        let now = Instant::now();
        let life = Life {
            stranger_until: displacement.as_ref().map(|_| now + limits.stranger_life),
            displacement,
            expires: peer.info.is_ok().then_some(peer.expires),
            idle: limits.idle,
            heard: now,
            timer: None,
            closed: None,
        };
        Self { stream, bound: Admission { peer, tls, life, _permit: permit } }
    }

    /// The peer.
    #[cfg(test)]
    pub(super) fn peer(&self) -> &Peer {
        &self.bound.peer
    }

    /// Moves it to the current runtime.
    ///
    /// # Errors
    /// Fails if the kernel cannot watch another descriptor.
    pub(super) fn move_here(&mut self) -> io::Result<()> {
        self.stream.get_mut().0.move_here()
    }
}

impl Bound for Admission {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let was_closed = self.life.closed.is_some();
        let Poll::Ready(why) = self.life.poll_closed(cx) else { return Ok(()) };
        if !was_closed {
            match why {
                Closed::Stranger if self.peer.info == Err(NotAdmitted::NoCertificate) => {
                    self.tls.note_uncertified(self.peer.addr);
                }
                // Counted when it connected.
                Closed::Stranger => {}
                // A peer with a newer certificate connects again.
                Closed::Expired | Closed::Idle => {
                    tracing::debug!(from = %self.peer.addr, ?why, "closed a connection");
                }
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    fn note_heard(&mut self) {
        self.life.heard = Instant::now();
    }
}

impl Life {
    /// Completes when the connection is to be closed.
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<Closed> {
        if let Some(why) = self.closed {
            return Poll::Ready(why);
        }
        if let Some(displacement) = &mut self.displacement
            && Pin::new(displacement).poll(cx).is_ready()
        {
            return Poll::Ready(*self.closed.insert(Closed::Stranger));
        }
        loop {
            let (now, next) = (Instant::now(), self.next());
            if let Some(why) = self.over(now) {
                return Poll::Ready(*self.closed.insert(why));
            }
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(next)));
            ready!(timer.as_mut().poll(cx));
            timer.as_mut().reset(next.max(now + Duration::from_millis(1)));
        }
    }

    fn over(&self, now: Instant) -> Option<Closed> {
        match () {
            () if self.stranger_until.is_some_and(|until| until <= now) => Some(Closed::Stranger),
            () if self.expires.is_some_and(|expires| expires <= now) => Some(Closed::Expired),
            () if self.heard + self.idle <= now => Some(Closed::Idle),
            () => None,
        }
    }

    /// Returns the time of the next check.
    fn next(&self) -> Instant {
        let silent = self.heard + self.idle;
        silent.min(self.expires.unwrap_or(silent)).min(self.stranger_until.unwrap_or(silent))
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.bound.peer.clone()
    }
}
