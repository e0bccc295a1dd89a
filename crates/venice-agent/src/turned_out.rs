//! Who was turned out of the rack, as this node knows it: in force at its door at once, and kept beside
//! its certificate soon after.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use venice_control::identity::{IdentityError, load_revoked, save_revoked};
use venice_control::server::Door;
use venice_control::{Revocation, RevocationNews, Revocations};

/// First and longest pause between two attempts to write them down.
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// The revocations that a door goes by.
#[derive(Debug, Clone)]
pub(crate) struct TurnedOut {
    dir: PathBuf,
    door: Arc<Door>,
    /// What is to be kept; whoever writes takes the newest.
    newest: Arc<watch::Sender<Revocations>>,
}

impl TurnedOut {
    /// The door goes by those that are kept in `dir`.
    pub(crate) fn load(dir: PathBuf, door: Arc<Door>) -> Result<Self, IdentityError> {
        let kept = load_revoked(&dir)?;
        door.set_revoked(kept.clone());
        Ok(Self { dir, door, newest: Arc::new(watch::Sender::new(kept)) })
    }

    /// Takes in what the Monitor Node says, from now on and when the door opens again. Those that it
    /// does not know, to tell it.
    pub(crate) fn learn(&self, news: RevocationNews) -> Vec<Revocation> {
        let mut all = self.door.revoked();
        let besides = all.learn(news);
        self.door.set_revoked(all.clone());
        self.newest.send_if_modified(|newest| {
            let is_other = *newest != all;
            *newest = all;
            is_other
        });
        besides
    }

    /// Writes them down whenever they are others, for ever: one at a time, the newest, and again
    /// where that fails.
    pub(crate) async fn keep(self) {
        let mut changes = self.newest.subscribe();
        while changes.changed().await.is_ok() {
            let mut pause = MIN_PAUSE;
            loop {
                let newest = changes.borrow_and_update().clone();
                let Err(error) = self.save(newest).await else { break };
                if pause == MIN_PAUSE {
                    tracing::warn!(%error, "cannot keep who was turned out; trying again");
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

    fn turned_out(dir: PathBuf) -> TurnedOut {
        let node1 = Caller::Node("node1".into());
        let credential = venice_testkit::identity::authority().credential(&node1).unwrap();
        let door = Door::new(Holder::new(credential).unwrap()).unwrap();
        TurnedOut::load(dir, door).unwrap()
    }

    fn news(of: &[(&str, u64)]) -> RevocationNews {
        let known = of.iter().map(|(node, until_ms)| Revocation::new(*node, *until_ms)).collect();
        RevocationNews { known, over_before_ms: 0 }
    }

    #[tokio::test]
    async fn the_newest_are_kept_in_the_end_though_writing_fails_at_first() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("identity");
        let turned_out = turned_out(dir.clone());
        // Nothing can be written below a file.
        std::fs::write(&dir, b"").unwrap();
        let keeping = tokio::spawn(turned_out.clone().keep());
        tokio::task::yield_now().await;
        turned_out.learn(news(&[("node7", 5)]));
        tokio::time::sleep(2 * MIN_PAUSE).await;
        turned_out.learn(news(&[("node7", 7)]));
        std::fs::remove_file(&dir).unwrap();
        let kept = async {
            while load_revoked(&dir).unwrap() != turned_out.door.revoked() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), kept).await.expect("never written");
        assert_eq!(load_revoked(&dir).unwrap().until_ms("node7"), Some(7));
        keeping.abort();
    }

    #[tokio::test]
    async fn a_monitor_node_that_knows_less_lets_nobody_in_again() {
        let temp = tempfile::tempdir().unwrap();
        let turned_out = turned_out(temp.path().to_owned());
        assert!(turned_out.learn(news(&[("node7", 5), ("node8", 5)])).is_empty());
        let besides = turned_out.learn(news(&[("node8", 5)]));
        assert_eq!(besides, [Revocation::new("node7", 5)]);
        assert_eq!(turned_out.door.revoked_until_ms("node7"), Some(5));
    }
}
