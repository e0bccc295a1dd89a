//! The machine whose devices are examined.

use std::fs;
use std::path::{Path, PathBuf};

/// Root of the machine's file systems; tests use a directory of their own.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    pub(super) root: PathBuf,
}

impl Default for Host {
    fn default() -> Self {
        Self { root: PathBuf::from("/") }
    }
}

impl Host {
    /// Returns an absolute path on the machine.
    pub(super) fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let path = absolute.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Reads a short file, trimmed; `None` if it is unreadable.
    pub(super) fn text(&self, absolute: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.path(absolute)).ok().map(|text| text.trim().to_owned())
    }

    /// Returns the names in a directory, in order; none without the directory.
    pub(super) fn names(&self, absolute: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(absolute)).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort_by_cached_key(|name| (name.len(), name.clone()));
        names
    }

    /// Returns the last component of a link's target.
    pub(super) fn link_name(&self, absolute: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.path(absolute)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }
}

#[cfg(test)]
impl Host {
    /// Creates a machine in a directory, with these files.
    pub(super) fn in_folder(root: &Path, files: &[(&str, &str)]) -> Self {
        let host = Self { root: root.to_path_buf() };
        for (path, text) in files {
            let path = host.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        host
    }
}
