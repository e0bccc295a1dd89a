//! Files that appear whole or not at all, and keys that nobody else can read.

use super::error::IdentityError;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

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

fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), IdentityError> {
    let all = || -> io::Result<()> {
        let dir = path.parent().unwrap_or(Path::new("."));
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
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
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(dir)?.sync_all()
    };
    all().map_err(|source| IdentityError::File { path: path.to_owned(), source })
}
