//! The key that a machine joins with. It is kept from before its token is used until its certificate
//! is: a machine whose answer was lost, or whose disk was full, asks again with the same key, and is
//! answered again.

use super::credential::KeyPem;
use super::error::IdentityError;
use super::files::{read, write_private};
use std::fs;
use std::io;
use std::path::Path;

const FILE: &str = "joining.key";

impl KeyPem {
    /// The key of a join in `dir` that came to no end, or a new one, which is kept there.
    ///
    /// # Errors
    /// [`IdentityError::File`], [`IdentityError::Damaged`].
    pub fn for_joining(dir: &Path) -> Result<Self, IdentityError> {
        let path = dir.join(FILE);
        if path.exists() {
            let why = "it holds no key: remove it".to_owned();
            return Self::from_pem(&read(&path)?)
                .ok_or_else(|| IdentityError::Damaged { path, why });
        }
        let key = Self::generate()?;
        write_private(&path, key.pair().serialize_pem().as_bytes())?;
        Ok(key)
    }
}

/// The join in `dir` has come to its end, one way or the other.
///
/// # Errors
/// [`IdentityError::File`].
pub fn forget_joining_key(dir: &Path) -> Result<(), IdentityError> {
    let path = dir.join(FILE);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(IdentityError::File { path, source })
        }
        _ => Ok(()),
    }
}
