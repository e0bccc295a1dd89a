//! What each `venice run` of this machine says of itself in the run directory, for `venice status`:
//! how many copies its far memory has, and how far it is with those it lost.

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use venice_memory::paged::run_block::RunBlock;

use super::process::Identity;
use super::run_dir::RunDir;

/// Steps of the bar that shows how far it is.
const BAR_STEPS: u64 = 20;

/// A program on borrowed memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRow {
    /// The supervisor, `venice run`.
    pub process: Identity,
    /// The program.
    pub program: String,
    /// Copies of each slab that it is to have.
    pub copies: u32,
    /// Slabs it has.
    pub slabs: u64,
    /// Slabs that have fewer copies.
    pub short_slabs: u64,
    /// Slabs that have none.
    pub lost_slabs: u64,
    /// Slabs that lost a copy and are to have it back, since it began.
    pub to_rebuild: u64,
    /// How many of them have it.
    pub rebuilt: u64,
    /// Donors that were lost.
    pub lost_donors: Vec<String>,
}

impl RunRow {
    /// How the run with this block is now.
    pub fn of(process: Identity, program: &str, block: &RunBlock) -> RunRow {
        use std::sync::atomic::Ordering::Relaxed;
        let copies = block.copies.load(Relaxed);
        let there = |slab| block.readable(slab).count();
        let slabs = block.slab_count();
        let donors = block.donors().iter().filter(|donor| donor.is_lost());
        let mut lost_donors: Vec<String> = donors.map(|donor| donor.name()).collect();
        lost_donors.sort();
        lost_donors.dedup();
        RunRow {
            process,
            program: program.to_string(),
            copies,
            slabs: slabs as u64,
            short_slabs: (0..slabs).filter(|slab| there(*slab) < copies as usize).count() as u64,
            lost_slabs: (0..slabs).filter(|slab| there(*slab) == 0).count() as u64,
            to_rebuild: block.to_rebuild.load(Relaxed),
            rebuilt: block.rebuilt.load(Relaxed),
            lost_donors,
        }
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let RunRow { process, program, copies, slabs, .. } = self;
        let state = match (self.lost_slabs, self.short_slabs) {
            (0, 0) => "all there".to_string(),
            (0, short) => {
                let done = self.rebuilt.min(self.to_rebuild);
                let steps = (done * BAR_STEPS).checked_div(self.to_rebuild).unwrap_or(0);
                let (full, left) = (steps as usize, (BAR_STEPS - steps) as usize);
                let bar = format!("[{}{}]", "=".repeat(full), " ".repeat(left));
                format!("{short} lack one: copying {bar} {done}/{}", self.to_rebuild)
            }
            (lost, _) => format!("{lost} lost with their donors"),
        };
        let word = if *copies == 1 { "copy" } else { "copies" };
        format!("run {} ({program}): {copies} {word} of {slabs} slabs, {state}", process.pid)
    }
}

/// The place of one run's row; gone when dropped.
#[derive(Debug)]
pub struct RunFile {
    path: PathBuf,
    process: Identity,
    program: String,
    written: Option<RunRow>,
}

impl RunFile {
    /// A place in the run directory; `None` where there is none, or this process may not write
    /// there: then `venice status` does not show the run.
    pub fn new(program: &str) -> Option<RunFile> {
        let dir = RunDir::locate().ok()?;
        let process = Identity::of(std::process::id())?;
        dir.path().is_dir().then(|| dir.create_runs_dir())?.ok()?;
        let path = dir.runs_dir().join(format!("{}.json", process.pid));
        Some(RunFile { path, process, program: program.to_string(), written: None })
    }

    /// Says how the run is, if that is new.
    pub fn update(&mut self, block: &RunBlock) {
        let row = RunRow::of(self.process, &self.program, block);
        if self.written.as_ref() == Some(&row) {
            return;
        }
        let half = self.path.with_extension("new");
        // Nobody depends on it.
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

/// The runs of this machine that live.
pub fn runs(dir: &RunDir) -> Vec<RunRow> {
    let Ok(entries) = fs::read_dir(dir.runs_dir()) else { return Vec::new() };
    let read = |entry: std::io::Result<fs::DirEntry>| -> Option<RunRow> {
        let path = entry.ok()?.path();
        let row: RunRow = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
        if !row.process.exists() {
            // Killed: nobody else takes it away.
            let _ = fs::remove_file(&path);
            return None;
        }
        Some(row)
    };
    let mut rows: Vec<RunRow> = entries.filter_map(read).collect();
    rows.sort_by_key(|row| row.process.pid);
    rows
}

/// The lines of `runs`, each after a line end.
pub fn lines(runs: &[RunRow]) -> String {
    runs.iter().map(|run| format!("\n{}", run.line())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_copies_shows_how_far_it_is() {
        let process = Identity::of(std::process::id()).unwrap();
        let mut row = RunRow {
            process,
            program: "redis".into(),
            copies: 2,
            slabs: 8,
            short_slabs: 3,
            lost_slabs: 0,
            to_rebuild: 4,
            rebuilt: 1,
            lost_donors: vec!["node2".into()],
        };
        assert!(row.line().contains("copies of 8 slabs, 3 lack one: copying [=====   "));
        assert!(row.line().ends_with("] 1/4"), "{}", row.line());
        row.short_slabs = 0;
        assert!(row.line().ends_with("all there"));
        row.lost_slabs = 2;
        assert!(row.line().ends_with("2 lost with their donors"));
    }

    #[test]
    fn only_the_living_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let dir = RunDir::at(folder.path());
        fs::create_dir_all(dir.runs_dir()).unwrap();
        let mut row = RunRow {
            process: Identity::of(std::process::id()).unwrap(),
            program: "x".into(),
            copies: 1,
            slabs: 1,
            short_slabs: 0,
            lost_slabs: 0,
            to_rebuild: 0,
            rebuilt: 0,
            lost_donors: Vec::new(),
        };
        let write = |name: &str, row: &RunRow| {
            fs::write(dir.runs_dir().join(name), serde_json::to_vec(row).unwrap()).unwrap();
        };
        write("1.json", &row);
        row.process = Identity { start_ticks: 1, ..row.process };
        write("2.json", &row);
        assert_eq!(runs(&dir).len(), 1);
        assert!(!dir.runs_dir().join("2.json").exists(), "it is swept");
    }
}
