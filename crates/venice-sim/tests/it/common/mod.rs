//! Scenarios that failed once.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns all scenarios of a folder below `tests`, with their texts.
pub fn found_once(folder: &str) -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let files = fs::read_dir(folder).expect("the folder exists");
    let files = files.map(|entry| entry.expect("the entry is readable").path());
    let files: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|it| it == "toml"))
        .map(|path| {
            let text = fs::read_to_string(&path).expect("the file is readable");
            (path, text)
        })
        .collect();
    assert!(!files.is_empty(), "no scenarios");
    files
}
