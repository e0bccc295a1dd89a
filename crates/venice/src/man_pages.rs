//! Shell completions and manual pages.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::terminal;

/// `venice completions`
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Shell
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

/// Prints the completion script.
pub fn completions(args: &CompletionsArgs, mut command: Command) -> anyhow::Result<i32> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "venice", &mut script);
    terminal::say_bytes(&script)?;
    Ok(0)
}

/// Prints or writes the manual pages.
pub fn man(args: &ManArgs, command: Command) -> anyhow::Result<i32> {
    let Some(dir) = &args.out else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        terminal::say_bytes(&page)?;
        return Ok(0);
    };
    let writing = || format!("writing manual pages to {}", dir.display());
    std::fs::create_dir_all(dir).with_context(writing)?;
    clap_mangen::generate_to(command, dir).with_context(writing)?;
    Ok(0)
}
