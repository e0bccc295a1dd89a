//! Ranges of user and group ids for hosts: each supervisor has its own.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::supervisor::{SupervisorConfig, hash};

/// Directory of the claims of all supervisors that see it. Root's alone: no other user can claim.
const CLAIMS: &str = "/run/venice-host-ids";
/// Ids of a range.
const IDS: u32 = 4096;
/// Ranges from [`SupervisorConfig::FIRST_ID`] on.
const RANGES: u32 = (0x8000_0000 - SupervisorConfig::FIRST_ID) / IDS;
/// Ranges that are tried.
const MOST_TRIES: u32 = 1024;

/// A range of ids: the first and the number of them.
#[derive(Debug)]
pub(crate) struct IdRange {
    pub(crate) ids: (u32, u32),
    #[expect(dead_code, reason = "held until the range is given back")]
    claim: Option<Claim>,
}

/// A claim: the locked file of the range, which the kernel unlocks with its process. It is removed
/// with the claim; those of killed supervisors by the next one that starts.
#[derive(Debug)]
struct Claim {
    file: File,
    path: PathBuf,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let claims = self.path.parent().and_then(|claims| ClaimsLock::take(claims).ok());
        if claims.is_some() {
            let _ = fs::remove_file(&self.path);
        }
        // A child that another thread has just forked has the descriptor too, until it executes its
        // program: to close this one is not enough.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Lock of the directory of claims: without it a claim could be removed between its opening and its
/// locking by another supervisor.
struct ClaimsLock(File);

impl ClaimsLock {
    fn take(claims: &Path) -> io::Result<Self> {
        let dir = File::open(claims)?;
        flock(&dir, FlockOperation::LockExclusive)?;
        Ok(Self(dir))
    }
}

impl Drop for ClaimsLock {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Removes the claims that nobody holds.
fn remove_dead_claims(claims: &Path, _lock: &ClaimsLock) {
    for entry in fs::read_dir(claims).into_iter().flatten().flatten() {
        let Ok(file) = OpenOptions::new().write(true).open(entry.path()) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = fs::remove_file(entry.path());
            let _ = flock(&file, FlockOperation::Unlock);
        }
    }
}

impl IdRange {
    /// Returns a range that its owner vouches for.
    pub(crate) fn given(ids: (u32, u32)) -> Self {
        Self { ids, claim: None }
    }

    /// Claims a range that no other supervisor with the same `/run` has. The search begins at a place
    /// that the directory of hosts and the one of claims determine, so that a supervisor finds its
    /// old range again, and those of containers, which have a `/run` each, mostly take others.
    ///
    /// # Errors
    /// Fails if no range is free, or the directory of claims cannot be made or is not root's.
    pub(crate) fn claim(dir: &Path) -> io::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            // Such a supervisor's hosts keep its own id.
            return Ok(Self::given(range(first(dir, &[]))));
        }
        Self::claim_in(Path::new(CLAIMS), dir)
    }

    fn claim_in(claims: &Path, dir: &Path) -> io::Result<Self> {
        let failed = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", claims.display()))
        };
        let place = claims_place(claims).map_err(failed)?;
        let first = first(dir, &place);
        let lock = ClaimsLock::take(claims).map_err(failed)?;
        remove_dead_claims(claims, &lock);
        for step in 0..MOST_TRIES {
            let number = (first + step) % RANGES;
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o600);
            let path = claims.join(format!("{number:x}"));
            let file = options.open(&path).map_err(failed)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let claim = Some(Claim { file, path });
                    return Ok(Self { ids: range(number), claim });
                }
                Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
        Err(io::Error::other("no range of user ids is free for service hosts"))
    }
}

fn range(number: u32) -> (u32, u32) {
    (SupervisorConfig::FIRST_ID + number * IDS, IDS)
}

