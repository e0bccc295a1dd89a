//! Regular files below a directory. A stranger may have made everything in it: nothing is followed,
//! and a name is never taken for a path.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, statat};

/// Most directories on the way to a file.
const MAX_DEPTH: usize = 16;
/// Most files and directories below one directory.
const MAX_FOUND: usize = 1 << 15;
/// Longest path in bytes.
const MAX_PATH_BYTES: usize = 1024;
/// Unit of space in bytes.
const PAGE_BYTES: u64 = 4096;

/// A file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Path below the root of the walk.
    pub(super) path: PathBuf,
    pub(super) is_dir: bool,
    pub(super) bytes: u64,
    /// Time of the last change: seconds and nanoseconds.
    pub(super) modified: (i64, i64),
    /// Time of the last access, in seconds.
    pub(super) accessed_s: i64,
}

/// Opens `path` below `root`, which leads through no link and no other mount; `.` is `root` itself.
pub(super) fn open_below(root: impl AsFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    Ok(openat2(root, path, flags, Mode::empty(), resolve)?)
}

/// Opens a regular file below `root` to read it.
pub(super) fn open_file(root: impl AsFd, path: &Path) -> io::Result<File> {
    let file = File::from(open_below(root, path, OFlags::RDONLY)?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(ErrorKind::InvalidInput.into()),
    }
}

/// Returns the regular files and the directories in `dir` below `root`, in any order; not those
/// below them.
pub(super) fn list(root: impl AsFd, dir: &Path) -> io::Result<Vec<Found>> {
    let opened = open_below(root, dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut found = Vec::new();
    for entry in Dir::read_from(&opened)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let path = dir.join(OsStr::from_bytes(name));
        let stat = statat(&opened, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW)?;
        let is_dir = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => true,
            FileType::RegularFile => false,
            _ => continue,
        };
        if path.as_os_str().len() > MAX_PATH_BYTES || found.len() == MAX_FOUND {
            return Err(io::Error::other("too many files, or too long names"));
        }
        found.push(Found {
            path,
            is_dir,
            bytes: u64::try_from(stat.st_size).unwrap_or(u64::MAX),
            modified: (stat.st_mtime, stat.st_mtime_nsec as i64),
            accessed_s: stat.st_atime,
        });
    }
    Ok(found)
}

/// Everything below a directory, or one file.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) files: Vec<Found>,
    dirs: u64,
}

impl Tree {
    /// Returns the space that it takes, in bytes: an empty file takes some too.
    pub(super) fn bytes(&self) -> u64 {
        let files = self.files.iter().map(|it| it.bytes.div_ceil(PAGE_BYTES).max(1));
        let pages = files.fold(self.dirs, u64::saturating_add);
        pages.saturating_mul(PAGE_BYTES)
    }
}

/// Returns the regular files of `path` below `root`: those below a directory, or the file itself.
pub(super) fn walk(root: impl AsFd, path: &Path) -> io::Result<Tree> {
    let (mut tree, mut waiting) = (Tree { dirs: 1, ..Tree::default() }, vec![path.to_path_buf()]);
    while let Some(next) = waiting.pop() {
        let listed = match list(root.as_fd(), &next) {
            Err(error) if error.kind() == ErrorKind::NotADirectory && next == path => {
                let above = list(root.as_fd(), path.parent().unwrap_or(path))?;
                above.into_iter().filter(|it| it.path == path && !it.is_dir).collect()
            }
            listed => listed?,
        };
        for found in listed {
            tree.dirs += u64::from(found.is_dir);
            let all = tree.files.len() as u64 + tree.dirs;
            if all > MAX_FOUND as u64 || found.path.components().count() > MAX_DEPTH {
                return Err(io::Error::other("too many files, or too deep"));
            }
            if found.is_dir { waiting.push(found.path) } else { tree.files.push(found) }
        }
    }
    Ok(tree)
}
