//! Run files: the state of the copies of each run of this machine, in the run directory, for
//! `venice status`.

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::process::Identity;
use super::runs_dir::RunsDir;
use crate::copies::Copies;

/// A program on borrowed memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiesRow {
    /// The supervisor, `venice run`; or the program, if it borrows by itself.
    pub process: Identity,
    /// The program.
    pub program: String,
    /// The state of its copies.
    #[serde(flatten)]
    pub copies: Copies,
}

impl CopiesRow {
    /// Formats a line for users.
    pub fn line(&self) -> String {
        let CopiesRow { process, program, copies } = self;
        format!("run {} ({program}): {copies}", process.pid)
    }
}

/// The file of one run's row, removed when dropped.
#[derive(Debug)]
pub struct RunFile {
    path: PathBuf,
    process: Identity,
    program: String,
    written: Option<CopiesRow>,
}

impl RunFile {
    /// Creates a file in the run directory; `None` if there is no such directory, or it is not
    /// writable: then `venice status` does not show the run.
    pub fn new(dir: &RunsDir, program: &str) -> Option<RunFile> {
        let process = Identity::of(std::process::id())?;
        dir.create().ok()?;
        let path = dir.path().join(format!("{}.json", process.pid));
        Some(RunFile { path, process, program: program.to_string(), written: None })
    }

    /// Writes the state, if it has changed.
    pub fn update(&mut self, copies: Copies) {
        let (process, program) = (self.process, self.program.clone());
        let row = CopiesRow { process, program, copies };
        if self.written.as_ref() == Some(&row) {
            return;
        }
        let half = self.path.with_extension("new");
        // A failed write is harmless.
        if let Ok(text) = serde_json::to_vec(&row)
            && fs::write(&half, text).is_ok()
            && fs::rename(&half, &self.path).is_ok()
        {
            self.written = Some(row);
        }
    }
}

impl Drop for RunFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns the living runs of this machine.
pub fn files(dir: &RunsDir) -> Vec<CopiesRow> {
    let Ok(entries) = fs::read_dir(dir.path()) else { return Vec::new() };
    let read = |entry: std::io::Result<fs::DirEntry>| -> Option<CopiesRow> {
        let path = entry.ok()?.path();
        let row: CopiesRow = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
        if !row.process.exists() {
            // Its process was killed: no one else removes the file.
            let _ = fs::remove_file(&path);
            return None;
        }
        Some(row)
    };
    let mut rows: Vec<CopiesRow> = entries.filter_map(read).collect();
    rows.sort_by_key(|row| row.process.pid);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_living_runs_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let dir = RunsDir::of(folder.path());
        dir.create().unwrap();
        let mut row = CopiesRow {
            process: Identity::of(std::process::id()).unwrap(),
            program: "x".into(),
            copies: Copies::default(),
        };
        let write = |name: &str, row: &CopiesRow| {
            fs::write(dir.path().join(name), serde_json::to_vec(row).unwrap()).unwrap();
        };
        write("1.json", &row);
        row.process = Identity { start_ticks: 1, ..row.process };
        write("2.json", &row);
        assert_eq!(files(&dir).len(), 1);
        assert!(!dir.path().join("2.json").exists(), "it is swept");
    }
}
