//! The Monitor Node's durable memory: small records by key.
//!
//! [`Store`] is what a Monitor Node needs of one: transactions on condition (compare and swap),
//! watching what others change, and leases that take their records with them when nobody keeps them
//! alive. [`RedbStore`] keeps the records in a file, [`EtcdStore`] in etcd, and `tests/it/conformance.rs`
//! holds both to the same. What a record means is its owner's business.
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
