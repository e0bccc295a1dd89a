//! Revocations in force at this node: applied to its server at once, and stored beside its
//! certificate soon after.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use venice_control::identity::{IdentityError, load_revoked, save_revoked};
use venice_control::server::TlsServer;
use venice_control::{Revocation, RevocationNews, Revocations};

/// First and longest pause between two attempts to store them.
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// The revocations in force at the server.
#[derive(Debug, Clone)]
pub(crate) struct RevokedNodes {
    dir: PathBuf,
    tls: Arc<TlsServer>,
    /// Revocations to store; the writer takes the newest.
    newest: Arc<watch::Sender<Revocations>>,
}

impl RevokedNodes {
    /// Loads the revocations stored in `dir` and puts them in force.
    pub(crate) fn load(dir: PathBuf, tls: Arc<TlsServer>) -> Result<Self, IdentityError> {
        let kept = load_revoked(&dir)?;
        tls.set_revoked(kept.clone());
        Ok(Self { dir, tls, newest: Arc::new(watch::Sender::new(kept)) })
    }

    /// Puts the Monitor Node's revocations in force and stores them. Returns those that the Monitor
    /// Node lacks.
    pub(crate) fn learn(&self, news: RevocationNews) -> Vec<Revocation> {
        let mut all = self.tls.revoked();
        let besides = all.learn(news);
        self.tls.set_revoked(all.clone());
        self.newest.send_if_modified(|newest| {
            let is_other = *newest != all;
            *newest = all;
            is_other
        });
        besides
    }

    /// Stores the revocations whenever they change, the newest first, with retries; never returns.
    pub(crate) async fn keep(self) {
        let mut changes = self.newest.subscribe();
        while changes.changed().await.is_ok() {
            let mut pause = MIN_PAUSE;
            loop {
                let newest = changes.borrow_and_update().clone();
                let Err(error) = self.save(newest).await else { break };
                if pause == MIN_PAUSE {
                    tracing::warn!(%error, "cannot store the revocations; trying again");
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
    }

    async fn save(&self, newest: Revocations) -> Result<(), String> {
        let dir = self.dir.clone();
        let saved = tokio::task::spawn_blocking(move || save_revoked(&dir, &newest)).await;
        let told = |error: IdentityError| match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        };
        saved.map_err(|error| error.to_string())?.map_err(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use venice_control::Caller;
    use venice_control::identity::Holder;

    fn revoked_nodes(dir: PathBuf) -> RevokedNodes {
        let node1 = Caller::Node("node1".into());
        let credential = venice_testkit::identity::authority().credential(&node1).unwrap();
        let tls = TlsServer::new(Holder::new(credential).unwrap()).unwrap();
        RevokedNodes::load(dir, tls).unwrap()
    }

    fn news(of: &[(&str, u64)]) -> RevocationNews {
        let known = of.iter().map(|(node, until_ms)| Revocation::new(*node, *until_ms)).collect();
        RevocationNews { known, over_before_ms: 0 }
    }

    #[tokio::test]
    async fn failed_store_is_retried() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("identity");
        let revoked_nodes = revoked_nodes(dir.clone());
        // A file in place of the directory blocks writing.
        std::fs::write(&dir, b"").unwrap();
        let keeping = tokio::spawn(revoked_nodes.clone().keep());
        tokio::task::yield_now().await;
        revoked_nodes.learn(news(&[("node7", 5)]));
        tokio::time::sleep(2 * MIN_PAUSE).await;
        revoked_nodes.learn(news(&[("node7", 7)]));
        std::fs::remove_file(&dir).unwrap();
        let kept = async {
            while load_revoked(&dir).unwrap() != revoked_nodes.tls.revoked() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), kept).await.expect("never written");
        assert_eq!(load_revoked(&dir).unwrap().until_ms("node7"), Some(7));
        keeping.abort();
    }

    #[tokio::test]
    async fn outdated_monitor_keeps_revocations() {
        let temp = tempfile::tempdir().unwrap();
        let revoked_nodes = revoked_nodes(temp.path().to_owned());
        assert!(revoked_nodes.learn(news(&[("node7", 5), ("node8", 5)])).is_empty());
        let besides = revoked_nodes.learn(news(&[("node8", 5)]));
        assert_eq!(besides, [Revocation::new("node7", 5)]);
        assert_eq!(revoked_nodes.tls.revoked_until_ms("node7"), Some(5));
    }
}
