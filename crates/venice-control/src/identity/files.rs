//! Atomic writes of private files. Files that root writes in another user's directory get that
//! directory's owner: a service with its own user reads there what `venice init` and `venice join`
//! have written.

use super::error::IdentityError;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, fchown, openat, renameat, unlinkat};
use rustix::io::Errno;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Mode of directories above a private one: others may pass through.
const PASSAGE: u32 = 0o755;
const PRIVATE: u32 = 0o700;
/// Open flag: a link at the end of the path is an error.
const NOT_THROUGH_LINKS: i32 = OFlags::NOFOLLOW.bits() as i32;

/// A directory that is known to be writable. Unless it is [kept](Self::keep), dropping it removes
/// the directories created for it.
#[derive(Debug)]
pub struct Place {
    made: Vec<PathBuf>,
}

impl Place {
    /// Checks that files can be stored in `dir`, and creates it for its owner only if it is
    /// missing.
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

    /// Keeps the directory.
    pub fn keep(mut self) {
        self.made.clear();
    }

    fn make(&mut self, dir: &Path) -> io::Result<()> {
        let missing: Vec<&Path> = dir.ancestors().take_while(|it| !exists(it)).collect();
        for folder in missing.into_iter().rev() {
            let mode = if folder == dir { PRIVATE } else { PASSAGE };
            DirBuilder::new().mode(mode).create(folder)?;
            self.made.push(folder.to_owned());
            let made = open_folder(folder)?;
            if made.metadata()?.uid() != rustix::process::geteuid().as_raw() {
                return Err(io::Error::other("the created directory belongs to another user"));
            }
            // Independent of the umask.
            made.set_permissions(Permissions::from_mode(mode))?;
            give(&made, &fs::metadata(parent(folder))?)?;
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for folder in self.made.iter().rev() {
            // A directory with other contents stays.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, IdentityError> {
    fs::read(path).map_err(|source| IdentityError::File { path: path.to_owned(), source })
}

/// Writes a file readable by its owner only, creating its directory likewise.
///
/// # Errors
/// [`IdentityError::File`].
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<(), IdentityError> {
    write(path, bytes, 0o600)
}

/// Writes a file readable by all.
pub(crate) fn write_public(path: &Path, bytes: &[u8]) -> Result<(), IdentityError> {
    write(path, bytes, 0o644)
}

/// Gives a file made by root to the owner of its directory.
///
/// # Errors
/// [`IdentityError::File`]; also for links, which may point to anybody's file.
pub fn chown_like_directory(path: &Path) -> Result<(), IdentityError> {
    let all = || {
        let file = OpenOptions::new().read(true).custom_flags(NOT_THROUGH_LINKS).open(path)?;
        let found = file.metadata()?;
        if !found.is_file() || found.nlink() != 1 {
            return Err(io::Error::other("not a regular file with a single link"));
        }
        give(&file, &fs::metadata(parent(path))?)
    };
    all().map_err(|source| IdentityError::File { path: path.to_owned(), source })
}

/// Writes atomically. The directory's owner may put links into it while root works there: all
/// operations use the directory as it was opened, and follow no link.
fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), IdentityError> {
    let all = || -> io::Result<()> {
        let dir = parent(path);
        let mut place = Place { made: Vec::new() };
        place.make(dir)?;
        let folder = open_folder(dir)?;
        let name = path.file_name().unwrap_or_default();
        let mut temporary = name.to_owned();
        temporary.push(".new");
        // A partial file from before has its old mode.
        match unlinkat(&folder, &temporary, AtFlags::empty()) {
            Err(error) if error != Errno::NOENT => return Err(error.into()),
            _ => {}
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(openat(&folder, &temporary, flags, Mode::from_raw_mode(mode))?);
        let mut complete = || -> io::Result<()> {
            // A replaced file keeps its owner, whoever owns the directory.
            let before = path.symlink_metadata().ok().filter(fs::Metadata::is_file);
            give(&file, &before.map_or_else(|| folder.metadata(), Ok)?)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            Ok(renameat(&folder, &temporary, &folder, name)?)
        };
        // On a full disk nothing stays that takes up room.
        complete().inspect_err(|_| {
            let _ = unlinkat(&folder, &temporary, AtFlags::empty());
        })?;
        place.keep();
        folder.sync_all()
    };
    all().map_err(|source| IdentityError::File { path: path.to_owned(), source })
}

fn open_folder(path: &Path) -> io::Result<File> {
    let flags = NOT_THROUGH_LINKS | OFlags::DIRECTORY.bits() as i32;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Gives root's file to the owner of `model`. Other users keep theirs.
fn give(made: &File, model: &fs::Metadata) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let now = made.metadata()?;
    if (model.uid(), model.gid()) == (now.uid(), now.gid()) {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(model.uid()), Gid::from_raw(model.gid()));
    Ok(fchown(made.as_fd(), Some(uid), Some(gid))?)
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
    fn only_last_directory_is_private() {
        let temp = tempfile::tempdir().unwrap();
        let (outer, inner) = (temp.path().join("lib"), temp.path().join("lib/identity"));
        write_private(&inner.join("key"), b"secret").unwrap();
        assert_eq!((mode(&outer), mode(&inner), mode(&inner.join("key"))), (0o755, 0o700, 0o600));
    }

    #[test]
    fn unused_directory_is_removed() {
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

    #[test]
    fn failed_write_leaves_nothing() {
        let temp = tempfile::tempdir().unwrap();
        // A folder in the way, since a full disk needs root.
        fs::create_dir_all(temp.path().join("key/folder")).unwrap();
        assert!(write_private(&temp.path().join("key"), b"secret").is_err());
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
    }

    /// Needs root, which alone can give files away; else it is skipped.
    #[test]
    fn root_files_get_directory_owner() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: root_files_get_directory_owner: no root");
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
        // A replaced file keeps its owner, whoever owns the directory.
        std::os::unix::fs::chown(&dir, Some(0), Some(0)).unwrap();
        write_private(&key, b"two").unwrap();
        assert_eq!(owner(&key), SERVICE);
        let store = temp.path().join("store");
        fs::write(&store, b"").unwrap();
        chown_like_directory(&store).unwrap();
        assert_eq!(owner(&store), SERVICE);
    }

    #[test]
    fn write_follows_no_link() {
        use std::os::unix::fs::symlink;
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        fs::write(at("others"), b"others").unwrap();
        fs::create_dir(at("elsewhere")).unwrap();
        fs::create_dir(at("dir")).unwrap();
        // Links in place of the file and of its temporary file are replaced.
        symlink(at("others"), at("dir/key")).unwrap();
        symlink(at("others"), at("dir/key.new")).unwrap();
        write_private(&at("dir/key"), b"secret").unwrap();
        assert_eq!(fs::read(at("others")).unwrap(), b"others");
        assert!(at("dir/key").symlink_metadata().unwrap().is_file());
        // A link in place of the directory.
        symlink(at("elsewhere"), at("folder")).unwrap();
        assert!(write_private(&at("folder/key"), b"secret").is_err());
        symlink(at("nowhere"), at("dangling")).unwrap();
        assert!(Place::prepare(&at("dangling")).is_err());
        assert!(fs::read_dir(at("elsewhere")).unwrap().next().is_none() && !at("nowhere").exists());
    }

    /// Needs root, which alone can give files away; else it is skipped.
    #[test]
    fn chown_follows_no_link() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: chown_follows_no_link: no root");
            return;
        }
        const SERVICE: u32 = 61_235;
        let temp = tempfile::tempdir().unwrap();
        let (dir, others) = (temp.path().join("dir"), temp.path().join("others"));
        fs::create_dir(&dir).unwrap();
        fs::write(&others, b"").unwrap();
        std::os::unix::fs::chown(&dir, Some(SERVICE), Some(SERVICE)).unwrap();
        let (soft, hard) = (dir.join("soft"), dir.join("hard"));
        std::os::unix::fs::symlink(&others, &soft).unwrap();
        fs::hard_link(&others, &hard).unwrap();
        assert!(chown_like_directory(&soft).is_err());
        assert!(chown_like_directory(&hard).is_err());
        assert_eq!(fs::metadata(&others).unwrap().uid(), 0);
        // A written file does not get a link target's owner either.
        std::os::unix::fs::chown(&others, Some(SERVICE + 1), None).unwrap();
        fs::remove_file(&hard).unwrap();
        write_private(&soft, b"secret").unwrap();
        assert_eq!(fs::metadata(&soft).unwrap().uid(), SERVICE);
    }
}
