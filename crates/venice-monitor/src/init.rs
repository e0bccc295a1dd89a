//! Founding a rack: an authority, and the token that its first machine joins with.

use crate::STORE_FILE;
use crate::driver::wall_ms;
use crate::error::MonitorError;
use crate::records::RecordStore;
use std::path::Path;
use std::time::Duration;
use venice_control::identity::{Authority, JoinToken, Place, TokenSecret, give_to_owner_of_folder};
use venice_rack::monitor::{Change, JoinTokenRecord};

/// Makes the rack's authority in the Monitor Node's state directory and, for `address` (`host:port`,
/// where machines will reach the Monitor Node), a join token that is good for so long. The Monitor
/// Node must not run.
///
/// # Errors
/// [`MonitorError::Identity`] where there is an authority already; [`MonitorError::Store`].
pub async fn init(
    state_dir: &Path,
    address: &str,
    valid: Duration,
) -> Result<JoinToken, MonitorError> {
    // Before anything is made: the tables hold secrets too.
    Place::prepare(state_dir)?.keep();
    let authority = Authority::create(&state_dir.join(crate::IDENTITY_DIR))?;
    let (id, secret) = TokenSecret::draw()?;
    let record = JoinTokenRecord {
        id,
        secret_hash: secret.hash(),
        node: String::new(),
        expires_ms: wall_ms().saturating_add(valid.as_millis() as u64),
        used_by: String::new(),
    };
    let path = state_dir.join(STORE_FILE);
    let (store, _) = RecordStore::open(path.clone()).await?;
    give_to_owner_of_folder(&path)?;
    store.apply(vec![Change::PutToken(record)]).await?;
    Ok(JoinToken { id, secret, authority: authority.fingerprint(), monitor: address.to_owned() })
}
