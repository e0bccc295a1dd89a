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
    asked: SystemTime,
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
    /// and again when half of its time is over.
    pub fn at_sockets(paths: Vec<PathBuf>) -> Self {
        Self(Arc::new(Source::Sockets { paths, entered: Mutex::default() }))
    }

    /// TLS with it.
    pub(super) async fn tls(&self) -> Result<Arc<ClientConfig>, ControlError> {
        match &*self.0 {
            Source::Nobody(config) => Ok(Arc::clone(config)),
            _ => Ok(self.holder().await?.client()),
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
                return Err(ControlError::NoLogin("it has not joined".to_owned()));
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
        match (local::enter_any(paths).await, entered.as_ref()) {
            (Ok(credential), _) => {
                let holder = Holder::new(credential).map_err(no_login)?;
                *entered = Some(Entered { holder: holder.clone(), asked: now });
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
    /// `host:port` of the Monitor Node.
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
