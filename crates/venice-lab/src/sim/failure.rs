//! A run that failed: its replay command, and the smallest scenario found that still fails.

use std::path::Path;

use anyhow::Context;

use venice_cli::failure::EXIT_FAILURE;
use venice_cli::terminal;

/// Limit of the runs spent on minimising a failure.
pub(super) const MINIMISE_TRIES: u32 = 300;

/// The smallest scenario that still fails.
pub(super) struct Smallest {
    pub(super) toml: String,
    /// A line for each violation.
    pub(super) violations: Vec<String>,
}

/// Prints and, with `--save`, writes the scenario that `minimise` makes of a failed one of `venice
/// sim KIND`.
pub(super) fn report_failure(
    (kind, seed): (&str, u64),
    save: Option<&Path>,
    minimise: impl FnOnce() -> Option<Smallest>,
) -> anyhow::Result<i32> {
    terminal::remark(format!("replay it with: {}", replay_command(seed)));
    terminal::remark("minimising the scenario ...");
    let Some(Smallest { toml, violations }) = minimise() else {
        return Ok(EXIT_FAILURE);
    };
    violations.into_iter().for_each(terminal::remark);
    match save {
        Some(path) => {
            std::fs::write(path, toml).with_context(|| format!("cannot write {path:?}"))?;
            terminal::remark(format!(
                "smallest scenario that still fails: venice sim {kind} --scenario {}",
                path.display()
            ));
        }
        None => terminal::remark(format!(
            "smallest scenario that still fails (write it to a file with --save):\n{toml}"
        )),
    }
    Ok(EXIT_FAILURE)
}

/// Returns the command that runs a seed again.
pub(super) fn replay_command(seed: u64) -> String {
    let mut words: Vec<String> = std::env::args().collect();
    words[0] = "venice".to_string();
    let mut kept = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seed" | "--seeds" => drop(words.next()),
            "--keep-going" | "--json" => {}
            _ if word.starts_with("--seed=") || word.starts_with("--seeds=") => {}
            _ => kept.push(word),
        }
    }
    format!("{} --seed {seed}", kept.join(" "))
}
