//! Rotation of the authority by an administrator. The change is on the disk before the answer; then
//! the Monitor Node begins a new session with it, as after a restart.

use crate::clock::wall_ms;
use crate::driver::Driver;
use crate::enrolment::refused;
use crate::service::Service;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use venice_control::RackError;
use venice_control::identity::Authority;
use venice_control::server::RotationStep;

/// Most nodes named in a refusal.
const NAMED: usize = 8;

/// Means of a rotation.
#[derive(Debug, Clone)]
pub(crate) struct Rotation {
    /// Directory of the authority.
    pub(crate) dir: PathBuf,
    /// Lifetime of a user's certificate.
    pub(crate) user_life: Duration,
    /// Notified when the authority on the disk is another one.
    pub(crate) changed: Arc<Notify>,
}

impl Service {
    /// Returns the nodes that do not trust the same authorities as this Monitor Node yet.
    pub(crate) async fn not_renewed(&self) -> Vec<String> {
        let version = self.authority.authorities().version();
        let nodes = self.list(|driver| driver.core().trust_versions()).await.into_iter();
        nodes.filter(|(_, trusts)| *trusts != version).map(|(name, _)| name).collect()
    }

    pub(crate) async fn rotate_authority(&self, step: RotationStep) -> Result<Vec<u8>, RackError> {
        let Rotation { dir, changed, .. } = self.rotation.clone();
        let peers = self.list(Driver::peers).await;
        if !peers.is_empty() {
            return Err(RackError::BadRequest(format!(
                "other Monitor Nodes use this authority ({}): stop them, rotate, copy the folder \
                 `identity` to them, and start them again",
                peers.join(", ")
            )));
        }
        if let RotationStep::Finish { is_sure: false } = step {
            self.check_may_finish().await?;
        }
        let act = move || -> Result<Authority, _> {
            match step {
                RotationStep::Begin => Authority::begin_rotation(&dir)?,
                RotationStep::Finish { .. } => Authority::finish_rotation(&dir)?,
            };
            Authority::open(&dir)
        };
        let done = spawn_blocking(act).await.map_err(|_| RackError::Stopping)?;
        let authority = done.map_err(|error| refused(&error))?;
        changed.notify_one();
        Ok(authority.certificate().to_vec())
    }

    /// Checks that nobody depends on the former authority.
    async fn check_may_finish(&self) -> Result<(), RackError> {
        if self.authority.authorities().former().is_none() {
            return Ok(());
        }
        let nodes = self.not_renewed().await;
        if !nodes.is_empty() {
            let named = nodes.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
            let more = nodes.len().saturating_sub(NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            return Err(RackError::BadRequest(format!(
                "not renewed yet: {named}{more}: wait until these nodes are up and have a new \
                 certificate (seconds), revoke those that will not return, or use --force, after which \
                 they have to join again"
            )));
        }
        let until_ms = self.authority.made_ms() + self.rotation.user_life.as_millis() as u64;
        let left_ms = until_ms.saturating_sub(wall_ms());
        if left_ms > 0 {
            return Err(RackError::BadRequest(format!(
                "programs may still hold certificates of the former authority, for {} min at most: \
                 wait, or use --force, after which such programs lose the rack",
                left_ms.div_ceil(60_000)
            )));
        }
        Ok(())
    }
}
