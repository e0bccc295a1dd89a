//! Losses that a client driver has noticed, as files in a directory: the run that started the program
//! tells the user, who would otherwise read of each loss twice.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use venice_wire::GrantId;

/// Variable that names the directory.
pub const VARIABLE: &str = "VENICE_LOST_DIR";
/// Longest reason in bytes.
const MAX_REASON_BYTES: usize = 1024;

/// Notes a loss in `dir`.
///
/// # Errors
/// The errors of the file system: the program tells the user itself then.
pub fn note(dir: &Path, grant: u64, why: &str) -> std::io::Result<()> {
    // A reader finds it whole.
    let new = dir.join(format!(".{grant}"));
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o644).open(&new)?;
    file.write_all(why.as_bytes())?;
    fs::rename(&new, dir.join(grant.to_string()))
}

/// Returns the losses noted in `dir`, with their reasons.
pub fn noted(dir: &Path) -> Vec<(GrantId, String)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let noted = entries.filter_map(|entry| {
        let grant = entry.file_name().to_str()?.parse().ok()?;
        let text = fs::read(entry.path()).ok()?;
        let why = String::from_utf8_lossy(&text[..text.len().min(MAX_REASON_BYTES)]);
        let why = why.chars().map(|it| if it.is_control() { ' ' } else { it });
        Some((GrantId(grant), why.collect()))
    });
    noted.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_losses_read_back() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(noted(dir.path()), []);
        note(dir.path(), 7, "the host\nis gone").unwrap();
        note(dir.path(), 7, "again\x1b[2J").unwrap();
        fs::write(dir.path().join("x"), "").unwrap();
        assert_eq!(noted(dir.path()), [(GrantId(7), "again [2J".to_owned())]);
        assert!(note(&dir.path().join("missing"), 1, "").is_err());
    }
}
