//! Entries of one owner, in a file beside them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// File of an owner's index.
const INDEX: &str = "index.json";

/// Entries of one owner by their paths below `files`.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Index {
    pub(super) entries: BTreeMap<String, Entry>,
}

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// Last use, in seconds since 1970.
    pub(super) used_s: u64,
    pub(super) bytes: u64,
}

impl Index {
    /// Reads an owner's index; one that is not there, or cannot be read, is empty.
    pub(super) fn read(owner: &Path) -> Self {
        let bytes = fs::read(owner.join(INDEX)).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    pub(super) fn write(&self, owner: &Path) -> io::Result<()> {
        let new = owner.join("index.new");
        fs::write(&new, serde_json::to_vec(self).map_err(io::Error::other)?)?;
        fs::rename(&new, owner.join(INDEX))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.entries.values().map(|it| it.bytes).sum()
    }

    /// Returns the time of the last use of any entry.
    pub(super) fn used_s(&self) -> u64 {
        self.entries.values().map(|it| it.used_s).max().unwrap_or(0)
    }

    /// Returns the paths of the entries, the last used first.
    pub(super) fn by_use(&self) -> Vec<(&str, Entry)> {
        let mut all: Vec<_> = self.entries.iter().map(|(path, it)| (path.as_str(), *it)).collect();
        all.sort_by_key(|(path, it)| (std::cmp::Reverse(it.used_s), *path));
        all
    }

    /// Evicts entries last used before `since_s`, then the oldest ones beyond `most_bytes`. Returns
    /// the number of them.
    pub(super) fn evict(&mut self, owner: &Path, most_bytes: u64, since_s: u64) -> usize {
        let mut left = 0_u64;
        let by_use = self.by_use();
        let kept = by_use.iter().take_while(|(_, it)| {
            left = left.saturating_add(it.bytes);
            it.used_s >= since_s && left <= most_bytes
        });
        let kept = kept.count();
        let evicted: Vec<_> = by_use[kept..].iter().map(|(path, _)| (*path).to_owned()).collect();
        for path in &evicted {
            // What cannot be removed stays out of the index, and so out of every host.
            let _ = remove(&owner.join("files").join(path));
            self.entries.remove(path);
        }
        evicted.len()
    }
}

/// Removes a file or tree; that it is not there is no error.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    removed.or_else(|error| match error.kind() {
        ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
}
