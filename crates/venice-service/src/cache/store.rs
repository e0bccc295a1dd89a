//! The directory of all owners' caches.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::index::{Index, remove};
use super::{CacheConfig, KeptCache, LIMIT_MS};

/// Bytes of all owners, in those of one.
const OWNERS_WORTH: u64 = 16;
/// Time after which an unused entry is removed, in seconds.
const UNUSED_S: u64 = 30 * 24 * 3600;
/// Longest name of an owner's directory in bytes.
const MAX_NAME_BYTES: usize = 200;
/// Interval between two tries to get a lock.
const TRY_EVERY: Duration = Duration::from_millis(2);

/// Store of all owners. Each has a directory with `files`, its index and a lock.
#[derive(Debug)]
pub(crate) struct CacheStore {
    owners: PathBuf,
    owner_bytes: u64,
    /// Locked as long as the store is open.
    _lock: File,
}

impl CacheStore {
    /// Opens a store. What was written before the machine was started last is removed: nothing
    /// tells whether it got to the disk.
    ///
    /// # Errors
    /// Fails if another process has it open, or it cannot be written.
    pub(crate) fn open(config: &CacheConfig) -> io::Result<Self> {
        make_private(&config.dir)?;
        let dir = config.dir.canonicalize()?;
        let lock = File::create(dir.join("lock"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            Errno::WOULDBLOCK => io::Error::other("in use by another process"),
            error => error.into(),
        })?;
        let (owners, boot, id) = (dir.join("owners"), dir.join("boot"), crate::boot_id());
        if !fs::read_to_string(&boot).is_ok_and(|of| of == id) {
            remove(&owners)?;
            fs::write(&boot, id)?;
        }
        make_private(&owners)?;
        let store = Self { owners, owner_bytes: config.owner_bytes, _lock: lock };
        store.evict();
        Ok(store)
    }

    /// Returns the part of an owner; makes it. `None`: it cannot be made, or the name is too long.
    pub(crate) fn owner(&self, owner: &str) -> Option<KeptCache> {
        let name = file_name(owner)?;
        let dir = self.owners.join(name);
        let made = make_private(&dir)
            .and_then(|()| make_private(&dir.join("files")))
            .and_then(|()| File::create(dir.join("lock")).map(drop));
        if let Err(error) = made {
            tracing::warn!(owner, %error, "no build cache");
            return None;
        }
        Some(KeptCache { dir, bytes: self.owner_bytes })
    }

    /// Evicts what is beyond the bounds, and what nobody has used for long.
    pub(super) fn evict(&self) {
        let owners = fs::read_dir(&self.owners).into_iter().flatten().flatten();
        let mut all: Vec<_> = owners
            .map(|entry| {
                let index = Index::read(&entry.path());
                (index.used_s(), index.bytes(), entry.path())
            })
            .collect();
        all.sort_unstable_by(|one, other| other.cmp(one));
        let (mut left, since_s) = (0_u64, now_s().saturating_sub(UNUSED_S));
        for (used_s, bytes, owner) in all {
            left = left.saturating_add(bytes.min(self.owner_bytes));
            let is_kept = left <= self.owner_bytes.saturating_mul(OWNERS_WORTH);
            let most_bytes = if is_kept { self.owner_bytes } else { 0 };
            let evicted = evict_owner(&owner, most_bytes, since_s);
            match evicted {
                Ok(0) => {}
                Ok(entries) => {
                    tracing::info!(owner = %owner.display(), used_s, entries, "evicted builds");
                }
                Err(error) => tracing::warn!(owner = %owner.display(), %error, "evicting builds"),
            }
        }
    }
}

fn evict_owner(owner: &Path, most_bytes: u64, since_s: u64) -> io::Result<usize> {
    let _lock = lock(owner, FlockOperation::NonBlockingLockExclusive)?;
    let mut index = Index::read(owner);
    let evicted = index.evict(owner, most_bytes, since_s);
    if evicted > 0 {
        index.write(owner)?;
    }
    Ok(evicted)
}

/// Locks an owner's part; waits for others at most [`LIMIT_MS`].
pub(super) fn lock(owner: &Path, operation: FlockOperation) -> io::Result<OwnerLock> {
    let file = File::open(owner.join("lock"))?;
    let until = Instant::now() + Duration::from_millis(LIMIT_MS);
    loop {
        match flock(file.as_fd(), operation) {
            Ok(()) => return Ok(OwnerLock(file)),
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => {
                std::thread::sleep(TRY_EVERY);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The lock of an owner's part.
#[derive(Debug)]
pub(super) struct OwnerLock(File);

impl Drop for OwnerLock {
    fn drop(&mut self) {
        // A child that was just forked may have the descriptor too: to close this one is not enough.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

pub(super) fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |it| it.as_secs())
}

fn make_private(dir: &Path) -> io::Result<()> {
    match fs::create_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::set_permissions(dir, PermissionsExt::from_mode(0o700))
}

/// Returns the name of an owner's directory. Different owners have different ones.
fn file_name(owner: &str) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"@-_".contains(&byte);
    let letters = owner.bytes().map(|byte| match byte {
        byte if is_plain(byte) => char::from(byte).to_string(),
        byte => format!("%{byte:02x}"),
    });
    Some(letters.collect::<String>()).filter(|it| (1..=MAX_NAME_BYTES).contains(&it.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_owners_differ() {
        let names = ["a@n1", "a@n2", "../a@n1", "A@n1", "a%@n1", "a%25@n1", "."];
        let all: std::collections::BTreeSet<_> =
            names.iter().filter_map(|it| file_name(it)).collect();
        assert_eq!(all.len(), names.len());
        assert!(all.iter().all(|it| !it.contains(['/', '.'])), "{all:?}");
        assert_eq!((file_name(""), file_name(&"x".repeat(201))), (None, None));
    }
}
