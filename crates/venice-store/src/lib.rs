//! Durable store of the Monitor Node: small records by key.
//!
//! [`Store`] has the operations that a Monitor Node needs: conditional transactions (compare and
//! swap), watching the changes of others, and leases that remove their records unless they are kept
//! alive. [`RedbStore`] keeps the records in a file, [`EtcdStore`] in etcd, and
//! `tests/it/conformance.rs` runs the same tests on both. The store does not interpret the records.
#![forbid(unsafe_code)]

mod error;
mod etcd;
mod location;
mod redb_file;
mod store;
mod watch;

pub use error::StoreError;
pub use etcd::EtcdStore;
pub use location::{EtcdLocation, EtcdTls, StoreLocation};
pub use redb_file::RedbStore;
pub use store::{
    CHANGES_AT_ONCE, Condition, Entry, Lease, Outcome, Revision, Snapshot, Standing, Store,
    StoreChange, Transaction,
};
pub use watch::{Batch, Watch};
