//! The key of a joining machine. It is stored from before its token is used until its certificate
//! is stored: after a lost answer or a full disk, the machine asks again with the same key and gets
//! the answer again.

use super::credential::KeyPem;
use super::error::IdentityError;
use super::files::{read, write_private};
use std::fs;
use std::io;
use std::path::Path;

const FILE: &str = "joining.key";

impl KeyPem {
    /// Loads the key of an unfinished join in `dir`, or generates and stores a new one.
    ///
    /// # Errors
    /// [`IdentityError::File`], [`IdentityError::Damaged`].
    pub fn for_join(dir: &Path) -> Result<Self, IdentityError> {
        let path = dir.join(FILE);
        if path.exists() {
            let why = "it contains no key: remove it".to_owned();
            return Self::from_pem(&read(&path)?)
                .ok_or_else(|| IdentityError::Damaged { path, why });
        }
        let key = Self::generate()?;
        write_private(&path, key.pair().serialize_pem().as_bytes())?;
        Ok(key)
    }
}

/// Removes the key after the join in `dir` has finished or failed.
///
/// # Errors
/// [`IdentityError::File`].
pub fn remove_join_key(dir: &Path) -> Result<(), IdentityError> {
    let path = dir.join(FILE);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(IdentityError::File { path, source })
        }
        _ => Ok(()),
    }
}
