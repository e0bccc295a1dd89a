//! An owner's entries into a host that starts.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, fchown};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;

use super::files::{Found, open_file, walk};
use super::index::{Index, remove};
use super::store::lock;
use super::{CacheDir, KeptCache};

/// Makes the directories of a host's caches in `cache`, for `ids`, and copies what `kept` has for
/// them, the last used first. Fills no more than the bound of an owner. An entry that cannot be
/// copied is left out.
///
/// # Errors
/// Fails if a directory cannot be made.
pub(crate) fn fill(
    cache: &Path,
    ids: (u32, u32),
    dirs: &[CacheDir],
    kept: Option<&KeptCache>,
) -> io::Result<()> {
    for dir in dirs {
        make_dir(&cache.join(&dir.name), ids)?;
    }
    if let Some(kept) = kept
        && let Err(error) = copy_entries(cache, ids, dirs, kept)
    {
        eprintln!("build cache: {error}");
    }
    Ok(())
}

fn copy_entries(
    cache: &Path,
    ids: (u32, u32),
    dirs: &[CacheDir],
    kept: &KeptCache,
) -> io::Result<()> {
    let _lock = lock(&kept.dir, FlockOperation::NonBlockingLockShared)?;
    let root = File::open(kept.dir.join("files"))?;
    let index = Index::read(&kept.dir);
    let is_of = |path: &str, dir: &CacheDir| Path::new(path).starts_with(&dir.name);
    let mut left = kept.bytes;
    for (path, entry) in index.by_use() {
        if !dirs.iter().any(|dir| is_of(path, dir)) {
            continue;
        }
        let Some(rest) = left.checked_sub(entry.bytes) else { continue };
        left = rest;
        let path = Path::new(path);
        if let Err(error) = copy_entry(&root, path, cache, ids) {
            // A part of an entry is worse than none.
            eprintln!("build cache: {}: {error}", path.display());
            remove(&cache.join(path))?;
            if dirs.iter().any(|dir| path == Path::new(&dir.name)) {
                make_dir(&cache.join(path), ids)?;
            }
        }
    }
    Ok(())
}

fn copy_entry(root: &File, entry: &Path, cache: &Path, ids: (u32, u32)) -> io::Result<()> {
    for Found { path, .. } in walk(root, entry)?.files {
        make_dirs(cache, path.parent().unwrap_or(entry), ids)?;
        copy_file(root, &path, cache, ids)?;
    }
    Ok(())
}

/// Copies a file with the time of its last change. Its last access is of 1970, until the host uses
/// it.
fn copy_file(root: &File, path: &Path, cache: &Path, ids: (u32, u32)) -> io::Result<()> {
    let mut from = open_file(root, path)?;
    let modified = from.metadata()?.modified()?;
    let mut to =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(cache.join(path))?;
    io::copy(&mut from, &mut to)?;
    fchown(&to, Some(ids.0), Some(ids.1))?;
    let unused = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    to.set_times(FileTimes::new().set_accessed(unused).set_modified(modified))
}

fn make_dirs(cache: &Path, path: &Path, ids: (u32, u32)) -> io::Result<()> {
    let mut place = cache.to_path_buf();
    for part in path.components() {
        place.push(part);
        if !place.is_dir() {
            make_dir(&place, ids)?;
        }
    }
    Ok(())
}

fn make_dir(dir: &Path, ids: (u32, u32)) -> io::Result<()> {
    fs::create_dir(dir)?;
    fs::set_permissions(dir, PermissionsExt::from_mode(0o700))?;
    chown(dir, Some(ids.0), Some(ids.1))
}
