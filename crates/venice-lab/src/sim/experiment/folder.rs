//! The folder of a run: results, tables, plots and the report.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
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
}

impl Folder {
    /// Prepares a folder for a run; with `resume`, returns the results that it has.
    ///
    /// # Errors
    /// If it cannot be written, or has something else.
    pub(super) fn open(
        folder: PathBuf,
        wanted: &Results,
        resume: bool,
    ) -> Result<(Self, Option<Results>)> {
        let shown = folder.display().to_string();
        let other = "choose another --out";
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
                () if resume && before.version != wanted.version => {
                    format!("{} by version {}", before.name, before.version)
                }
                () => String::new(),
            };
            if !what.is_empty() {
                return Err(usage(format!("{shown} has results of {what}: {other}")));
            }
        }
        let made = fs::create_dir_all(&folder);
        made.map_err(|error| usage(format!("cannot make {shown}: {error}: {other}")))?;
        let this = Self { folder };
        write(&this.path(EXPERIMENT), wanted.experiment.as_bytes())
            .map_err(|error| usage(format!("{error:#}: {other}")))?;
        Ok((this, before.filter(|_| resume)))
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

/// Writes a file, whole or not at all.
///
/// # Errors
/// When it cannot be written.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let beside = PathBuf::from(format!("{}.new", path.display()));
    let written = fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, path));
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
