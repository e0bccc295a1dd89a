//! Files that appear whole or not at all, and keys that nobody else can read. What root writes in
//! a folder of somebody else's becomes that one's: a service that runs as its own user reads there
//! what `venice init` and `venice join` have made.

use super::error::IdentityError;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, fchown, openat, renameat, unlinkat};
use rustix::io::Errno;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Folders on the way to a private one: others pass through them.
const PASSAGE: u32 = 0o755;
const PRIVATE: u32 = 0o700;
/// For opening: a link at the end of the path is an error.
const NOT_THROUGH_LINKS: i32 = OFlags::NOFOLLOW.bits() as i32;

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
            let made = open_folder(folder)?;
            if made.metadata()?.uid() != rustix::process::geteuid().as_raw() {
                return Err(io::Error::other(
                    "it is not the folder that was made: somebody else's",
                ));
            }
            // Whatever the umask says.
            made.set_permissions(Permissions::from_mode(mode))?;
            give(&made, &fs::metadata(parent(folder))?)?;
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
///
/// # Errors
/// [`IdentityError::File`].
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<(), IdentityError> {
    write(path, bytes, 0o600)
}

/// Writes a file that anybody who reaches it can read.
pub(crate) fn write_public(path: &Path, bytes: &[u8]) -> Result<(), IdentityError> {
    write(path, bytes, 0o644)
}

/// Gives a file that root has made to whom its folder belongs.
///
/// # Errors
/// [`IdentityError::File`]; also for what is no file of its own: a link to another one, which may be
/// anybody's.
pub fn give_to_owner_of_folder(path: &Path) -> Result<(), IdentityError> {
    let all = || {
        let file = OpenOptions::new().read(true).custom_flags(NOT_THROUGH_LINKS).open(path)?;
        let found = file.metadata()?;
        if !found.is_file() || found.nlink() != 1 {
            return Err(io::Error::other("it is no file of its own, but a link or something else"));
        }
        give(&file, &fs::metadata(parent(path))?)
    };
    all().map_err(|source| IdentityError::File { path: path.to_owned(), source })
}

/// Whoever has the folder may put links into it while root works there: all is done in the folder as
/// it was opened, and nothing through a link.
fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), IdentityError> {
    let all = || -> io::Result<()> {
        let dir = parent(path);
        let mut place = Place { made: Vec::new() };
        place.make(dir)?;
        let folder = open_folder(dir)?;
        let name = path.file_name().unwrap_or_default();
        let mut temporary = name.to_owned();
        temporary.push(".new");
        // One that was left half written has its old mode.
        match unlinkat(&folder, &temporary, AtFlags::empty()) {
            Err(error) if error != Errno::NOENT => return Err(error.into()),
            _ => {}
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(openat(&folder, &temporary, flags, Mode::from_raw_mode(mode))?);
        // What is replaced keeps its owner, whoever has the folder.
        let before = path.symlink_metadata().ok().filter(fs::Metadata::is_file);
        give(&file, &before.map_or_else(|| folder.metadata(), Ok)?)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        renameat(&folder, &temporary, &folder, name)?;
        place.keep();
        folder.sync_all()
    };
    all().map_err(|source| IdentityError::File { path: path.to_owned(), source })
}

fn open_folder(path: &Path) -> io::Result<File> {
    let flags = NOT_THROUGH_LINKS | OFlags::DIRECTORY.bits() as i32;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Gives what root has made to whom `model` belongs. Others have made it for themselves.
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

    #[test]
    fn nothing_is_written_through_a_link() {
        use std::os::unix::fs::symlink;
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        fs::write(at("others"), b"others").unwrap();
        fs::create_dir(at("elsewhere")).unwrap();
        fs::create_dir(at("dir")).unwrap();
        // The file to come, and the one on the way to it: the links go, and nothing else.
        symlink(at("others"), at("dir/key")).unwrap();
        symlink(at("others"), at("dir/key.new")).unwrap();
        write_private(&at("dir/key"), b"secret").unwrap();
        assert_eq!(fs::read(at("others")).unwrap(), b"others");
        assert!(at("dir/key").symlink_metadata().unwrap().is_file());
        // The folder itself.
        symlink(at("elsewhere"), at("folder")).unwrap();
        assert!(write_private(&at("folder/key"), b"secret").is_err());
        symlink(at("nowhere"), at("dangling")).unwrap();
        assert!(Place::prepare(&at("dangling")).is_err());
        assert!(fs::read_dir(at("elsewhere")).unwrap().next().is_none() && !at("nowhere").exists());
    }

    /// Needs root, which alone gives files away; without it there is nothing to look at.
    #[test]
    fn root_gives_nothing_away_through_a_link() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: root_gives_nothing_away_through_a_link: no root");
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
        assert!(give_to_owner_of_folder(&soft).is_err());
        assert!(give_to_owner_of_folder(&hard).is_err());
        assert_eq!(fs::metadata(&others).unwrap().uid(), 0);
        // Nor is what it writes given to whom a link names.
        std::os::unix::fs::chown(&others, Some(SERVICE + 1), None).unwrap();
        fs::remove_file(&hard).unwrap();
        write_private(&soft, b"secret").unwrap();
        assert_eq!(fs::metadata(&soft).unwrap().uid(), SERVICE);
    }
}
