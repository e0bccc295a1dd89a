//! Manual pages of `venice-lab`: its commands are called by `venice`, so their pages are named after
//! that.

use anyhow::Context;
use clap::{Command, CommandFactory};
use venice_cli::manual::{self, ManArgs};
use venice_cli::terminal;

use super::Cli;

/// Commands that `venice` has too, with pages of its own.
const OWN: [&str; 2] = ["completions", "man"];

/// Prints the main page, or writes all pages: `venice-lab.1`, `venice-bench.1`,
/// `venice-bench-fault.1` and so on.
///
/// # Errors
/// When stdout or the directory cannot be written.
pub(super) fn write(args: &ManArgs) -> anyhow::Result<i32> {
    let Some(dir) = &args.out else {
        terminal::say_bytes(main_page()?.as_bytes())?;
        return Ok(0);
    };
    manual::write_pages(dir, commands())?;
    let path = dir.join("venice-lab.1");
    std::fs::write(&path, main_page()?).with_context(|| format!("writing {}", path.display()))?;
    Ok(0)
}

fn commands() -> Vec<Command> {
    let mut root = Cli::command().display_name("venice").disable_help_subcommand(true);
    root.build();
    let commands = root.get_subcommands().filter(|command| !OWN.contains(&command.get_name()));
    commands.cloned().collect()
}

/// Returns the page of `venice-lab` itself, which refers to the pages of [`commands`].
fn main_page() -> anyhow::Result<String> {
    let page = manual::page(Cli::command().disable_help_subcommand(true))?;
    let page = String::from_utf8(page).context("the manual page")?;
    Ok(page.replace(r"venice\-lab\-", r"venice\-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_named_after_venice() {
        let dir = tempfile::tempdir().unwrap();
        write(&ManArgs { out: Some(dir.path().to_path_buf()) }).unwrap();
        for page in ["venice-lab", "venice-bench", "venice-bench-fault", "venice-sim-rack"] {
            let path = dir.path().join(format!("{page}.1"));
            let text = std::fs::read_to_string(&path).unwrap_or_else(|_| panic!("no page {page}"));
            assert!(text.contains(&format!(".SH NAME\n{} ", page.replace('-', r"\-"))), "{text}");
        }
        let main = std::fs::read_to_string(dir.path().join("venice-lab.1")).unwrap();
        assert!(main.contains(r"venice\-bench(1)"), "{main}");
        assert!(!dir.path().join("venice.1").exists() && !dir.path().join("venice-man.1").exists());
    }
}
