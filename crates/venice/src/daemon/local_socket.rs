//! Path of a daemon's socket for programs of its machine.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::anyhow;

use venice_cli::failure::Usage;

/// Returns the path given, else `name` in the run directory; `none` means no socket.
pub fn local_socket(given: Option<PathBuf>, name: &str) -> anyhow::Result<Option<PathBuf>> {
    match given {
        Some(path) if path.as_os_str() == "none" => Ok(None),
        Some(path) => {
            check_socket_dir(&path)?;
            Ok(Some(path))
        }
        None => Ok(Some(venice_recipient::local_rack::run_dir().join(name))),
    }
}

/// Checks that the socket's directory exists. A directory named by the user is not created: it
/// would stay after the daemon ends.
pub fn check_socket_dir(socket: &Path) -> anyhow::Result<()> {
    match socket.parent() {
        Some(dir) if !dir.as_os_str().is_empty() && !dir.is_dir() => {
            let said = format!("{}: no such directory: make it (mkdir -p)", dir.display());
            Err(Usage(said).into())
        }
        _ => Ok(()),
    }
}

/// Creates the run directory for the socket.
pub fn make_socket_dir(socket: Option<&Path>) -> anyhow::Result<()> {
    let Some(dir) = socket.and_then(Path::parent) else { return Ok(()) };
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists && !dir.as_os_str().is_empty() => {
            Err(anyhow!("creating the directory {}: {error}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Checks that the machine has a group.
pub fn known_group(name: &str) -> Result<String, String> {
    match nix::unistd::Group::from_name(name) {
        Ok(Some(_)) => Ok(name.to_owned()),
        Ok(None) => Err(format!("this machine has no such group: make it (groupadd {name})")),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_socket_directory_is_refused() {
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
