//! Where a daemon's socket for the programs of its machine is.

use std::path::{Path, PathBuf};

use anyhow::anyhow;

/// The path given, else `name` in the run directory; `none` is none.
pub fn local_socket(given: Option<PathBuf>, name: &str) -> Option<PathBuf> {
    match given {
        Some(path) if path.as_os_str() == "none" => None,
        Some(path) => Some(path),
        None => venice_recipient::local_rack::run_dir().map(|dir| dir.join(name)),
    }
}

/// Makes its directory.
pub fn make_socket_dir(socket: Option<&Path>) -> anyhow::Result<()> {
    let Some(dir) = socket.and_then(Path::parent) else { return Ok(()) };
    std::fs::create_dir_all(dir)
        .map_err(|error| anyhow!("making the directory {}: {error}", dir.display()))
}
