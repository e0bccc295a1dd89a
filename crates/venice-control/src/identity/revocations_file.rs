//! The revocations stored beside a node's certificate: they are in force again as soon as its agent
//! restarts.

use super::error::IdentityError;
use super::files::{read, write_private};
use std::path::Path;
use venice_rack::revocation::{Revocation, Revocations};

const FILE: &str = "revoked.json";

/// Loads the revocations in `dir`; none if there is no file.
///
/// # Errors
/// [`IdentityError::File`], [`IdentityError::Damaged`].
pub fn load_revoked(dir: &Path) -> Result<Revocations, IdentityError> {
    let path = dir.join(FILE);
    if !path.exists() {
        return Ok(Revocations::default());
    }
    let kept: Vec<Revocation> = serde_json::from_slice(&read(&path)?)
        .map_err(|error| IdentityError::Damaged { path, why: error.to_string() })?;
    Ok(kept.into_iter().collect())
}

/// Stores the revocations in `dir`.
///
/// # Errors
/// [`IdentityError::File`].
pub fn save_revoked(dir: &Path, revoked: &Revocations) -> Result<(), IdentityError> {
    let text = serde_json::to_vec(&revoked.list()).expect("names and numbers");
    write_private(&dir.join(FILE), &text)
}
