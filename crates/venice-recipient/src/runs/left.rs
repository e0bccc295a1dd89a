//! Files left by killed programs in the directory of the runs, named after their process.

use std::fs;
use std::path::PathBuf;

use serde::Deserialize;

use super::process::Identity;
use super::runs_dir::RunsDir;

/// Extensions of a run's files there: its row, a half-written one, its socket.
const RUN_FILES: [&str; 3] = ["json", "new", "sock"];

/// The owner of a row.
#[derive(Deserialize)]
struct Written {
    process: Identity,
}

/// Removes the files of dead runs.
pub fn sweep(dir: &RunsDir) {
    let Ok(entries) = fs::read_dir(dir.path()) else { return };
    let is_left = |path: &PathBuf| {
        let is_ours = path.extension().is_some_and(|kind| RUN_FILES.iter().any(|it| kind == *it));
        let pid = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u32>().ok());
        is_ours && pid.is_some_and(|pid| !is_run(pid, path))
    };
    // All are checked before the first is removed: one file identifies another.
    let left: Vec<PathBuf> = entries.flatten().map(|it| it.path()).filter(is_left).collect();
    for path in left {
        let _ = fs::remove_file(path);
    }
}

/// True if the process `pid` lives and wrote the file at `path`: process ids are reused.
fn is_run(pid: u32, path: &std::path::Path) -> bool {
    let Some(now) = Identity::of(pid).filter(|process| process.exists()) else { return false };
    let row = path.with_extension("json");
    let written = fs::read(row).ok().and_then(|text| serde_json::from_slice::<Written>(&text).ok());
    written.is_none_or(|row| row.process == now)
}
