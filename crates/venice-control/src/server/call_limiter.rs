//! Limits the calls in flight of each user, so that one cannot occupy the Monitor Node. Agents and
//! administrators have no such bound.

use super::peer_identity::Peer;
use super::tls_server::TlsServer;
use crate::error::rack_status;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tower::Layer;
use venice_rack::caller::{Caller, Owner, User};
use venice_rack::counts::Counts;
use venice_rack::types::RackError;

/// The limiter of a server's calls.
#[derive(Debug)]
pub(super) struct CallLimiter {
    most_of_user: usize,
    tls: Arc<TlsServer>,
    in_flight: Mutex<Counts<Owner>>,
}

impl CallLimiter {
    /// Creates a limiter of `most_of_user` calls in flight of one user, on one node.
    pub(super) fn new(most_of_user: usize, tls: Arc<TlsServer>) -> Arc<Self> {
        Arc::new(Self { most_of_user, tls, in_flight: Mutex::default() })
    }

    /// Registers a call of `user`; `None` if the user has too many in flight.
    fn enter(self: &Arc<Self>, user: &User) -> Option<InFlight> {
        let owner = Owner::from(user.clone());
        let mut in_flight = self.lock();
        if in_flight.of(&owner) >= self.most_of_user {
            return None;
        }
        in_flight.add(owner.clone());
        Some(InFlight { limiter: Arc::clone(self), owner })
    }

    /// Refuses a call.
    fn refusal(&self, user: &User) -> http::Response<Body> {
        let most = self.most_of_user;
        let why = format!(
            "{user} has {most} calls in flight, as many as one user may: wait for some answers, then \
             repeat this"
        );
        self.tls.refuse_too_many(&Caller::User(user.clone()), &why);
        rack_status(&RackError::TooMany(why)).into_http()
    }

    fn lock(&self) -> MutexGuard<'_, Counts<Owner>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call in flight.
struct InFlight {
    limiter: Arc<CallLimiter>,
    owner: Owner,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.limiter.lock().remove(&self.owner);
    }
}

/// Puts the limiter before a server's services.
#[derive(Debug, Clone)]
pub(super) struct CallLimit(pub(super) Arc<CallLimiter>);

impl<S> Layer<S> for CallLimit {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { limiter: Arc::clone(&self.0), inner }
    }
}

/// Services behind the limiter.
#[derive(Debug, Clone)]
pub(super) struct Limited<S> {
    limiter: Arc<CallLimiter>,
    inner: S,
}

type Answer<E> = Pin<Box<dyn Future<Output = Result<http::Response<Body>, E>> + Send>>;

impl<S, B> Service<http::Request<B>> for Limited<S>
where
    S: Service<http::Request<B>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Answer<S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Answer<S::Error> {
        let mut in_flight = None;
        if let Some(user) = user_of(&request) {
            match self.limiter.enter(user) {
                Some(entered) => in_flight = Some(entered),
                None => {
                    let refusal = self.limiter.refusal(user);
                    return Box::pin(async { Ok(refusal) });
                }
            }
        }
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            drop(in_flight);
            answer
        })
    }
}

/// Returns the user who calls, unless an administrator.
fn user_of<B>(request: &http::Request<B>) -> Option<&User> {
    let peer = request.extensions().get::<Peer>()?;
    match &peer.info.as_ref().ok()?.caller {
        Caller::User(user) if !user.is_admin => Some(user),
        Caller::User(_) | Caller::Node(_) | Caller::Monitor => None,
    }
}
