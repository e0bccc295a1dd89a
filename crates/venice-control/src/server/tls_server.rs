//! The TLS side of a gRPC service: authenticates callers and decides whether they are admitted.

use super::connection_limiter::{ConnectionCounts, ConnectionLimiter};
use super::peer_identity::{Peer, peer};
use super::refusals::{Reason, Refusals, Subject};
use crate::identity::{CertificateInfo, Credential, Holder, IdentityError, NotAdmitted, Trust};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, UnixTime};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tonic::{Request, Status};
use venice_rack::caller::Caller;
use venice_rack::door::RefusedCounts;
use venice_rack::revocation::Revocations;

/// TLS and admission of a service. It outlives its connections; the admission of a peer may change
/// while its connection is open.
#[derive(Debug)]
pub struct TlsServer {
    holder: Holder,
    trust: Trust,
    refusals: Refusals,
    /// The limiter of its listener.
    connections: Mutex<Weak<ConnectionLimiter>>,
}

impl TlsServer {
    /// Creates a server with the credential in `holder`; it admits callers certified by the same
    /// authority.
    ///
    /// # Errors
    /// [`IdentityError::Tls`].
    pub fn new(holder: Holder) -> Result<Arc<Self>, IdentityError> {
        let trust = Trust::new(&holder.authorities())?;
        let (refusals, connections) = (Refusals::default(), Mutex::default());
        Ok(Arc::new(Self { holder, trust, refusals, connections }))
    }

    /// Credential of the server.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Replaces the credential, and trusts its authorities. Open connections stay; a peer that is
    /// trusted no more is refused at its next call.
    ///
    /// # Errors
    /// [`IdentityError::Tls`]; the old credential then stays in use.
    pub fn replace(&self, credential: Credential) -> Result<(), IdentityError> {
        let authorities = credential.authorities().clone();
        self.holder.replace(credential)?;
        Ok(self.trust.set_authorities(&authorities)?)
    }

    /// Sets the revocations, effective at once, also for open connections.
    pub fn set_revoked(&self, revoked: Revocations) {
        self.trust.set_revoked(revoked);
    }

    /// Returns the revocations in force.
    pub fn revoked(&self) -> Revocations {
        self.trust.revoked()
    }

    /// Version of the revocations in force.
    pub fn revoked_version(&self) -> u64 {
        self.trust.revoked_version()
    }

    /// Returns the time until which a node's certificates are void, in milliseconds since 1970;
    /// `None` if the node was not revoked.
    pub fn revoked_until_ms(&self, node: &str) -> Option<u64> {
        self.trust.revoked_until_ms(node)
    }

    /// Refusals since the server was created.
    pub fn refused(&self) -> RefusedCounts {
        self.refusals.counts()
    }

    /// Open connections of its listener; none while it does not listen.
    pub fn connections(&self) -> ConnectionCounts {
        let limiter = self.connections.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        limiter.map(|limiter| limiter.counts()).unwrap_or_default()
    }

    /// Takes the limiter of its listener.
    pub(super) fn watch_connections(&self, limiter: &Arc<ConnectionLimiter>) {
        *self.connections.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(limiter);
    }

    /// Counts and logs a join with an invalid token.
    pub fn refuse_token(&self, from: Option<SocketAddr>, why: &str) {
        let who = from.map_or_else(Subject::unknown, |from| Subject::at(from.ip()));
        if let Some(why) = self.refusals.refuse(&who, Reason::BadToken, why) {
            tracing::warn!(from = ?from, why, "refused to let a machine join");
        }
    }

    /// Counts and logs an access with a key that is not its grant's.
    pub fn refuse_key(&self, caller: &Caller, grant: u64) {
        const WHY: &str = "the key is not the grant's, or the grant is over";
        if let Some(why) = self.refusals.refuse(&Subject::caller(caller), Reason::WrongKey, WHY) {
            tracing::warn!(%caller, grant, "refused: {why}");
        }
    }

