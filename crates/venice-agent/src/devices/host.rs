//! The machine whose devices are looked at.

use std::fs;
use std::path::{Path, PathBuf};

/// Where its file systems are; tests have a folder of their own.
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
    /// An absolute path of the machine.
    pub(super) fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let path = absolute.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A short file's text without the space around it; `None`: it cannot be read.
    pub(super) fn text(&self, absolute: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.path(absolute)).ok().map(|text| text.trim().to_owned())
    }

    /// The names in a directory, in order; none where there is no such directory.
    pub(super) fn names(&self, absolute: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(absolute)).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort_by_cached_key(|name| (name.len(), name.clone()));
        names
    }

    /// The name of what a link points to.
    pub(super) fn link_name(&self, absolute: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.path(absolute)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }
}

#[cfg(test)]
impl Host {
    /// A machine in a folder, with these files.
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
