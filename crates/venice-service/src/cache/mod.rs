//! Caches that outlive their hosts: what a driver has compiled for an owner is there again in the
//! owner's next host.
//!
//! | file | contents |
//! |---|---|
//! | `store` | the directory of all owners: places, locks, bounds |
//! | `index` | an owner's entries, with their last use |
//! | `files` | regular files below a directory, without links |
//! | `fill` | the owner's entries into a host that starts |
//! | `keep` | new entries out of a host that has ended |
//! | `keeper` | the supervisor's thread that does it |
//!
//! A host never sees the store, only copies in a tmpfs of its own, which ends with it. What it leaves
//! there is data of a stranger: only regular files are read, only once no process of the host is
//! left, and only hosts of the same owner ever get them.

mod files;
mod fill;
mod index;
mod keep;
mod keeper;
mod store;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub(crate) use self::fill::fill;
pub(crate) use self::keeper::{CacheKeeper, KeepJob};
pub(crate) use self::store::CacheStore;

/// Longest wait for another host of the same owner, and longest time to keep what one host left, in
/// milliseconds. Its device is not lent again before.
const LIMIT_MS: u64 = 2_000;

/// Directory `/cache/NAME` of a host: a cache that a driver keeps in files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheDir {
    /// Name: lower-case letters, digits and `-`.
    pub name: String,
    /// What is kept and evicted as one.
    pub entries: CacheEntries,
}

/// Unit of a cache that is kept, replaced and evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheEntries {
    /// All of it: the driver has an index of its files.
    Whole,
    /// Each file or directory so many levels below it; files above are not kept.
    Below(u8),
}

/// Store of caches of a supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Its directory, of this supervisor alone; made if it is not there.
    pub dir: PathBuf,
    /// Most bytes of one owner. All owners together have at most 16 times as much.
    pub owner_bytes: u64,
}

/// An owner's part of the store, as a launcher gets it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeptCache {
    pub dir: PathBuf,
    pub bytes: u64,
}
