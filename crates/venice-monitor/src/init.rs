//! Creation of a rack: an authority, and the token with which its first machine joins.

use crate::clock::wall_ms;
use crate::error::MonitorError;
use crate::owner_record::Claim;
use crate::records;
use crate::store_choice::StoreChoice;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::spawn_blocking;
use venice_control::identity::{
    Authority, IdentityError, JoinToken, Place, TokenSecret, chown_like_directory, write_private,
};
use venice_rack::monitor::{Change, JoinTokenRecord, RecordKey};
use venice_store::{EtcdStore, RedbStore, Store, StoreError, StoreLocation, Transaction};

/// Creates the rack's authority in the Monitor Node's state directory, and a join token valid for
/// `valid` in the chosen store. Machines reach the Monitor Node at `address` (`host:port`). The
/// choice of the store is kept in the state directory. The Monitor Node must not run.
///
/// The authority is created last, since it makes the rack exist. A call that failed before can be
/// repeated.
///
/// # Errors
/// [`MonitorError::Config`] where `choice` is invalid; [`MonitorError::Identity`] where an
/// authority exists already; [`MonitorError::NotFree`] where the store has tables;
/// [`MonitorError::Store`].
pub async fn init(
    state_dir: &Path,
    address: &str,
    valid: Duration,
    choice: &StoreChoice,
) -> Result<JoinToken, MonitorError> {
    choice.check()?;
    let location = choice.location(state_dir)?;
    let identity = state_dir.join(crate::IDENTITY_DIR);
    if Authority::exists(&identity) {
        return Err(IdentityError::Exists { dir: identity }.into());
    }
    // The directory is made private first: the tables hold secrets too.
    Place::prepare(state_dir)?.keep();
    let rack = NewRack { state_dir, identity, address, valid, choice, location: &location };
    match &location {
        StoreLocation::File(path) => {
            let opened = path.clone();
            let store = spawn_blocking(move || RedbStore::open(&opened)).await;
            let store = store.map_err(StoreError::BrokeOff)??;
            chown_like_directory(path)?;
            rack.make(&store).await
        }
        StoreLocation::Etcd(etcd) => {
            rack.make(&EtcdStore::connect(etcd, &choice.tls()).await?).await
        }
    }
}

/// Records the address at which machines reach the Monitor Node, which listens there by default.
pub(crate) fn record_address(state_dir: &Path, address: &str) -> Result<(), IdentityError> {
    write_private(&state_dir.join(crate::ADDRESS_FILE), format!("{address}\n").as_bytes())
}

/// Returns the recorded address; `None` for racks that were made without.
pub(crate) fn recorded_address(state_dir: &Path) -> Result<Option<String>, MonitorError> {
    let path = state_dir.join(crate::ADDRESS_FILE);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(MonitorError::Config(format!("{}: {error}", path.display()))),
    }
}

/// The parameters of a new rack.
struct NewRack<'a> {
    state_dir: &'a Path,
    identity: PathBuf,
    address: &'a str,
    valid: Duration,
    choice: &'a StoreChoice,
    location: &'a StoreLocation,
}

impl NewRack<'_> {
    async fn make(&self, store: &impl Store) -> Result<JoinToken, MonitorError> {
        self.check_free(store).await?;
        let (id, secret) = TokenSecret::draw()?;
        let record = JoinTokenRecord {
            id,
            secret_hash: secret.hash(),
            node: String::new(),
            expires_ms: wall_ms().saturating_add(self.valid.as_millis() as u64),
            used_by: String::new(),
            used_key: None,
        };
        let token = records::store_change(Change::PutToken(record));
        store.commit(Transaction::of(vec![token])).await?;
        if self.choice.store.is_some() {
            self.choice.save(self.state_dir)?;
        }
        record_address(self.state_dir, self.address)?;
        let authority = Authority::create(&self.identity)?.fingerprint();
        let claim = Claim {
            authority,
            former: None,
            identity: self.identity.clone(),
            addr: self.address.to_owned(),
            store: self.location.to_string(),
        };
        claim.make(store).await?;
        Ok(JoinToken { id, secret, authority, monitor: self.address.to_owned() })
    }

    /// Checks that the store is empty but for join tokens, the leftovers of a failed creation.
    async fn check_free(&self, store: &impl Store) -> Result<(), MonitorError> {
        let entries = store.load().await?.entries;
        let is_left = |key: &str| matches!(records::record_key(key), Some(RecordKey::Token(_)));
        match entries.iter().all(|entry| is_left(&entry.key)) {
            true => Ok(()),
            false => Err(MonitorError::NotFree { store: self.location.to_string() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::STORE_FILE;
    use crate::file_store::FileStore;
    use venice_rack::monitor::Record;

    async fn init_in(dir: &Path, choice: StoreChoice) -> Result<JoinToken, MonitorError> {
        init(dir, "h:1", Duration::from_secs(86_400), &choice).await
    }

    #[tokio::test]
    async fn failed_init_can_be_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join(STORE_FILE);
        std::fs::write(&store, b"no store at all").unwrap();
        let broken = init_in(dir.path(), StoreChoice::default()).await;
        assert!(matches!(broken, Err(MonitorError::Store(_))), "{broken:?}");
        std::fs::remove_file(&store).unwrap();
        let identity = dir.path().join(crate::IDENTITY_DIR);
        std::fs::write(&identity, b"in the way").unwrap();
        let broken = init_in(dir.path(), StoreChoice::default()).await;
        assert!(matches!(broken, Err(MonitorError::Identity(_))), "{broken:?}");
        std::fs::remove_file(&identity).unwrap();

        let token = init_in(dir.path(), StoreChoice::default()).await.unwrap();
        assert_eq!(recorded_address(dir.path()).unwrap().as_deref(), Some("h:1"));
        let config =
            crate::MonitorConfig { state_dir: dir.path().to_owned(), ..Default::default() };
        assert_eq!(config.listen_address().unwrap(), "h:1");
        let records = FileStore::at(store).records().await.unwrap();
        let is_it = |record: &Record| matches!(record, Record::Token(it) if it.id == token.id);
        assert!(records.iter().any(is_it));
        let again = init_in(dir.path(), StoreChoice::default()).await;
        assert!(matches!(again, Err(MonitorError::Identity(IdentityError::Exists { .. }))));
    }

    #[tokio::test]
    async fn init_requires_an_empty_store() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("tables/rack.redb");
        std::fs::create_dir(dir.path().join("tables")).unwrap();
        let choice =
            || StoreChoice { store: Some(store.display().to_string()), ..StoreChoice::default() };
        let token = init_in(&dir.path().join("one"), choice()).await.unwrap();
        let records = FileStore::at(store.clone()).records().await.unwrap();
        let is_it = |record: &Record| matches!(record, Record::Token(it) if it.id == token.id);
        assert!(records.iter().any(is_it));
        assert_eq!(StoreChoice::load(&dir.path().join("one")).unwrap(), choice());
        let two = init_in(&dir.path().join("two"), choice()).await.unwrap_err();
        assert!(matches!(two, MonitorError::NotFree { .. }), "{two:?}");
        assert!(two.to_string().contains("--store"), "{two}");
        assert!(!Authority::exists(&dir.path().join("two/identity")));
    }
}
