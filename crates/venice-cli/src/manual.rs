//! Shell completions and manual pages, for packagers.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Command};
pub use clap_complete::Shell;

use crate::terminal;

/// `venice completions`
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Shell of the script
    #[arg(value_enum)]
    pub shell: Shell,
}

/// `venice man`
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Write one page per command into this directory, instead of the main page to stdout
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Prints the completion script of `command`.
///
/// # Errors
/// When stdout cannot be written.
pub fn completions(args: &CompletionsArgs, command: Command) -> anyhow::Result<i32> {
    terminal::say_bytes(completion_script(args.shell, command).as_bytes())?;
    Ok(0)
}

/// Returns the completion script of `command`.
pub fn completion_script(shell: Shell, mut command: Command) -> String {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    // In clap's script for bash, words behind a name with a hyphen complete to nothing.
    let plain_name = match shell {
        Shell::Bash => name.replace('-', "_"),
        _ => name.clone(),
    };
    clap_complete::generate(shell, &mut command, plain_name.clone(), &mut script);
    let script = String::from_utf8(script).expect("a completion script is UTF-8");
    script.replace(&format!(" {plain_name}\n"), &format!(" {name}\n"))
}

/// Prints the main manual page of `command`, or writes a page for every subcommand.
///
/// # Errors
/// When stdout or the directory cannot be written.
pub fn man(args: &ManArgs, command: Command) -> anyhow::Result<i32> {
    match &args.out {
        None => terminal::say_bytes(&page(command)?)?,
        Some(dir) => write_pages(dir, [command])?,
    }
    Ok(0)
}

/// Returns the manual page of `command`.
///
/// # Errors
/// None is known: the page is made in memory.
pub fn page(command: Command) -> anyhow::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(page)
}

/// Writes the manual pages of these commands and all their subcommands into `dir`.
///
/// # Errors
/// When the directory cannot be written.
pub fn write_pages(dir: &Path, commands: impl IntoIterator<Item = Command>) -> anyhow::Result<()> {
    let writing = || format!("cannot write manual pages to {}", dir.display());
    std::fs::create_dir_all(dir).with_context(writing)?;
    for command in commands {
        clap_mangen::generate_to(command, dir).with_context(writing)?;
    }
    Ok(())
}
