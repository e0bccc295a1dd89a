//! The `venice` binary that racks are started with.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use venice_cli::variables::variable;

/// Environment variable with the path of the `venice` binary.
pub const VENICE_BIN: &str = "VENICE_BIN";

/// Returns the path of the `venice` binary: the running program if it is `venice`, else
/// [`VENICE_BIN`], else the file `venice` beside the running program or in the directory above
/// (where test binaries lie).
///
/// # Errors
/// When there is none; the message gives the remedy.
pub fn venice() -> Result<PathBuf> {
    let running = std::env::current_exe().context("cannot find the running program")?;
    if running.file_name().is_some_and(|name| name == "venice") {
        return Ok(running);
    }
    if let Some(named) = variable(VENICE_BIN) {
        return Ok(named.into());
    }
    let Some(found) = beside(&running) else {
        bail!(
            "no venice binary beside {}: build it (make build), or name it with {VENICE_BIN}",
            running.display()
        );
    };
    Ok(found)
}

fn beside(program: &Path) -> Option<PathBuf> {
    let mut folders = program.ancestors().skip(1).take(2);
    folders.find_map(|folder| Some(folder.join("venice")).filter(|path| path.is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_is_found_beside_and_above() {
        let folder = tempfile::tempdir().unwrap();
        let deps = folder.path().join("deps");
        std::fs::create_dir(&deps).unwrap();
        assert_eq!(beside(&deps.join("it-1")), None);
        std::fs::write(folder.path().join("venice"), "").unwrap();
        assert_eq!(beside(&deps.join("it-1")), Some(folder.path().join("venice")));
        assert_eq!(beside(&folder.path().join("venice-lab")), Some(folder.path().join("venice")));
    }
}
