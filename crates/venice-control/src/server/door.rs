//! The door of a gRPC service: TLS, who is at the other end, and whether that one is let in.

use super::refusals::{Reason, Refusals, Who};
use super::visitor::{Visitor, visitor};
use crate::identity::{Holder, IdentityError, NotAdmitted, Said, Trust};
use rustls::pki_types::{CertificateDer, UnixTime};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tonic::{Request, Status};
use venice_rack::caller::Caller;
use venice_rack::door::RefusedCounts;
use venice_rack::revocation::Revocations;

/// A door. It outlives its connections; whom it lets in may change while they are open.
#[derive(Debug)]
pub struct Door {
    holder: Holder,
    trust: Trust,
    refusals: Refusals,
}

impl Door {
    /// A door that shows what `holder` holds, and lets in whom the same authority has certified.
    ///
    /// # Errors
    /// [`IdentityError::Tls`].
    pub fn new(holder: Holder) -> Result<Arc<Self>, IdentityError> {
        let trust = Trust::new(&holder.authority())?;
        Ok(Arc::new(Self { holder, trust, refusals: Refusals::default() }))
    }

    /// What it shows.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Whom it is not to let in, from now on; also not those who are in.
    pub fn set_revoked(&self, revoked: Revocations) {
        self.trust.set_revoked(revoked);
    }

    /// Whom it does not let in.
    pub fn revoked(&self) -> Revocations {
        self.trust.revoked()
    }

    /// Which revocations it goes by.
    pub fn revoked_version(&self) -> u64 {
        self.trust.revoked_version()
    }

    /// Up to when the certificates of a node are void, in milliseconds since 1970; `None` where it
    /// was not turned out.
    pub fn revoked_until_ms(&self, node: &str) -> Option<u64> {
        self.trust.revoked_until_ms(node)
    }

    /// What it has refused since it was made.
    pub fn refused(&self) -> RefusedCounts {
        self.refusals.counts()
    }

    /// Counts a join with a token that is worth nothing, and logs it.
    pub fn refuse_token(&self, from: Option<SocketAddr>, why: &str) {
        let who = from.map_or_else(Who::unknown, |from| Who::at(from.ip()));
        if let Some(why) = self.refusals.refuse(&who, Reason::BadToken, why) {
            tracing::warn!(from = ?from, why, "refused to let a machine join");
        }
    }

    /// Counts an access with a key that is not its grant's, and logs it.
    pub fn refuse_key(&self, caller: &Caller, grant: u64) {
        const WHY: &str = "the key is not the grant's, or the grant is over";
        if let Some(why) = self.refusals.refuse(&Who::caller(caller), Reason::WrongKey, WHY) {
            tracing::warn!(%caller, grant, "refused: {why}");
        }
    }

    /// The same of so many accesses to a grant's memory. Who it was only its link knows.
    pub fn refuse_accesses(&self, grant: u64, count: u64) {
        const WHY: &str = "somebody reached for its memory with a key that is not the grant's";
        let who = Who::at_grant(grant);
        if let Some(why) = self.refusals.refuse_so_often(&who, Reason::WrongKey, WHY, count) {
            tracing::warn!(grant, count, "refused: {why}");
        }
    }

    /// Who calls.
    ///
    /// # Errors
    /// UNAUTHENTICATED, with the reason and what to do.
    pub(super) fn admit<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        self.admit_visitor(&visitor(request))
    }

    /// The same of who made a call that is still open.
    ///
    /// # Errors
    /// As [`Self::admit`].
    pub(super) fn admit_visitor(&self, visitor: &Visitor) -> Result<Caller, Status> {
        let said = self.judge_now(visitor);
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
        let why = format!("this is for {who}");
        if let Some(why) = self.refusals.refuse(&Who::caller(caller), Reason::Forbidden, &why) {
            tracing::warn!(%caller, "refused: {why}");
        }
        Status::permission_denied(format!("{caller} may not do this: it is for {who}"))
    }

    /// Counts one who is not let in, and logs it.
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
        if let Some(why) = self.refusals.refuse(&Who::at(addr.ip()), reason, why) {
            tracing::warn!(from = %addr, "refused a caller: {why}");
        }
    }

    /// TLS for those who come, whoever they are.
    pub(super) fn acceptor(&self) -> Result<TlsAcceptor, IdentityError> {
        Ok(TlsAcceptor::from(self.holder.server()?))
    }

    /// Who has come from `addr`, showing `chain`.
    pub(super) fn receive(
        &self,
        addr: SocketAddr,
        chain: Option<&[CertificateDer<'static>]>,
    ) -> Visitor {
        let chain: Arc<[_]> = chain.unwrap_or_default().iter().cloned().collect();
        let said = self.trust.judge(Some(&chain), UnixTime::now()).map(Arc::new);
        if let Err(why) = &said
            && *why != NotAdmitted::NoCertificate
        {
            self.note(addr, why);
        }
        Visitor { addr, chain, said }
    }

    /// So many of one address are before the door that it is closed to more of them.
    pub(super) fn note_crowd(&self, addr: SocketAddr) {
        self.tell(addr, Reason::NoTls, "too many connections of its address wait to come in");
    }

    /// A handshake that came to no end in its time.
    pub(super) fn note_silence(&self, addr: SocketAddr) {
        self.tell(addr, Reason::NoTls, "it did not begin with TLS");
    }

    /// A handshake that broke off.
    pub(super) fn note_failure(&self, addr: SocketAddr, error: &io::Error) {
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match tls {
            // It went away: perhaps somebody who looked whether the port is open.
            None => {}
            Some(rustls::Error::AlertReceived(alert)) => {
                let why = format!("it does not take this rack's certificate ({alert:?})");
                self.tell(addr, Reason::Foreign, &why);
            }
            Some(error) => {
                let why = format!("it does not speak TLS as the rack does ({error})");
                self.tell(addr, Reason::NoTls, &why);
            }
        }
    }
}
