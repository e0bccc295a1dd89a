//! The folder of a run: results, tables, plots and the report.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use venice_cli::failure::usage;
use venice_experiment::{Experiment, Results};

use super::{figures, page, parquet};
use crate::plot;

/// Name of the report.
pub const REPORT: &str = "report.html";
const RESULTS: &str = "results.json";
const EXPERIMENT: &str = "experiment.toml";

/// A folder that takes results.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) folder: PathBuf,
    /// Locked as long as this run writes to it.
    _lock: File,
}

impl Folder {
    /// Prepares a folder for a run, and returns the results of the same experiment that it has.
    ///
    /// # Errors
    /// If it cannot be written, has something else, or another run writes to it.
    pub(super) fn open(folder: PathBuf, wanted: &Results) -> Result<(Self, Option<Results>)> {
        let shown = folder.display().to_string();
        let other = "choose another --out";
        let cannot = |what: &str, error: &dyn std::fmt::Display| {
            usage(format!("cannot {what} {shown}: {error}: {other}"))
        };
        let is_new = !folder.exists();
        fs::create_dir_all(&folder).map_err(|error| cannot("make", &error))?;
        let lock = File::open(&folder).map_err(|error| cannot("use", &error))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                let why = "another run writes to it: wait for its end, or choose another --out";
                return Err(usage(format!("{shown}: {why}")));
            }
            // A file system without locks.
            Err(Errno::NOTSUP | Errno::NOLCK | Errno::NOSYS | Errno::INVAL) | Ok(()) => {}
            Err(error) => return Err(cannot("lock", &error)),
        }
        let before = match fs::symlink_metadata(folder.join(RESULTS)) {
            Ok(_) => Some(read(&folder).map_err(|error| usage(format!("{error:#}: {other}")))?),
            Err(_) if has_files(&folder)? => {
                return Err(usage(format!("{shown} has files, and no {RESULTS}: {other}")));
            }
            Err(_) => None,
        };
        if let Some(before) = &before {
            let what = match () {
                () if before.name != wanted.name => before.name.clone(),
                () if before.experiment != wanted.experiment => {
                    format!("{} with another configuration", before.name)
                }
                () if before.version != wanted.version => {
                    format!("{} by version {}", before.name, before.version)
                }
                () => String::new(),
            };
            if !what.is_empty() {
                return Err(usage(format!("{shown} has results of {what}: {other}")));
            }
        }
        let this = Self { folder, _lock: lock };
        if let Err(error) = write(&this.path(EXPERIMENT), wanted.experiment.as_bytes()) {
            if is_new {
                // It is empty.
                let _ = fs::remove_dir(&this.folder);
            }
            let remedy = if before.is_some() { "make room, or mend that" } else { other };
            return Err(usage(format!("{error:#}: {remedy}")));
        }
        Ok((this, before))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes the results so far; a kill leaves these or those before.
    pub(super) fn write_results(&self, results: &Results) -> Result<()> {
        let mut text = serde_json::to_string_pretty(results).context("cannot write the results")?;
        text.push('\n');
        write(&self.path(RESULTS), text.as_bytes())
    }

    /// Writes the captured packets of a point.
    pub(super) fn write_capture(&self, point: usize, file: &[u8]) -> Result<PathBuf> {
        let path = self.path(&format!("capture-{point}.pcapng"));
        write(&path, file)?;
        Ok(path)
    }

    fn checkpoint(&self, point: usize) -> PathBuf {
        self.path(&format!("checkpoint-{point}.bin"))
    }

    /// Reads the checkpoint of a point, if it has one; returns its path too.
    pub(super) fn read_checkpoint(&self, point: usize) -> Result<Option<(PathBuf, Vec<u8>)>> {
        let path = self.checkpoint(point);
        match fs::read(&path) {
            Ok(file) => Ok(Some((path, file))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Writes the checkpoint of a point.
    pub(super) fn write_checkpoint(&self, point: usize, file: &[u8]) -> Result<PathBuf> {
        let path = self.checkpoint(point);
        write(&path, file)?;
        Ok(path)
    }

    /// Removes the checkpoint of a point, which is done or begins anew.
    pub(super) fn remove_checkpoint(&self, point: usize) -> Result<()> {
        let path = self.checkpoint(point);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Writes everything: results, tables, plots and the report.
    pub(super) fn publish(&self, experiment: &Experiment, results: &Results) -> Result<()> {
        self.write_results(results)?;
        write(&self.path("points.parquet"), &parquet::points(results)?)?;
        write(&self.path("latencies.parquet"), &parquet::histograms(results)?)?;
        let plots = figures::plots(experiment, results)?;
        plot::write(&plots, &self.folder)?;
        let page = page::html(experiment, results, &plots);
        write(&self.path(REPORT), page.as_bytes())
    }
}

/// Reads the results of a folder.
///
/// # Errors
/// If it has none, or those of another version's form.
pub(super) fn read(folder: &Path) -> Result<Results> {
    let path = folder.join(RESULTS);
    let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => usage(format!(
            "{} has no {RESULTS}: name the folder of a venice sim run",
            folder.display()
        )),
        _ => usage(format!("cannot read {}: {error}", path.display())),
    })?;
    let results: Results = serde_json::from_str(&text)
        .map_err(|error| usage(format!("{} has no results: {error}", path.display())))?;
    match results.format {
        Results::FORMAT => Ok(results),
        other => Err(usage(format!(
            "{} has form {other}, and this version reads {}: run it again",
            path.display(),
            Results::FORMAT
        ))),
    }
}

/// Writes a file, whole or not at all, even if the machine loses its power.
///
/// # Errors
/// When it cannot be written.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let beside = PathBuf::from(format!("{}.new", path.display()));
    let fill = |mut file: File| file.write_all(bytes).and_then(|()| file.sync_all());
    let written = File::create(&beside).and_then(fill).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // What there is of it takes room on a disk that may be full.
        let _ = fs::remove_file(&beside);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

fn has_files(folder: &Path) -> Result<bool> {
    match fs::read_dir(folder) {
        Ok(mut files) => Ok(files.next().is_some()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => {
            Err(usage(format!("cannot use {}: {error}: choose another --out", folder.display())))
        }
    }
}