fn first(dir: &Path, place: &[u8]) -> u32 {
    let bytes = [dir.as_os_str().as_encoded_bytes(), place].concat();
    (hash(&bytes) % u64::from(RANGES)) as u32
}

/// Makes the directory of claims if it is not there; returns its device and inode. No two file
/// systems that are mounted on one machine have the same device.
fn claims_place(claims: &Path) -> io::Result<[u8; 16]> {
    match DirBuilder::new().mode(0o700).create(claims) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let found = fs::symlink_metadata(claims)?;
    if !found.is_dir() || found.uid() != 0 || found.mode() & 0o077 != 0 {
        return Err(io::Error::other("expected a directory that only root may enter"));
    }
    let mut place = [0; 16];
    place[..8].copy_from_slice(&found.dev().to_le_bytes());
    place[8..].copy_from_slice(&found.ino().to_le_bytes());
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    /// Directory of hosts; each test has its own, so that none takes another's range.
    fn hosts(test: &str) -> PathBuf {
        Path::new("/run/venice").join(test)
    }

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    #[test]
    fn claimed_ranges_are_disjoint() {
        let dir = hosts("claimed-ranges");
        let (first, second) = (IdRange::claim(&dir).unwrap(), IdRange::claim(&dir).unwrap());
        assert_eq!(first.ids != second.ids, is_root());
        let (begin, count) = first.ids;
        assert!(begin >= SupervisorConfig::FIRST_ID && begin.checked_add(count).is_some());
        drop(first);
        assert_eq!(IdRange::claim(&dir).unwrap().ids.0, begin);
    }

    #[test]
    fn dead_claims_are_removed() {
        if !is_root() {
            println!("SKIPPED: dead_claims_are_removed: no root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let claims = dir.path().join("claims");
        let claim = |test: &str| IdRange::claim_in(&claims, &hosts(test)).unwrap();
        let names = || {
            let entries = fs::read_dir(&claims).unwrap();
            entries.map(|it| it.unwrap().file_name()).collect::<std::collections::BTreeSet<_>>()
        };
        let held = claim("held");
        let name = names();
        // What killed supervisors leave.
        for number in 0..3 {
            fs::write(claims.join(format!("f{number}")), "").unwrap();
        }
        let other = claim("other");
        assert!(names().len() == 2 && names().is_superset(&name), "{:?}", names());
        drop(other);
        assert_eq!(names(), name);
        drop(held);
        assert!(names().is_empty());
    }

    #[test]
    fn abstract_names_claim_no_range() {
        let dir = hosts("abstract-names");
        let (free, _) = IdRange::claim(&dir).unwrap().ids;
        let number = (free - SupervisorConfig::FIRST_ID) / IDS;
        let name = SocketAddr::from_abstract_name(format!("venice-host-ids-{number:x}")).unwrap();
        let _squatter = UnixListener::bind_addr(&name).unwrap();
        assert_eq!(IdRange::claim(&dir).unwrap().ids.0, free);
    }

    #[test]
    fn containers_start_elsewhere() {
        if !is_root() {
            println!("SKIPPED: containers_start_elsewhere: no root");
            return;
        }
        // Directories of claims that do not see each other, as in containers.
        let runs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let claimed = |run: &tempfile::TempDir| {
            let claims = run.path().join("claims");
            IdRange::claim_in(&claims, &hosts("containers")).unwrap().ids
        };
        assert_ne!(claimed(&runs[0]), claimed(&runs[1]));
        assert_eq!(claimed(&runs[0]), claimed(&runs[0]), "a supervisor finds its range again");
    }

    #[test]
    fn open_claims_are_refused() {
        if !is_root() {
            println!("SKIPPED: open_claims_are_refused: no root");
            return;
        }
        let claims = tempfile::tempdir().unwrap();
        fs::set_permissions(claims.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let error = IdRange::claim_in(claims.path(), &hosts("containers")).unwrap_err().to_string();
        assert!(error.contains("only root may enter"), "{error}");
    }
}
