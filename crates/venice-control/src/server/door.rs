//! The door of a gRPC service: TLS, who is at the other end, and whether that one is let in.

use crate::identity::{Holder, IdentityError, NotAdmitted, Said, Trust};
use rustls::pki_types::{CertificateDer, UnixTime};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;
use tonic::{Request, Status};
use venice_rack::caller::Caller;
use venice_rack::door::RefusedCounts;
use venice_rack::revocation::Revocations;

/// A handshake that takes longer is given up.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// Handshakes under way; more have to wait for their turn.
const MAX_HANDSHAKES: usize = 256;
/// Connections that wait to be served.
const QUEUE: usize = 64;
/// Addresses that are remembered as told of in the log.
const MAX_TOLD: usize = 1024;

/// A door. It outlives its connections; whom it lets in may change while they are open.
#[derive(Debug)]
pub struct Door {
    holder: Holder,
    trust: Arc<Trust>,
    refused: Counters,
    /// Who was told of in the log, and why: once is enough.
    told: Mutex<BTreeSet<(IpAddr, &'static str)>>,
}

#[derive(Debug, Default)]
struct Counters {
    no_tls: AtomicU64,
    no_certificate: AtomicU64,
    expired: AtomicU64,
    revoked: AtomicU64,
    foreign: AtomicU64,
    forbidden: AtomicU64,
    bad_token: AtomicU64,
    wrong_key: AtomicU64,
}

impl Door {
    /// A door that shows what `holder` holds, and lets in whom the same authority has certified.
    ///
    /// # Errors
    /// [`IdentityError::Tls`].
    pub fn new(holder: Holder) -> Result<Arc<Self>, IdentityError> {
        let trust = Arc::new(Trust::new(&holder.authority())?);
        let (refused, told) = (Counters::default(), Mutex::default());
        Ok(Arc::new(Self { holder, trust, refused, told }))
    }

    /// What it shows.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Whom it is not to let in, from now on; also not those who are in.
    pub fn set_revoked(&self, revoked: Revocations) {
        self.trust.set_revoked(revoked);
    }

    /// Up to when the certificates of a node are void, in milliseconds since 1970; `None` where it
    /// was not turned out.
    pub fn revoked_until_ms(&self, node: &str) -> Option<u64> {
        self.trust.revoked_until_ms(node)
    }

    /// What it has refused since it was made.
    pub fn refused(&self) -> RefusedCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RefusedCounts {
            no_tls: count(&self.refused.no_tls),
            no_certificate: count(&self.refused.no_certificate),
            expired: count(&self.refused.expired),
            revoked: count(&self.refused.revoked),
            foreign: count(&self.refused.foreign),
            forbidden: count(&self.refused.forbidden),
            bad_token: count(&self.refused.bad_token),
            wrong_key: count(&self.refused.wrong_key),
        }
    }

    /// Counts a join with a token that is worth nothing, and logs it.
    pub fn refuse_token(&self, from: Option<SocketAddr>, why: &str) {
        self.refused.bad_token.fetch_add(1, Ordering::Relaxed);
        let from = from.map_or_else(|| "?".to_owned(), |from| from.to_string());
        tracing::warn!(from, why, "refused to let a machine join");
    }

    /// Counts an access with a key that is not its grant's, and logs it.
    pub fn refuse_key(&self, caller: &Caller, grant: u64) {
        self.refused.wrong_key.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(%caller, grant, "refused: the key is not the grant's, or the grant is over");
    }

