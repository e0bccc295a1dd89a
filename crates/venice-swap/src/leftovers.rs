//! Leftovers of earlier runs that were killed outright. Everything made here carries our process id
//! in its name, so that a later run can tell a dead one's from a living one's.

use std::path::{Path, PathBuf};

/// Returns the entries of `folder` named `prefix`, a process id, and perhaps `-` and more, whose
/// process is dead. A folder that cannot be read has none.
pub fn of_dead_processes(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| {
            entry.file_name().to_str().and_then(|name| owner(name, prefix)).is_some_and(is_dead)
        })
        .map(|entry| entry.path())
        .collect()
}

fn owner(name: &str, prefix: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.split('-').next()?.parse().ok()
}

fn is_dead(pid: u32) -> bool {
    !Path::new("/proc").join(pid.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_belong_to_dead_processes() {
        let folder = tempfile::tempdir().unwrap();
        let living = format!("venice-x-{}", std::process::id());
        // Process ids end at 4194304.
        for name in ["venice-x-4194305", "venice-x-4194306-abc", &living, "venice-x-", "other-1"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let mut found = of_dead_processes(folder.path(), "venice-x-");
        found.sort();
        let wanted = ["venice-x-4194305", "venice-x-4194306-abc"];
        assert_eq!(found, wanted.map(|name| folder.path().join(name)));
        assert!(of_dead_processes(Path::new("/nonexistent"), "venice-x-").is_empty());
    }
}
