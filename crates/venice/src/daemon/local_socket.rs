//! Where a daemon's socket for the programs of its machine is.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::anyhow;

use venice_cli::failure::Usage;

/// The path given, else `name` in the run directory; `none` is none.
pub fn local_socket(given: Option<PathBuf>, name: &str) -> anyhow::Result<Option<PathBuf>> {
    match given {
        Some(path) if path.as_os_str() == "none" => Ok(None),
        Some(path) => {
            check_socket_dir(&path)?;
            Ok(Some(path))
        }
        None => Ok(venice_recipient::local_rack::run_dir().map(|dir| dir.join(name))),
    }
}

/// A directory that the user names is the user's to make: this one would stay when the daemon ends.
pub fn check_socket_dir(socket: &Path) -> anyhow::Result<()> {
    match socket.parent() {
        Some(dir) if !dir.as_os_str().is_empty() && !dir.is_dir() => {
            let said = format!("{}: no such directory: make it (mkdir -p)", dir.display());
            Err(Usage(said).into())
        }
        _ => Ok(()),
    }
}

/// Makes the run directory, if the socket is there.
pub fn make_socket_dir(socket: Option<&Path>) -> anyhow::Result<()> {
    let Some(dir) = socket.and_then(Path::parent) else { return Ok(()) };
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists && !dir.as_os_str().is_empty() => {
            Err(anyhow!("making the directory {}: {error}", dir.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_not_there_is_asked_for_and_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("q/s");
        let refused = local_socket(Some(socket.clone()), "agent.sock").unwrap_err();
        assert!(refused.is::<Usage>() && refused.to_string().contains("make it"), "{refused}");
        assert!(!folder.path().join("q").exists());
        std::fs::create_dir(folder.path().join("q")).unwrap();
        assert_eq!(local_socket(Some(socket.clone()), "agent.sock").unwrap(), Some(socket));
        assert_eq!(local_socket(Some("none".into()), "agent.sock").unwrap(), None);
        check_socket_dir(Path::new("s")).unwrap();
    }
}
