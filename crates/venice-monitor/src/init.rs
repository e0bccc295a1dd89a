//! Founding a rack: an authority, and the token that its first machine joins with.

use crate::STORE_FILE;
use crate::clock::wall_ms;
use crate::error::MonitorError;
use crate::file_store::FileStore;
use std::path::Path;
use std::time::Duration;
use venice_control::identity::{
    Authority, IdentityError, JoinToken, Place, TokenSecret, give_to_owner_of_folder,
};
use venice_rack::monitor::{Change, JoinTokenRecord};

/// Makes the rack's authority in the Monitor Node's state directory and, for `address` (`host:port`,
/// where machines will reach the Monitor Node), a join token that is good for so long. The Monitor
/// Node must not run.
///
/// The authority is made last, since with it the rack is there: what broke off before can be begun
/// anew.
///
/// # Errors
/// [`MonitorError::Identity`] where there is an authority already; [`MonitorError::Store`].
pub async fn init(
    state_dir: &Path,
    address: &str,
    valid: Duration,
) -> Result<JoinToken, MonitorError> {
    let identity = state_dir.join(crate::IDENTITY_DIR);
    if Authority::exists(&identity) {
        return Err(IdentityError::Exists { dir: identity }.into());
    }
    // Before anything is made: the tables hold secrets too.
    Place::prepare(state_dir)?.keep();
    let (id, secret) = TokenSecret::draw()?;
    let record = JoinTokenRecord {
        id,
        secret_hash: secret.hash(),
        node: String::new(),
        expires_ms: wall_ms().saturating_add(valid.as_millis() as u64),
        used_by: String::new(),
        used_key: None,
    };
    let path = state_dir.join(STORE_FILE);
    let mut store = FileStore::at(path.clone());
    store.records().await?;
    give_to_owner_of_folder(&path)?;
    store.try_apply(vec![Change::PutToken(record)]).await?;
    let authority = Authority::create(&identity)?;
    Ok(JoinToken { id, secret, authority: authority.fingerprint(), monitor: address.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use venice_rack::monitor::Record;

    #[tokio::test]
    async fn a_founding_that_broke_off_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (store, day) = (dir.path().join(STORE_FILE), Duration::from_secs(86_400));
        std::fs::write(&store, b"no store at all").unwrap();
        let broken = init(dir.path(), "h:1", day).await;
        assert!(matches!(broken, Err(MonitorError::Store(_))), "{broken:?}");
        std::fs::remove_file(&store).unwrap();
        let identity = dir.path().join(crate::IDENTITY_DIR);
        std::fs::write(&identity, b"in the way").unwrap();
        let broken = init(dir.path(), "h:1", day).await;
        assert!(matches!(broken, Err(MonitorError::Identity(_))), "{broken:?}");
        std::fs::remove_file(&identity).unwrap();

        let token = init(dir.path(), "h:1", day).await.unwrap();
        let records = FileStore::at(store).records().await.unwrap();
        let is_it = |record: &Record| matches!(record, Record::Token(it) if it.id == token.id);
        assert!(records.iter().any(is_it));
        let again = init(dir.path(), "h:1", day).await;
        assert!(matches!(again, Err(MonitorError::Identity(IdentityError::Exists { .. }))));
    }
}
