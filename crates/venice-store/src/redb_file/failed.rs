//! Conversion of the database's errors.

use crate::error::StoreError;
use redb::{DatabaseError, StorageError};
use std::io;
use std::path::Path;

/// Turns the database's errors into [`StoreError`], with the path.
pub(super) struct Failed<'a>(pub(super) &'a Path);

impl Failed<'_> {
    pub(super) fn open(&self, error: DatabaseError) -> StoreError {
        match error {
            DatabaseError::DatabaseAlreadyOpen => StoreError::Locked { path: self.0.to_owned() },
            DatabaseError::Storage(StorageError::Io(error)) if is_garbage(&error) => {
                self.corrupt(error.to_string())
            }
            DatabaseError::UpgradeRequired(version) => {
                self.corrupt(format!("database format {version}"))
            }
            other => self.any(other),
        }
    }

    pub(super) fn any(&self, error: impl Into<redb::Error>) -> StoreError {
        match error.into() {
            redb::Error::Corrupted(reason) => self.corrupt(reason),
            redb::Error::Io(error) if is_full(&error) => {
                StoreError::Full { path: self.0.to_owned(), source: Box::new(error) }
            }
            redb::Error::RepairAborted => self.corrupt("the repair was aborted".to_owned()),
            error @ (redb::Error::TableTypeMismatch { .. }
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TableIsNotMultimap(_)
            | redb::Error::TypeDefinitionChanged { .. }) => self.corrupt(error.to_string()),
            other => self.io(other),
        }
    }

    pub(super) fn corrupt(&self, reason: String) -> StoreError {
        StoreError::Corrupt { path: self.0.to_owned(), reason }
    }

    pub(super) fn io(&self, error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
        StoreError::Io { path: self.0.to_owned(), source: Box::new(error) }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// True if a file does not begin like a database, or ends too early.
fn is_garbage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}
