//! What a process shows when it calls: a credential that it holds, or one that it gets at a socket
//! of its machine.

use super::local;
use crate::error::ControlError;
use crate::identity::{Fingerprint, Holder, IdentityError, Said, pinned_client};
use rustls::ClientConfig;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Mutex;

/// A socket that does not answer is not asked again for so long while the old credential is good.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// What a process shows when it calls. Clones share it.
#[derive(Debug, Clone)]
pub struct Login(Arc<Source>);

#[derive(Debug)]
enum Source {
    Nobody(Arc<ClientConfig>),
    Held(Holder),
    Sockets { paths: Vec<PathBuf>, entered: Mutex<Option<Entered>> },
}

#[derive(Debug)]
struct Entered {
    holder: Holder,
    /// Which socket gave it.
    at: usize,
    asked: SystemTime,
}

/// What to show, and where it is from.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) tls: Arc<ClientConfig>,
    entered: Option<(usize, Holder)>,
}

impl Login {
    /// A daemon's: what it holds.
    pub fn held(holder: Holder) -> Self {
        Self(Arc::new(Source::Held(holder)))
    }

    /// Nothing, for a machine that has not joined yet: it knows the rack by its authority.
    ///
    /// # Errors
    /// [`ControlError::NoLogin`].
    pub fn nobody(authority: Fingerprint) -> Result<Self, ControlError> {
        let config = pinned_client(authority).map_err(no_login)?;
        Ok(Self(Arc::new(Source::Nobody(config))))
    }

    /// A program's: what it gets at the first of these sockets that answers, when it first calls,
    /// and again when half of its time is over. Where that turns out to be another rack's than the
    /// one that is called, at the next.
    pub fn at_sockets(paths: Vec<PathBuf>) -> Self {
        Self(Arc::new(Source::Sockets { paths, entered: Mutex::default() }))
    }

    /// How long it may take to come by it.
    pub(super) fn patience(&self) -> Duration {
        match &*self.0 {
            Source::Sockets { .. } => local::ENTER_ANY_WITHIN,
            Source::Nobody(_) | Source::Held(_) => Duration::ZERO,
        }
    }

    /// What to show first.
    pub(super) async fn first(&self) -> Result<Shown, ControlError> {
        if let Source::Nobody(config) = &*self.0 {
            return Ok(Shown { tls: Arc::clone(config), entered: None });
        }
        let holder = self.holder().await?;
        let entered = match &*self.0 {
            Source::Sockets { entered, .. } => entered.lock().await.as_ref().map(|it| it.at),
            _ => None,
        };
        let tls = holder.client();
        Ok(Shown { tls, entered: entered.map(|at| (at, holder)) })
    }

    /// What else there is to show, after those of the sockets that were `tried`.
    pub(super) async fn next(&self, shown: &Shown, tried: &mut Vec<usize>) -> Option<Shown> {
        let (Source::Sockets { paths, .. }, Some((at, _))) = (&*self.0, &shown.entered) else {
            return None;
        };
        tried.push(*at);
        let left = (0..paths.len()).filter(|at| !tried.contains(at));
        let (at, credential) = local::enter_any(paths, left).await.ok()?;
        let holder = Holder::new(credential).ok()?;
        Some(Shown { tls: holder.client(), entered: Some((at, holder)) })
    }

    /// That was right.
    pub(super) async fn settle(&self, shown: Shown) {
        if let (Source::Sockets { entered, .. }, Some((at, holder))) = (&*self.0, shown.entered) {
            let mut entered = entered.lock().await;
            if entered.as_ref().is_none_or(|entered| entered.at != at) {
                *entered = Some(Entered { holder, at, asked: SystemTime::now() });
            }
        }
    }

    /// What it shows.
    ///
    /// # Errors
    /// [`ControlError::NoLogin`].
    pub async fn said(&self) -> Result<Said, ControlError> {
        Ok(self.holder().await?.said())
    }

    async fn holder(&self) -> Result<Holder, ControlError> {
        let (paths, entered) = match &*self.0 {
            Source::Nobody(_) => {
                return Err(ControlError::NoLogin(
                    "it has not joined: that is done with `venice join TOKEN`".to_owned(),
                ));
            }
            Source::Held(holder) => return Ok(holder.clone()),
            Source::Sockets { paths, entered } => (paths, entered),
        };
        let mut entered = entered.lock().await;
        let now = SystemTime::now();
        if let Some(entered) = entered.as_mut() {
            let left = left(&entered.holder.said(), now);
            let said = entered.holder.said();
            let is_new = said.is_current() && left > said.life() / 2;
            let was_asked =
                now.duration_since(entered.asked).is_ok_and(|ago| ago < ASK_AGAIN_AFTER);
            if is_new || (was_asked && !left.is_zero()) {
                return Ok(entered.holder.clone());
            }
            entered.asked = now;
        }
        // The one that was right, then the others.
        let right = entered.as_ref().map(|entered| entered.at);
        let others = (0..paths.len()).filter(|at| Some(*at) != right);
        let which = right.into_iter().chain(others);
        match (local::enter_any(paths, which).await, entered.as_ref()) {
            (Ok((at, credential)), _) => {
                let holder = Holder::new(credential).map_err(no_login)?;
                *entered = Some(Entered { holder: holder.clone(), at, asked: now });
                Ok(holder)
            }
            // What it has is good for a while yet.
            (Err(_), Some(old)) if !left(&old.holder.said(), now).is_zero() => {
                Ok(old.holder.clone())
            }
            (Err(error), _) => Err(error),
        }
    }
}

fn left(said: &Said, now: SystemTime) -> Duration {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_secs(said.expires_s).saturating_sub(now)
}

pub(super) fn no_login(error: IdentityError) -> ControlError {
    ControlError::NoLogin(error.to_string())
}

/// A rack, as a caller knows it: where its Monitor Node is, and what to show there.
#[derive(Debug, Clone)]
pub struct Access {
    /// `host:port` of the Monitor Node, or of several with commas between.
    pub monitor: String,
    /// What to show.
    pub login: Login,
}

impl Access {
    /// The rack at this address.
    pub fn new(monitor: impl Into<String>, login: Login) -> Self {
        Self { monitor: monitor.into(), login }
    }
}
