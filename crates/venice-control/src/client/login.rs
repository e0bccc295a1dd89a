//! The login of a process for its calls: a credential of its own, or one issued at a socket of its
//! machine.

use super::local;
use super::user_ids::UserIds;
use crate::error::ControlError;
use crate::identity::{CertificateInfo, Fingerprint, Holder, IdentityError, pinned_client};
use rustls::ClientConfig;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Mutex;

/// Interval between two questions to a socket that does not answer while the old credential is
/// valid.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// A login. Clones share it.
#[derive(Debug, Clone)]
pub struct Login(Arc<Source>);

#[derive(Debug)]
enum Source {
    Nobody(Arc<ClientConfig>),
    Held(Holder),
    Sockets { paths: Vec<PathBuf>, user: Option<UserIds>, issued: Mutex<Option<Issued>> },
}

#[derive(Debug)]
struct Issued {
    holder: Holder,
    /// Index of the socket that issued it.
    at: usize,
    asked: SystemTime,
}

/// A credential to show, with its origin.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) tls: Arc<ClientConfig>,
    issued: Option<(usize, Holder)>,
}

impl Login {
    /// Uses a daemon's own credential.
    pub fn held(holder: Holder) -> Self {
        Self(Arc::new(Source::Held(holder)))
    }

    /// Uses no credential: for a machine that has not joined yet. The rack is verified by its
    /// authority.
    ///
    /// # Errors
    /// [`ControlError::NoLogin`].
    pub fn nobody(authority: Fingerprint) -> Result<Self, ControlError> {
        let config = pinned_client(authority).map_err(no_login)?;
        Ok(Self(Arc::new(Source::Nobody(config))))
    }

    /// Uses a program's login: a credential issued by the first of these sockets that answers, at
    /// the first call and again at half of its lifetime. If it belongs to another rack than the
    /// called one, the next socket is tried.
    pub fn at_sockets(paths: Vec<PathBuf>) -> Self {
        Self(Arc::new(Source::Sockets { paths, user: None, issued: Mutex::default() }))
    }

    /// Uses the login of another user of this machine, like [`Login::at_sockets`]: what it allocates
    /// is that user's. The caller is root.
    pub fn at_sockets_as(paths: Vec<PathBuf>, user: UserIds) -> Self {
        Self(Arc::new(Source::Sockets { paths, user: Some(user), issued: Mutex::default() }))
    }

    /// True if it is another user's: what it allocates is bound to the caller ([`Owner`]).
    ///
    /// [`Owner`]: venice_rack::caller::Owner
    pub(super) fn is_of_another(&self) -> bool {
        match &*self.0 {
            Source::Sockets { user, .. } => user.is_some(),
            Source::Nobody(_) | Source::Held(_) => false,
        }
    }

    /// Longest time to obtain the credential.
    pub(super) fn patience(&self) -> Duration {
        match &*self.0 {
            Source::Sockets { .. } => local::ENTER_ANY_WITHIN,
            Source::Nobody(_) | Source::Held(_) => Duration::ZERO,
        }
    }

    /// Returns the credential to show first.
    pub(super) async fn first(&self) -> Result<Shown, ControlError> {
        if let Source::Nobody(config) = &*self.0 {
            return Ok(Shown { tls: Arc::clone(config), issued: None });
        }
        let holder = self.holder().await?;
        let issued = match &*self.0 {
            Source::Sockets { issued, .. } => issued.lock().await.as_ref().map(|it| it.at),
            _ => None,
        };
        let tls = holder.client();
        Ok(Shown { tls, issued: issued.map(|at| (at, holder)) })
    }

    /// Returns the next credential to show, from sockets that are not `tried`.
    pub(super) async fn next(&self, shown: &Shown, tried: &mut Vec<usize>) -> Option<Shown> {
        let (Source::Sockets { paths, user, .. }, Some((at, _))) = (&*self.0, &shown.issued) else {
            return None;
        };
        tried.push(*at);
        let left = (0..paths.len()).filter(|at| !tried.contains(at));
        let (at, entered) = local::enter_any(paths, user.as_ref(), left).await.ok()?;
        let holder = Holder::new(entered.credential).ok()?;
        Some(Shown { tls: holder.client(), issued: Some((at, holder)) })
    }

    /// Keeps a credential that was accepted.
    pub(super) async fn settle(&self, shown: Shown) {
        if let (Source::Sockets { issued, .. }, Some((at, holder))) = (&*self.0, shown.issued) {
            let mut issued = issued.lock().await;
            if issued.as_ref().is_none_or(|issued| issued.at != at) {
                *issued = Some(Issued { holder, at, asked: SystemTime::now() });
            }
        }
    }

    /// Returns the facts of the certificate.
    ///
    /// # Errors
    /// [`ControlError::NoLogin`].
    pub async fn info(&self) -> Result<CertificateInfo, ControlError> {
        Ok(self.holder().await?.info())
    }

    async fn holder(&self) -> Result<Holder, ControlError> {
        let (paths, user, issued) = match &*self.0 {
            Source::Nobody(_) => {
                return Err(ControlError::NoLogin(
                    "this machine has not joined: use `venice join TOKEN`".to_owned(),
                ));
            }
            Source::Held(holder) => return Ok(holder.clone()),
            Source::Sockets { paths, user, issued } => (paths, user.as_ref(), issued),
        };
        let mut issued = issued.lock().await;
        let now = SystemTime::now();
        if let Some(issued) = issued.as_mut() {
            let left = left(&issued.holder.info(), now);
            let info = issued.holder.info();
            let is_new = info.is_current() && left > info.life() / 2;
            let was_asked = now.duration_since(issued.asked).is_ok_and(|ago| ago < ASK_AGAIN_AFTER);
            if is_new || (was_asked && !left.is_zero()) {
                return Ok(issued.holder.clone());
            }
            issued.asked = now;
        }
        // The socket that worked before comes first.
        let right = issued.as_ref().map(|issued| issued.at);
        let others = (0..paths.len()).filter(|at| Some(*at) != right);
        let which = right.into_iter().chain(others);
        match (local::enter_any(paths, user, which).await, issued.as_ref()) {
            (Ok((at, entered)), _) => {
                let holder = Holder::new(entered.credential).map_err(no_login)?;
                *issued = Some(Issued { holder: holder.clone(), at, asked: now });
                Ok(holder)
            }
            // The old credential is still valid.
            (Err(_), Some(old)) if !left(&old.holder.info(), now).is_zero() => {
                Ok(old.holder.clone())
            }
            (Err(error), _) => Err(error),
        }
    }
}

fn left(info: &CertificateInfo, now: SystemTime) -> Duration {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_secs(info.expires_s).saturating_sub(now)
}

pub(super) fn no_login(error: IdentityError) -> ControlError {
    ControlError::NoLogin(error.to_string())
}

/// Access to a rack: the Monitor Node's address and a login.
#[derive(Debug, Clone)]
pub struct Access {
    /// `host:port` of the Monitor Node, or of several separated by commas.
    pub monitor: String,
    /// Login to use there.
    pub login: Login,
}

impl Access {
    /// Creates the access to the rack at this address.
    pub fn new(monitor: impl Into<String>, login: Login) -> Self {
        Self { monitor: monitor.into(), login }
    }
}
