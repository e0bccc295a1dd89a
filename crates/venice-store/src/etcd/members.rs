//! The members of etcd: requests go to one that answers, and to the next after a failure.

use super::api::{
    KvClient, LeaseClient, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest,
    RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};
use crate::error::StoreError;
use crate::location::{EtcdLocation, EtcdTls};
use std::error::Error;
use std::future::Future;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Response, Status};

/// Time of all attempts, at one member after the other: longer than an election takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Time-out of one answer.
pub(super) const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

/// All members, and the one in use.
#[derive(Debug)]
pub(super) struct Members {
    place: String,
    channels: Vec<Channel>,
    current: AtomicUsize,
}

/// One member, and the count of changes at which it came into use.
#[derive(Clone, Debug)]
pub(super) struct Member {
    turn: usize,
    pub(super) channel: Channel,
}

/// Attempts at one request, within a time limit.
pub(super) struct Tries {
    until: Instant,
}

impl Members {
    pub(super) fn new(location: &EtcdLocation, tls: &EtcdTls) -> Result<Self, StoreError> {
        let place = location.to_string();
        let config = if location.is_tls { Some(tls_config(&place, tls)?) } else { None };
        if config.is_none() {
            warn_of_plain(location);
        }
        let channels = location.members.iter().map(|member| {
            let scheme = if location.is_tls { "https" } else { "http" };
            let bad = |error: tonic::transport::Error| StoreError::Address {
                place: place.clone(),
                reason: format!("`{member}`: {error}"),
            };
            let mut endpoint = Endpoint::from_shared(format!("{scheme}://{member}"))
                .map_err(bad)?
                .connect_timeout(CONNECT_PATIENCE)
                .http2_keep_alive_interval(ANSWER_PATIENCE)
                .keep_alive_timeout(ANSWER_PATIENCE)
                .keep_alive_while_idle(true);
            if let Some(config) = &config {
                endpoint = endpoint.tls_config(config.clone()).map_err(bad)?;
            }
            Ok(endpoint.connect_lazy())
        });
        let channels = channels.collect::<Result<_, StoreError>>()?;
        Ok(Self { place, channels, current: AtomicUsize::new(0) })
    }

    /// Returns the place of the store, for messages.
    pub(super) fn place(&self) -> String {
        self.place.clone()
    }

    /// Returns the member in use.
    pub(super) fn current(&self) -> Member {
        let turn = self.current.load(Ordering::Relaxed);
        Member { turn, channel: self.channels[turn % self.channels.len()].clone() }
    }

    pub(super) fn tries(&self) -> Tries {
        Tries { until: Instant::now() + PATIENCE }
    }

