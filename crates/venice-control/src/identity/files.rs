//! Files that appear whole or not at all, and keys that nobody else can read. What root writes in
//! a folder of somebody else's becomes that one's: a service that runs as its own user reads there
//! what `venice init` and `venice join` have made.

use super::error::IdentityError;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Folders on the way to a private one: others pass through them.
const PASSAGE: u32 = 0o755;
const PRIVATE: u32 = 0o700;

/// A folder that is known to take files. Unless it is [kept](Self::keep), what was made for it goes
/// when this is dropped.
#[derive(Debug)]
pub struct Place {
    made: Vec<PathBuf>,
}

impl Place {
    /// Makes sure that files can be kept in `dir`, which is made for its owner alone where it is
    /// not there.
    ///
    /// # Errors
    /// [`IdentityError::File`].
    pub fn prepare(dir: &Path) -> Result<Self, IdentityError> {
        let failed = |source| IdentityError::File { path: dir.to_owned(), source };
        let mut place = Self { made: Vec::new() };
        place.make(dir).map_err(failed)?;
        let probe = dir.join(".probe");
        write(&probe, b"may be removed", 0o600)?;
        fs::remove_file(&probe).map_err(failed)?;
        Ok(place)
    }

    /// It is in use.
    pub fn keep(mut self) {
        self.made.clear();
    }

    fn make(&mut self, dir: &Path) -> io::Result<()> {
        let missing: Vec<&Path> = dir.ancestors().take_while(|it| !exists(it)).collect();
        for folder in missing.into_iter().rev() {
            let mode = if folder == dir { PRIVATE } else { PASSAGE };
            DirBuilder::new().mode(mode).create(folder)?;
            self.made.push(folder.to_owned());
            // Whatever the umask says.
            fs::set_permissions(folder, Permissions::from_mode(mode))?;
            give(&File::open(folder)?, parent(folder))?;
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for folder in self.made.iter().rev() {
            // What somebody has put something into stays.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, IdentityError> {
    fs::read(path).map_err(|source| IdentityError::File { path: path.to_owned(), source })
}

/// Writes a file that its owner alone can read, in a directory that is made so.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), IdentityError> {
    write(path, bytes, 0o600)
}

/// Writes a file that anybody who reaches it can read.
pub(crate) fn write_public(path: &Path, bytes: &[u8]) -> Result<(), IdentityError> {
    write(path, bytes, 0o644)
}

/// Gives a file that root has made to whom its folder belongs.
///
/// # Errors
/// [`IdentityError::File`].
pub fn give_to_owner_of_folder(path: &Path) -> Result<(), IdentityError> {
    let given = File::open(path).and_then(|file| give(&file, parent(path)));
    given.map_err(|source| IdentityError::File { path: path.to_owned(), source })
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), IdentityError> {
    let all = || -> io::Result<()> {
        let dir = parent(path);
        let mut place = Place { made: Vec::new() };
        place.make(dir)?;
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let temporary = dir.join(name);
        // One that was left half written has its old mode.
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        give(&file, if exists(path) { path } else { dir })?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        place.keep();
        File::open(dir)?.sync_all()
    };
    all().map_err(|source| IdentityError::File { path: path.to_owned(), source })
}

/// Gives what root has made to whom `model` belongs. Others have made it for themselves.
fn give(made: &File, model: &Path) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let (owner, now) = (fs::metadata(model)?, made.metadata()?);
    if (owner.uid(), owner.gid()) == (now.uid(), now.gid()) {
        return Ok(());
    }
    let (uid, gid) =
        (rustix::fs::Uid::from_raw(owner.uid()), rustix::fs::Gid::from_raw(owner.gid()));
    Ok(rustix::fs::fchown(made.as_fd(), Some(uid), Some(gid))?)
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn exists(path: &Path) -> bool {
    path.as_os_str().is_empty() || path.symlink_metadata().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn only_the_last_folder_is_private() {
        let temp = tempfile::tempdir().unwrap();
        let (outer, inner) = (temp.path().join("lib"), temp.path().join("lib/identity"));
        write_private(&inner.join("key"), b"secret").unwrap();
        assert_eq!((mode(&outer), mode(&inner), mode(&inner.join("key"))), (0o755, 0o700, 0o600));
    }

    #[test]
    fn a_place_that_is_not_used_goes_again_and_one_that_takes_no_file_is_told() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("a/b");
        drop(Place::prepare(&dir).unwrap());
        assert!(!temp.path().join("a").exists());
        Place::prepare(&dir).unwrap().keep();
        assert!(fs::read_dir(&dir).unwrap().next().is_none());
        drop(Place::prepare(&dir).unwrap());
        assert!(dir.exists(), "it was there before");
        fs::write(temp.path().join("file"), b"").unwrap();
        assert!(Place::prepare(&temp.path().join("file/below")).is_err());
    }

    /// Needs root, which alone gives files away; without it there is nothing to look at.
    #[test]
    fn what_root_makes_belongs_to_whom_the_folder_belongs() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: what_root_makes_belongs_to_whom_the_folder_belongs: no root");
            return;
        }
        const SERVICE: u32 = 61_234;
        let temp = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(temp.path(), Some(SERVICE), Some(SERVICE)).unwrap();
        let dir = temp.path().join("identity");
        let key = dir.join("key");
        write_private(&key, b"one").unwrap();
        let owner = |path: &Path| fs::metadata(path).unwrap().uid();
        assert_eq!((owner(&dir), owner(&key)), (SERVICE, SERVICE));
        // What is replaced keeps its owner, whoever has the folder.
        std::os::unix::fs::chown(&dir, Some(0), Some(0)).unwrap();
        write_private(&key, b"two").unwrap();
        assert_eq!(owner(&key), SERVICE);
        let store = temp.path().join("store");
        fs::write(&store, b"").unwrap();
        give_to_owner_of_folder(&store).unwrap();
        assert_eq!(owner(&store), SERVICE);
    }
}
