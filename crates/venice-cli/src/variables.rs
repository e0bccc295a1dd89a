//! Environment variables: one that is set to nothing counts as unset, as in `VENICE_METRICS= venice up`
//! and in systemd's and containers' files.

use std::ffi::{OsStr, OsString};

use clap::Command;
use clap::builder::Resettable;

/// Returns the value of a variable, unless it is empty.
pub fn variable(name: impl AsRef<OsStr>) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns `command`, with all its subcommands, changed so that it ignores empty variables.
pub fn without_empty(command: Command) -> Command {
    let command = command.mut_args(|arg| match arg.get_env() {
        Some(name) if variable(name).is_none() && std::env::var_os(name).is_some() => {
            arg.env(Resettable::Reset)
        }
        _ => arg,
    });
    command.mut_subcommands(without_empty)
}
