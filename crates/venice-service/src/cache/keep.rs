//! New entries out of a host that has ended. Everything there is a stranger's.

use std::fs::{self, File, FileTimes};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::FlockOperation;

use super::files::{Found, list, open_file, walk};
use super::index::{Entry, Index, remove};
use super::store::{lock, now_s};
use super::{CacheDir, CacheEntries, KeptCache, LIMIT_MS};

/// Second of the last access of a file that a host was filled with and has not used.
const UNUSED_S: i64 = 1;

/// Keeps in `kept` what a host's caches below `root` have that is new. No process of the host may be
/// left. Returns the number of entries that are new or changed.
///
/// # Errors
/// Fails if the store cannot be written, or time is over; what was done before is kept.
pub(super) fn keep(root: impl AsFd, dirs: &[CacheDir], kept: &KeptCache) -> io::Result<usize> {
    let until = Instant::now() + Duration::from_millis(LIMIT_MS);
    let _lock = lock(&kept.dir, FlockOperation::NonBlockingLockExclusive)?;
    let mut index = Index::read(&kept.dir);
    let mut changed = 0;
    let mut kept_all = || -> io::Result<()> {
        for dir in dirs {
            for entry in entries(root.as_fd(), dir)? {
                if Instant::now() >= until {
                    return Err(ErrorKind::TimedOut.into());
                }
                let is_new = keep_entry(root.as_fd(), &entry, dir, kept, &mut index);
                changed += usize::from(is_new);
            }
        }
        Ok(())
    };
    let done = kept_all();
    index.evict(&kept.dir, kept.bytes, 0);
    index.write(&kept.dir)?;
    done.map(|()| changed)
}

/// Returns the paths of the entries of a host's cache.
fn entries(root: impl AsFd, dir: &CacheDir) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![PathBuf::from(&dir.name)];
    let CacheEntries::Below(levels) = dir.entries else { return Ok(found) };
    for level in 1..=levels {
        let all =
            found.iter().map(|above| list(root.as_fd(), above)).collect::<io::Result<Vec<_>>>()?;
        let is_part = |it: &Found| it.is_dir || level == levels;
        found = all.into_iter().flatten().filter(is_part).map(|it| it.path).collect();
    }
    Ok(found)
}

/// Keeps one entry; returns true if it is new or changed. One that is too large, or cannot be
/// copied, is left out.
fn keep_entry(
    root: impl AsFd,
    entry: &Path,
    dir: &CacheDir,
    kept: &KeptCache,
    index: &mut Index,
) -> bool {
    let (Some(name), Ok(theirs)) = (entry.to_str(), walk(root.as_fd(), entry)) else {
        return false;
    };
    if theirs.files.is_empty() || theirs.bytes() > kept.bytes {
        return false;
    }
    let files = kept.dir.join("files");
    let is_known = index.entries.contains_key(name);
    let is_new = |it: &&Found| {
        let ours = fs::symlink_metadata(files.join(&it.path));
        !is_known || !ours.is_ok_and(|ours| is_same(it, &ours))
    };
    let new: Vec<_> = theirs.files.iter().filter(is_new).collect();
    if new.is_empty() {
        let is_used = theirs.files.iter().any(|it| it.accessed_s != UNUSED_S);
        if let Some(ours) = index.entries.get_mut(name).filter(|_| is_used) {
            ours.used_s = now_s();
        }
        return false;
    }
    // Out of the index until it is complete.
    index.entries.remove(name);
    let is_replaced = dir.entries == CacheEntries::Whole || !is_known;
    let stored = || -> io::Result<Entry> {
        if is_replaced {
            remove(&files.join(entry))?;
            theirs.files.iter().try_for_each(|it| copy(root.as_fd(), it, &kept.dir))?;
        } else {
            new.iter().try_for_each(|it| copy(root.as_fd(), it, &kept.dir))?;
        }
        // Files of other hosts may be among them.
        Ok(Entry { used_s: now_s(), bytes: walk(File::open(&files)?, entry)?.bytes() })
    };
    match stored() {
        Ok(stored) => {
            index.entries.insert(name.to_owned(), stored);
            true
        }
        Err(error) => {
            tracing::debug!(name, %error, "entry of a build cache not kept");
            let _ = remove(&files.join(entry));
            false
        }
    }
}

fn is_same(theirs: &Found, ours: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    ours.is_file()
        && ours.len() == theirs.bytes
        && (ours.mtime(), ours.mtime_nsec()) == theirs.modified
}

/// Copies a file into the store: hosts of the same owner see all of it, or none.
fn copy(root: impl AsFd, found: &Found, owner: &Path) -> io::Result<()> {
    let from = open_file(root, &found.path)?;
    let (new, place) = (owner.join("new"), owner.join("files").join(&found.path));
    let mut to = File::create(&new)?;
    io::copy(&mut from.take(found.bytes), &mut to)?;
    let (s, ns) = found.modified;
    let since = Duration::new(u64::try_from(s).unwrap_or(0), u32::try_from(ns).unwrap_or(0));
    let modified = SystemTime::UNIX_EPOCH.checked_add(since);
    to.set_times(FileTimes::new().set_modified(modified.unwrap_or(SystemTime::UNIX_EPOCH)))?;
    place.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::rename(&new, &place)
}