    /// Handles a failure of `asked`: waits briefly before the next attempt, at the next member;
    /// returns the error after the last attempt.
    pub(super) async fn another(
        &self,
        tries: &Tries,
        asked: &Member,
        failure: Status,
    ) -> Result<(), StoreError> {
        if is_lease_over(&failure) {
            return Err(StoreError::LeaseOver);
        }
        if is_full(&failure) {
            return Err(StoreError::NoSpace { place: self.place() });
        }
        if !is_passing(&failure) {
            let reason = failure.message().to_owned();
            return Err(StoreError::Refused { place: self.place(), reason });
        }
        if Instant::now() >= tries.until {
            let (place, patience_s) = (self.place(), PATIENCE.as_secs());
            let source = root_of(&failure).into();
            return Err(StoreError::Unreachable { place, patience_s, source });
        }
        self.leave(asked);
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    /// Moves on to the next member, unless another caller has left this one already: two callers
    /// that find the same member silent would otherwise skip the next one.
    pub(super) fn leave(&self, asked: &Member) {
        let turn = asked.turn;
        let order = Ordering::Relaxed;
        let _ = self.current.compare_exchange(turn, turn.wrapping_add(1), order, order);
    }

    /// Repeats a request until a member answers: it must be safe to repeat.
    async fn ask<T, F>(&self, call: impl Fn(Channel) -> F + Send) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Status>> + Send,
    {
        let tries = self.tries();
        loop {
            let member = self.current();
            match within(call(member.channel.clone())).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => self.another(&tries, &member, failure).await?,
            }
        }
    }

    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        self.ask(|channel| {
            let request = request.clone();
            async move { KvClient::new(channel).range(request).await.map(Response::into_inner) }
        })
        .await
    }

    /// Sends a transaction that is safe to repeat.
    pub(super) async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, StoreError> {
        self.ask(|channel| {
            let request = request.clone();
            async move { KvClient::new(channel).txn(request).await.map(Response::into_inner) }
        })
        .await
    }

    /// Sends a transaction once: after a failure it may have been made or not.
    pub(super) async fn txn_once(
        member: &Member,
        request: TxnRequest,
    ) -> Result<TxnResponse, Status> {
        let mut client = KvClient::new(member.channel.clone());
        within(async { client.txn(request).await.map(Response::into_inner) }).await
    }

    /// Grants a lease; returns its number.
    pub(super) async fn grant_lease(&self, ttl: i64) -> Result<i64, StoreError> {
        // A lease whose grant was not received ends by itself.
        self.ask(|channel| async move {
            let request = LeaseGrantRequest { ttl, id: 0 };
            let answer = LeaseClient::new(channel).lease_grant(request).await?;
            Ok(answer.into_inner().id)
        })
        .await
    }

    /// Renews a lease; returns its remaining seconds, or 0 if it is over.
    pub(super) async fn keep_alive(&self, lease: i64) -> Result<i64, StoreError> {
        self.ask(|channel| async move {
            let once = tokio_stream::once(LeaseKeepAliveRequest { id: lease });
            let answers = LeaseClient::new(channel).lease_keep_alive(once).await?;
            let answer = answers.into_inner().message().await?;
            answer.map(|answer| answer.ttl).ok_or_else(|| Status::unavailable("no answer"))
        })
        .await
    }

    pub(super) async fn end_lease(&self, lease: i64) -> Result<(), StoreError> {
        let ended = self.ask(|channel| async move {
            let request = LeaseRevokeRequest { id: lease };
            LeaseClient::new(channel).lease_revoke(request).await.map(drop)
        });
        match ended.await {
            Err(StoreError::LeaseOver) => Ok(()),
            other => other,
        }
    }
}

/// Limits the wait for one member.
pub(super) async fn within<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = |_| Status::deadline_exceeded("no answer");
    tokio::time::timeout(ANSWER_PATIENCE, call).await.map_err(late)?
}

/// True if a lease is over.
pub(super) fn is_lease_over(failure: &Status) -> bool {
    failure.code() == Code::NotFound && failure.message().contains("lease")
}

/// True if the members have reached their quota: all of them refuse changes until space is freed.
fn is_full(failure: &Status) -> bool {
    failure.code() == Code::ResourceExhausted && failure.message().contains("space exceeded")
}

/// Returns the innermost error. Its outer layers are the same for every failure, and long.
fn root_of(failure: &Status) -> String {
    let mut cause = failure.source();
    while let Some(next) = cause.and_then(Error::source) {
        cause = Some(next);
    }
    cause.map_or_else(|| failure.message().to_owned(), ToString::to_string)
}

/// True if another member may answer, or this one later.
fn is_passing(failure: &Status) -> bool {
    match failure.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => true,
        Code::ResourceExhausted => failure.message().contains("too many requests"),
        // Broken connections have these codes.
        Code::Unknown | Code::Internal => !failure.message().starts_with("etcdserver:"),
        _ => false,
    }
}

fn tls_config(place: &str, tls: &EtcdTls) -> Result<ClientTlsConfig, StoreError> {
    let Some(authority) = &tls.authority else {
        let reason = "TLS needs the authority of the members' certificates (--store-ca)".to_owned();
        return Err(StoreError::Address { place: place.to_owned(), reason });
    };
    let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(authority)?));
    if let Some((certificate, key)) = &tls.certificate {
        config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    Ok(config)
}

fn read(path: &Path) -> Result<Vec<u8>, StoreError> {
    std::fs::read(path).map_err(|source| StoreError::Tls { path: path.to_owned(), source })
}

/// Warns of a connection without TLS: it carries keys of grants.
fn warn_of_plain(location: &EtcdLocation) {
    let is_here = |member: &String| {
        let host = member.rsplit_once(':').map_or("", |(host, _)| host).trim_matches(['[', ']']);
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|addr| addr.is_loopback())
    };
    if !location.members.iter().all(is_here) {
        tracing::warn!(
            store = %location,
            "the store is reached without TLS: whoever listens on the way reads the rack's keys \
             (etcds:// and --store-ca)"
        );
    }
}