    /// Who calls.
    ///
    /// # Errors
    /// UNAUTHENTICATED, with the reason and what to do.
    pub(super) fn admit<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        let visitor = visitor(request);
        let said = self.judge_now(&visitor);
        let said = said.and_then(|said| {
            // Somebody may have been turned out with a connection open.
            self.trust.still(&said).inspect_err(|why| self.note(visitor.addr, why)).map(|()| said)
        });
        match said {
            Ok(said) => Ok(said.caller.clone()),
            Err(why) => {
                // Joining is for those who show none: only what they try besides is refused.
                if why == NotAdmitted::NoCertificate {
                    self.note(visitor.addr, &why);
                }
                Err(Status::unauthenticated(why.to_string()))
            }
        }
    }

    /// What a visitor's certificate is worth. Whom only the time spoke against may be good since:
    /// clocks are put right.
    fn judge_now(&self, visitor: &Visitor) -> Result<Arc<Said>, NotAdmitted> {
        match &visitor.said {
            Err(NotAdmitted::Expired(_) | NotAdmitted::NotYet(_)) => {
                self.trust.judge(Some(&visitor.chain), UnixTime::now()).map(Arc::new)
            }
            said => said.clone(),
        }
    }

    /// Who calls, if `may` says that it may.
    ///
    /// # Errors
    /// UNAUTHENTICATED as [`Self::admit`]; PERMISSION_DENIED, told as `who may do this`.
    pub(super) fn admit_if<T>(
        &self,
        request: &Request<T>,
        who: &str,
        may: impl FnOnce(&Caller) -> bool,
    ) -> Result<Caller, Status> {
        let caller = self.admit(request)?;
        if may(&caller) {
            return Ok(caller);
        }
        Err(self.forbid(&caller, who))
    }

    /// The answer to a caller that is known and may not do what it asked for.
    pub(super) fn forbid(&self, caller: &Caller, who: &str) -> Status {
        self.refused.forbidden.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(%caller, "refused: this is for {who}");
        Status::permission_denied(format!("{caller} may not do this: it is for {who}"))
    }

    /// Counts one who is not let in, and logs the first of an address.
    fn note(&self, addr: SocketAddr, why: &NotAdmitted) {
        let (counter, kind) = match why {
            NotAdmitted::NoCertificate => (&self.refused.no_certificate, "no certificate"),
            NotAdmitted::Expired(_) | NotAdmitted::NotYet(_) => (&self.refused.expired, "expired"),
            NotAdmitted::Revoked(_) => (&self.refused.revoked, "revoked"),
            NotAdmitted::Foreign => (&self.refused.foreign, "foreign"),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.tell(addr, kind, &why.to_string());
    }

    fn tell(&self, addr: SocketAddr, kind: &'static str, why: &str) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < MAX_TOLD && told.insert((addr.ip(), kind)) {
            tracing::warn!(from = %addr, "refused a caller: {why}");
        }
    }

    /// The connections of a listener that speak TLS, whoever is at their other end.
    pub(super) fn guests(self: &Arc<Self>, listener: TcpListener) -> Result<Guests, IdentityError> {
        let acceptor = TlsAcceptor::from(self.holder.server(&self.trust)?);
        let (sender, received) = mpsc::channel(QUEUE);
        let accepting = tokio::spawn(accept_all(Arc::clone(self), listener, acceptor, sender));
        Ok(Guests { received, accepting: accepting.abort_handle() })
    }

    async fn shake_hands(
        &self,
        acceptor: TlsAcceptor,
        stream: TcpStream,
        addr: SocketAddr,
    ) -> Option<Guest> {
        let shaken = tokio::time::timeout(HANDSHAKE_PATIENCE, acceptor.accept(stream)).await;
        let stream = match shaken {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                self.note_failure(addr, &error);
                return None;
            }
            Err(_) => {
                self.refused.no_tls.fetch_add(1, Ordering::Relaxed);
                self.tell(addr, "silent", "it did not begin with TLS");
                return None;
            }
        };
        let chain = stream.get_ref().1.peer_certificates();
        let chain: Arc<[_]> = chain.unwrap_or_default().iter().cloned().collect();
        let said = self.trust.judge(Some(&chain), UnixTime::now());
        if let Err(why) = &said
            && *why != NotAdmitted::NoCertificate
        {
            self.note(addr, why);
        }
        Some(Guest { stream, visitor: Visitor { addr, chain, said: said.map(Arc::new) } })
    }

    /// A handshake that did not come to its end.
    fn note_failure(&self, addr: SocketAddr, error: &io::Error) {
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match tls {
            // It went away: perhaps somebody who looked whether the port is open.
            None => {}
            Some(rustls::Error::AlertReceived(alert)) => {
                self.refused.foreign.fetch_add(1, Ordering::Relaxed);
                let why = format!("it does not take this rack's certificate ({alert:?})");
                self.tell(addr, "alert", &why);
            }
            Some(error) => {
                self.refused.no_tls.fetch_add(1, Ordering::Relaxed);
                let why = format!("it does not speak TLS as the rack does ({error})");
                self.tell(addr, "no TLS", &why);
            }
        }
    }
}

async fn accept_all(
    door: Arc<Door>,
    listener: TcpListener,
    acceptor: TlsAcceptor,
    sender: mpsc::Sender<io::Result<Guest>>,
) {
    let turns = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    loop {
        let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
        let (stream, addr) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or the caller is gone again.
                tracing::debug!(%error, "accepting a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (door, acceptor, sender) = (Arc::clone(&door), acceptor.clone(), sender.clone());
        if sender.is_closed() {
            return;
        }
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            if let Some(guest) = door.shake_hands(acceptor, stream, addr).await {
                // Nobody serves any more: the connection ends.
                let _ = sender.send(Ok(guest)).await;
            }
            drop(turn);
        });
    }
}

/// Connections with their handshake behind them. Dropped, it listens no more.
pub(super) struct Guests {
    received: mpsc::Receiver<io::Result<Guest>>,
    accepting: AbortHandle,
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

/// Who is at the other end of a connection.
#[derive(Debug, Clone)]
pub(super) struct Visitor {
    pub(super) addr: SocketAddr,
    chain: Arc<[CertificateDer<'static>]>,
    /// What it was worth when the connection was made.
    said: Result<Arc<Said>, NotAdmitted>,
}

#[cfg(test)]
impl Visitor {
    /// Who shows this, and what was thought of it when it came.
    pub(super) fn showing(
        credential: &crate::identity::Credential,
        thought: Option<NotAdmitted>,
    ) -> Self {
        let chain = [credential.certificate().clone()].into();
        let said = thought.map_or_else(|| Ok(Arc::new(credential.said().clone())), Err);
        Self { addr: ([127, 0, 0, 1], 1).into(), chain, said }
    }
}

/// Who made a request.
pub(super) fn visitor<T>(request: &Request<T>) -> Visitor {
    let visitor = request.extensions().get::<Visitor>();
    visitor.expect("each connection of a door has its visitor").clone()
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
