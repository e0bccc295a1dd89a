//! Scenarios that found something once.

use std::fs;
use std::path::{Path, PathBuf};

/// All of a folder below `tests`, with their texts.
pub fn found_once(folder: &str) -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let files = fs::read_dir(folder).expect("the folder is there");
    let files = files.map(|entry| entry.expect("it can be read").path());
    let files: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|it| it == "toml"))
        .map(|path| {
            let text = fs::read_to_string(&path).expect("it can be read");
            (path, text)
        })
        .collect();
    assert!(!files.is_empty(), "no scenarios");
    files
}
