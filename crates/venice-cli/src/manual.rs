//! Shell completions and manual pages, for packagers.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::terminal;

/// `venice completions`
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Shell of the script
    #[arg(value_enum)]
    shell: Shell,
}

/// `venice man`
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Write one page per command into this directory, instead of the main page to stdout
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Prints the completion script of `command`.
///
/// # Errors
/// When stdout cannot be written.
pub fn completions(args: &CompletionsArgs, mut command: Command) -> anyhow::Result<i32> {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    terminal::say_bytes(&script)?;
    Ok(0)
}

/// Prints the main manual page of `command`, or writes a page for every subcommand.
///
/// # Errors
/// When stdout or the directory cannot be written.
pub fn man(args: &ManArgs, command: Command) -> anyhow::Result<i32> {
    let Some(dir) = &args.out else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        terminal::say_bytes(&page)?;
        return Ok(0);
    };
    let writing = || format!("cannot write manual pages to {}", dir.display());
    std::fs::create_dir_all(dir).with_context(writing)?;
    clap_mangen::generate_to(command, dir).with_context(writing)?;
    Ok(0)
}
