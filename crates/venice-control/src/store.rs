//! The Monitor Node's durable memory: small records by key.
//!
//! [`Store`] is what the Monitor Node needs of one; [`RedbStore`] keeps it in a file. What a
//! record means is its owner's business.

mod failed;
mod file_guard;
mod redb_file;

pub use redb_file::RedbStore;

use std::path::PathBuf;
use thiserror::Error;

/// One change of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreChange {
    /// The record's key.
    pub key: String,
    /// Its new value; `None` removes the record.
    pub value: Option<Vec<u8>>,
}

/// Records by key, durable.
pub trait Store: Send {
    /// Every record, in the order of the keys.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    fn load(&self) -> Result<Vec<(String, Vec<u8>)>, StoreError>;

    /// Applies the changes, in order: all of them or, on an error, none. When it returns they
    /// outlive a crash of the process and of the machine.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be written.
    fn apply(&mut self, changes: &[StoreChange]) -> Result<(), StoreError>;
}

/// Why a store failed.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Another process has it open.
    #[error("the store {path} is in use by another Monitor Node")]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The file is no store, or is damaged.
    #[error(
        "the store {path} is damaged or no Venice store: {reason}; \
         move it away to start with empty tables (agents will register again)"
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// It was written by a Venice that this one does not understand.
    #[error("the store {path} has format {found}, this Venice understands {understood}")]
    Format {
        /// The file.
        path: PathBuf,
        /// The format found.
        found: u64,
        /// The format understood.
        understood: u64,
    },
    /// The file or its directory cannot be used.
    #[error("cannot use the store {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system or the database said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
