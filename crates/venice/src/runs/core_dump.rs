//! `venice core`: writes the core dump of a program, with its far pages.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use clap::Args;
use signal_hook::consts::signal::{SIGINT, SIGTERM};
use venice_memory::dump::{self, CoreSource, Written};
use venice_recipient::runs::RunsDir;
use venice_wire::{ByteSize, PAGE_BYTES};

use super::registry;
use venice_cli::terminal::{self, remark};

/// Exit code of a core with pages missing.
const INCOMPLETE: i32 = 1;

/// `venice core`
#[derive(Args, Debug)]
pub struct CoreArgs {
    /// Process id of the program, of another process of its run, or of its `venice run`
    #[arg(value_name = "PID")]
    pid: u32,
    /// File to write, which must not exist [default: core.PID]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Writes the core.
pub fn execute(args: &CoreArgs) -> anyhow::Result<i32> {
    let (dir, row) = registry::find(args.pid)?;
    let pid = if args.pid == row.run { row.pid } else { args.pid };
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("core.{pid}")));
    let out = create(&path)?;
    let written = write(&dir, (row.run, pid), &out).inspect_err(|_| {
        // Half a core is of no use.
        let _ = fs::remove_file(&path);
    })?;
    terminal::say(format!(
        "{}: process {pid}, {} threads, {} ({} on disk), {} of it far.",
        path.display(),
        written.threads,
        ByteSize(written.file_bytes),
        ByteSize(written.stored_bytes),
        ByteSize(written.far_pages * PAGE_BYTES)
    ))?;
    if written.lost_pages > 0 {
        remark(format!(
            "venice: {} pages are lost with their donors, and are zeros in {}",
            written.lost_pages,
            path.display()
        ));
        return Ok(INCOMPLETE);
    }
    Ok(0)
}

/// Creates the file, for its owner alone: it has everything that the program knows.
fn create(path: &Path) -> anyhow::Result<File> {
    const OWNER_ONLY: u32 = 0o600;
    let file =
        OpenOptions::new().write(true).read(true).create_new(true).mode(OWNER_ONLY).open(path);
    match file {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => {
            bail!("{} is a directory: name a file in it with --output", path.display())
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            bail!("{} exists: remove it, or name another file with --output", path.display())
        }
        file => file.with_context(|| format!("creating {}", path.display())),
    }
}

fn write(dir: &RunsDir, (run, pid): (u32, u32), out: &File) -> anyhow::Result<Written> {
    let (image, mut far) = registry::far_pages(dir, run, pid)?;
    let is_interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, is_interrupted.clone()).context("catching signals")?;
    }
    let bar = terminal::progress(1, "core, MiB");
    let mut progress = |done: u64, total: u64| {
        bar.set_length(total >> 20);
        bar.set_position(done >> 20);
        !is_interrupted.load(Ordering::Relaxed)
    };
    let written = dump::write_core(out, CoreSource { pid, image }, &mut far, &mut progress);
    bar.finish_and_clear();
    Ok(written?)
}
