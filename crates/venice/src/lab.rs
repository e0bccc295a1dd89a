//! `venice bench|paper|sim|model`: a binary of its own, `venice-lab`, runs them, as git runs its
//! subcommands.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, anyhow};
use clap::Args;
use rustix::fs::{Access, access};
use venice_cli::failure::usage;

/// Commands that `venice-lab` runs.
pub const COMMANDS: [&str; 4] = ["bench", "paper", "model", "sim"];

/// Environment variable with the path of the `venice-lab` binary.
const VENICE_LAB: &str = "VENICE_LAB";
/// Environment variable set for `venice-lab`, by which a `venice` under its name is recognised.
const VENICE_LAB_STARTED: &str = "VENICE_LAB_STARTED";

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

/// The arguments of such a command, for help and manual pages: [`execute`] passes them on unparsed.
#[derive(Args, Debug)]
#[allow(dead_code, reason = "venice-lab parses the arguments")]
pub struct LabArgs {
    /// Arguments of venice-lab; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    arguments: Vec<OsString>,
    /// Hides the flag of all other commands, which venice-lab does not have
    #[arg(long, hide = true)]
    monitor: Option<String>,
}

/// Replaces this process by `venice-lab ARGUMENTS` if the first argument is one of [`COMMANDS`], also
/// behind `help`. `None` if it is not, and for general help without `venice-lab`, which `venice` has
/// itself.
pub fn execute(arguments: &[OsString]) -> Option<anyhow::Result<i32>> {
    let command = command(arguments)?;
    let own = match std::env::current_exe().context("finding the venice program itself") {
        Ok(own) => own,
        Err(error) => return Some(Err(error)),
    };
    match find(&own) {
        Ok(Some(lab)) => Some(Err(replace(&own, &lab, command, arguments))),
        Ok(None) if is_general_help(arguments) => None,
        Ok(None) => Some(Err(missing(command, &own))),
        Err(error) => Some(Err(error)),
    }
}

/// Refuses `--monitor` in front of a command of `venice-lab`.
pub fn refuse_flags() -> anyhow::Error {
    let commands = COMMANDS.join(", ");
    usage(format!("no flag goes in front of {commands}: they start racks of their own"))
}

fn command(arguments: &[OsString]) -> Option<&'static str> {
    let word = match arguments {
        [help, word, ..] if help == "help" => word,
        [word, ..] => word,
        [] => return None,
    };
    COMMANDS.into_iter().find(|command| word == command)
}

fn is_general_help(arguments: &[OsString]) -> bool {
    matches!(arguments, [first, second] if first == "help" || second == "--help" || second == "-h")
}

/// Returns only if `lab` cannot be started.
fn replace(own: &Path, lab: &Path, command: &str, arguments: &[OsString]) -> anyhow::Error {
    let lab_name = lab.display();
    if std::env::var_os(VENICE_LAB_STARTED).is_some() {
        return usage(format!(
            "{lab_name} is not venice-lab, it started `venice {command}` again: build venice-lab with \
             `make lab`, or unset {VENICE_LAB}"
        ));
    }
    let mut started = Command::new(lab);
    started.args(arguments).env("VENICE_BIN", own).env(VENICE_LAB_STARTED, "1");
    anyhow!("cannot start {lab_name}: {}: build venice-lab again with `make lab`", started.exec())
}

/// Finds the binary: `VENICE_LAB` if set, else beside `own`, else in PATH.
fn find(own: &Path) -> anyhow::Result<Option<PathBuf>> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let Some(named) = std::env::var_os(VENICE_LAB).filter(|named| !named.is_empty()) else {
        let beside = own.parent().map(|folder| folder.join("venice-lab"));
        let beside = beside.filter(|file| is_executable(file));
        return Ok(beside.or_else(|| in_path("venice-lab".as_ref(), &path)));
    };
    let file = PathBuf::from(&named);
    // As in a shell, a name without a slash is in PATH.
    let found = match named.as_encoded_bytes().contains(&b'/') {
        false => in_path(&named, &path),
        true => Some(file.clone()).filter(|file| is_executable(file)),
    };
    found.map(Some).ok_or_else(|| unusable(&file))
}

fn unusable(file: &Path) -> anyhow::Error {
    let what = if file.is_dir() {
        "is a directory"
    } else if file.exists() {
        "is not executable"
    } else {
        "does not exist"
    };
    usage(format!(
        "{VENICE_LAB} names {}, which {what}: build venice-lab with `make lab`, or unset {VENICE_LAB}",
        file.display()
    ))
}

/// Returns the first executable file of this name in the directories of `path`, as a shell does.
fn in_path(name: &OsStr, path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(path).map(|folder| folder.join(name)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.is_file() && access(file, Access::EXEC_OK).is_ok()
}

fn missing(command: &str, own: &Path) -> anyhow::Error {
    let folder = own.parent().unwrap_or(Path::new("/usr/local/bin"));
    anyhow!(
        "venice {command}: the binary venice-lab is missing: in a clone run `make lab` or `make \
         install-lab`; else copy it to {} or name it with {VENICE_LAB}",
        folder.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn lab_commands_are_recognised() {
        for text in ["bench", "sim rack --version", "help paper", "help bench fault", "model -- x"]
        {
            assert!(command(&words(text)).is_some(), "{text}");
        }
        for text in ["up", "help", "help up", "--monitor a:1 bench", "run -- bench"] {
            assert!(command(&words(text)).is_none(), "{text}");
        }
        assert!(is_general_help(&words("help sim")) && is_general_help(&words("sim -h")));
        assert!(!is_general_help(&words("help sim rack")));
    }

    #[test]
    fn unexecutable_file_is_skipped() {
        let temp = tempfile::tempdir().unwrap();
        let folders = [temp.path().join("a"), temp.path().join("b")];
        for (folder, mode) in folders.iter().zip([0o644, 0o755]) {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("venice-lab"), "").unwrap();
            fs::set_permissions(folder.join("venice-lab"), Permissions::from_mode(mode)).unwrap();
        }
        let path = std::env::join_paths(&folders).unwrap();
        let found = in_path("venice-lab".as_ref(), &path).unwrap();
        assert_eq!(found, folders[1].join("venice-lab"));
    }
}