    /// Counts and logs `count` accesses to a grant's memory with a wrong key; only the link has the
    /// peer's identity.
    pub fn refuse_accesses(&self, grant: u64, count: u64) {
        const WHY: &str = "accesses with a key that is not the grant's";
        let who = Subject::at_grant(grant);
        if let Some(why) = self.refusals.refuse_many(&who, Reason::WrongKey, WHY, count) {
            tracing::warn!(grant, count, "refused: {why}");
        }
    }

    /// Authenticates the caller.
    ///
    /// # Errors
    /// UNAUTHENTICATED, with the reason and a remedy.
    pub(super) fn admit<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        self.admit_peer(&peer(request))
    }

    /// Authenticates the peer of a call that is still open.
    ///
    /// # Errors
    /// The same as [`Self::admit`].
    pub(super) fn admit_peer(&self, peer: &Peer) -> Result<Caller, Status> {
        let info = self.verify_now(peer);
        let info = info.and_then(|info| {
            // The peer may have been revoked while its connection was open.
            self.trust
                .check_revoked(&info)
                .inspect_err(|why| self.note(peer.addr, why))
                .map(|()| info)
        });
        match info {
            Ok(info) => Ok(info.caller.clone()),
            Err(why) => {
                // Join requests come without a certificate: only other calls without one are
                // refused.
                if why == NotAdmitted::NoCertificate {
                    self.note(peer.addr, &why);
                }
                Err(Status::unauthenticated(why.to_string()))
            }
        }
    }

    /// Verifies a peer's certificate. A certificate that failed only for its time is verified
    /// again: clocks get corrected. One that has expired on an open connection counts no more.
    fn verify_now(&self, peer: &Peer) -> Result<Arc<CertificateInfo>, NotAdmitted> {
        match &peer.info {
            Ok(info) if peer.has_expired() => {
                self.note_expired(peer);
                Err(NotAdmitted::Expired(info.caller.clone()))
            }
            Err(NotAdmitted::Expired(_) | NotAdmitted::NotYet(_)) => {
                self.trust.verify(Some(&peer.chain), UnixTime::now()).map(Arc::new)
            }
            // The authorities have changed since.
            Ok(_) if peer.trust_version != self.trust.version() => {
                self.trust.verify(Some(&peer.chain), UnixTime::now()).map(Arc::new)
            }
            info => info.clone(),
        }
    }

    /// Authenticates the caller and checks it with `may`.
    ///
    /// # Errors
    /// UNAUTHENTICATED like [`Self::admit`]; PERMISSION_DENIED, with the text `who may do this`.
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

    /// Refuses an authenticated caller without permission.
    pub(super) fn forbid(&self, caller: &Caller, who: &str) -> Status {
        let why = format!("only {who} may do this");
        if let Some(why) = self.refusals.refuse(&Subject::caller(caller), Reason::Forbidden, &why) {
            tracing::warn!(%caller, "refused: {why}");
        }
        Status::permission_denied(format!("{caller} may not do this: only {who} may"))
    }

    /// Counts and logs a peer that is not admitted.
    fn note(&self, addr: SocketAddr, why: &NotAdmitted) {
        let reason = match why {
            NotAdmitted::NoCertificate => Reason::NoCertificate,
            NotAdmitted::Expired(_) | NotAdmitted::NotYet(_) => Reason::Expired,
            NotAdmitted::Revoked(_) => Reason::Revoked,
            NotAdmitted::Foreign => Reason::Foreign,
        };
        self.tell(addr, reason, &why.to_string());
    }

    fn tell(&self, addr: SocketAddr, reason: Reason, why: &str) {
        if let Some(why) = self.refusals.refuse(&Subject::at(addr.ip()), reason, why) {
            tracing::warn!(from = %addr, "refused a caller: {why}");
        }
    }

    /// Returns the TLS configuration for all peers.
    pub(super) fn config(&self) -> Result<Arc<ServerConfig>, IdentityError> {
        self.holder.server()
    }

    /// Verifies the certificate `chain` of a peer at `addr`.
    pub(super) fn identify(
        &self,
        addr: SocketAddr,
        chain: Option<&[CertificateDer<'static>]>,
    ) -> Peer {
        let chain: Arc<[_]> = chain.unwrap_or_default().iter().cloned().collect();
        // Before the verdict: authorities that change meanwhile have it repeated.
        let trust_version = self.trust.version();
        let info = self.trust.verify(Some(&chain), UnixTime::now()).map(Arc::new);
        if let Err(why) = &info
            && *why != NotAdmitted::NoCertificate
        {
            self.note(addr, why);
        }
        Peer::new(addr, chain, info, trust_version)
    }

    /// Counts a connection that was closed because too many of its address wait for their
    /// handshake.
    pub(super) fn note_flood(&self, addr: SocketAddr) {
        self.tell(
            addr,
            Reason::NoTls,
            "too many connections of its address wait for their handshake",
        );
    }

    /// Counts a connection that was closed because its peer showed no certificate, and did not join
    /// in time.
    pub(super) fn note_uncertified(&self, addr: SocketAddr) {
        self.tell(addr, Reason::Uncertified, "closed for want of a certificate");
    }

    /// Counts a call over a connection whose certificate has expired.
    fn note_expired(&self, peer: &Peer) {
        let Ok(info) = &peer.info else { return };
        self.note(peer.addr, &NotAdmitted::Expired(info.caller.clone()));
    }

    /// Counts a connection that was closed because there are too many in all.
    pub(super) fn note_full(&self, addr: SocketAddr) {
        self.tell(
            addr,
            Reason::TooMany,
            "too many connections: raise the limit on file descriptors (LimitNOFILE, ulimit -n)",
        );
    }

    /// Counts a connection that was closed because its user, or all users, have too many.
    pub(super) fn note_full_for(&self, peer: &Peer) {
        if let Ok(info) = &peer.info {
            self.refuse_too_many(
                &info.caller,
                "too many connections of this user, or of all users",
            );
        }
    }

    /// Counts and logs a call or a connection beyond its caller's bound.
    pub(super) fn refuse_too_many(&self, caller: &Caller, why: &str) {
        if let Some(why) = self.refusals.refuse(&Subject::caller(caller), Reason::TooMany, why) {
            tracing::warn!(%caller, "refused: {why}");
        }
    }

    /// Logs a failed accept: the process is out of descriptors, or the peer is gone again.
    pub(super) fn note_accept_failure(&self, error: &io::Error) {
        if !is_out_of_descriptors(error) {
            tracing::debug!(%error, "accepting a connection");
            return;
        }
        const WHY: &str = "raise the limit (LimitNOFILE, ulimit -n)";
        if let Some(why) = self.refusals.refuse(&Subject::unknown(), Reason::TooMany, WHY) {
            tracing::error!(%error, "no connection can be accepted: {why}");
        }
    }

    /// Counts a handshake that timed out.
    pub(super) fn note_timeout(&self, addr: SocketAddr) {
        self.tell(addr, Reason::NoTls, "no TLS handshake in time");
    }

    /// Counts a handshake that failed.
    pub(super) fn note_failure(&self, addr: SocketAddr, error: &io::Error) {
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match tls {
            // The peer has closed: perhaps a port check.
            None => {}
            Some(rustls::Error::AlertReceived(alert)) => {
                let why = format!("it rejects this rack's certificate ({alert:?})");
                self.tell(addr, Reason::Foreign, &why);
            }
            Some(error) => {
                let why = format!("TLS error ({error})");
                self.tell(addr, Reason::NoTls, &why);
            }
        }
    }
}

/// True if the process, or the machine, has no file descriptor left.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::MFILE | Errno::NFILE))
}
