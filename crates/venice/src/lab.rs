//! `venice bench|paper|sim|model`: a binary of its own, `venice-lab`, runs them, as git runs its
//! subcommands.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, anyhow};
use clap::Args;

/// Environment variable with the path of the `venice-lab` binary.
const VENICE_LAB: &str = "VENICE_LAB";

/// Examples of the commands of `venice-lab`.
pub const HELP: &str = "\
EXAMPLES:
  venice bench --help
  venice bench fault
  venice paper 15 --quick
  venice sim rack --loss 1%
  venice model cost

The binary venice-lab runs these commands. It is taken from VENICE_LAB, else from beside venice, else
from PATH. To build it: make lab. To install it: make install-lab.";

/// The arguments of such a command, passed on unchanged.
#[derive(Args, Debug)]
pub struct LabArgs {
    /// Arguments of venice-lab; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    arguments: Vec<OsString>,
}

/// Replaces this process by `venice-lab COMMAND ARGS`.
///
/// # Errors
/// When the binary is missing or cannot be started.
pub fn execute(command: &str, args: &LabArgs) -> anyhow::Result<i32> {
    let own = std::env::current_exe().context("finding the venice program itself")?;
    let lab = find(&own).ok_or_else(|| missing(command, &own))?;
    let mut started = Command::new(&lab);
    started.arg(command).args(&args.arguments).env("VENICE_BIN", own);
    Err(anyhow!(started.exec()).context(format!("starting {}", lab.display())))
}

fn find(own: &Path) -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(VENICE_LAB) {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = own.parent().map(Path::to_owned).into_iter().chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join("venice-lab")).find(|file| file.is_file())
}

fn missing(command: &str, own: &Path) -> anyhow::Error {
    let folder = own.parent().unwrap_or(Path::new("/usr/local/bin"));
    anyhow!(
        "venice {command}: the binary venice-lab is missing: in a clone run `make lab` or `make \
         install-lab`; else copy it to {} or name it with {VENICE_LAB}",
        folder.display()
    )
}
