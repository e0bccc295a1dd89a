//! Errors of commands: one line on stderr with the remedy, and its exit code.

use std::ffi::OsString;
use std::io::{self, Write};

use clap::error::{ContextKind, ContextValue};

use crate::terminal::of_stdout;

/// Exit code of a command that could not do its work.
pub const EXIT_FAILURE: i32 = 1;
/// Exit code of a usage error.
pub const EXIT_USAGE: i32 = 2;

/// Exit codes of a command that runs a program, if the program was not run or did not end by itself;
/// those of env(1), nohup(1) and timeout(1): the command failed, the program cannot be executed, there is
/// no such program.
pub const EXIT_RUNNER: i32 = 125;
const EXIT_NOT_EXECUTABLE: i32 = 126;
const EXIT_NOT_FOUND: i32 = 127;

/// The reason why a program cannot be started, for users.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// There is none of that name.
    #[error("program {0}")]
    NotFound(String),
    /// It cannot be executed.
    #[error("{0}")]
    NotExecutable(String),
}

/// Marks an error as the caller's mistake: bad flags, unparsable sizes, a bad configuration file.
/// Any other error is a failure.
#[derive(Debug)]
pub struct Usage(pub String);

/// Creates a usage error with the text `what`.
pub fn usage(what: impl Into<String>) -> anyhow::Error {
    Usage(what.into()).into()
}

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Prints `error` as one line and returns its exit code. A closed pipe (`venice nodes | head -1`)
/// is no error.
pub fn report(error: &anyhow::Error) -> i32 {
    if is_broken_pipe(error) {
        return 0;
    }
    // The message is lost when stderr itself is closed.
    let _ = writeln!(io::stderr(), "venice: {}", one_line(&format!("{error:#}")));
    if error.chain().any(|cause| cause.is::<Usage>()) { EXIT_USAGE } else { EXIT_FAILURE }
}

/// Prints `error` as [`report`] does; returns the exit code of a command that runs a program.
pub fn report_of_runner(error: &anyhow::Error) -> i32 {
    report(error);
    match error.chain().find_map(|cause| cause.downcast_ref::<ProgramError>()) {
        Some(ProgramError::NotFound(_)) => EXIT_NOT_FOUND,
        Some(ProgramError::NotExecutable(_)) => EXIT_NOT_EXECUTABLE,
        None => EXIT_RUNNER,
    }
}

/// Prints clap's message like every other error: help and version on stdout unchanged, a mistake as
/// one line. `unknown_flag` is a flag that clap took for a value.
pub fn report_clap(error: &clap::Error, unknown_flag: Option<&str>) -> i32 {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let shown = error.print().and_then(|()| io::stdout().flush()).map_err(of_stdout);
            shown.map_or_else(|error| report(&error.into()), |()| 0)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // The help goes to stderr, and is lost when that is closed.
            let _ = error.print();
            EXIT_USAGE
        }
        _ => {
            let said = match unknown_flag {
                Some(flag) => format!("unexpected argument '{flag}' found (see --help)"),
                None => named_by_variable(error, clap_line(&error.render().to_string())),
            };
            let _ = writeln!(io::stderr(), "venice: {said}");
            EXIT_USAGE
        }
    }
}

/// Names the environment variable of an invalid value, instead of a flag that was not given.
fn named_by_variable(error: &clap::Error, said: String) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let (Some(arg), Some(value)) = (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue))
    else {
        return said;
    };
    let flag = arg.split([' ', '=']).next().unwrap_or(arg);
    if std::env::args_os().any(|word| word.to_string_lossy().starts_with(flag)) {
        return said;
    }
    let is_it = |(name, its): &(OsString, OsString)| {
        name.to_string_lossy().starts_with("VENICE_") && its == value
    };
    match std::env::vars_os().find(is_it) {
        Some((name, _)) => {
            said.replace(&format!("for '{arg}'"), &format!("in {}", name.to_string_lossy()))
        }
        None => said,
    }
}

/// Folds clap's paragraphs (error, tip, usage, hint) into one line without the usage.
fn clap_line(rendered: &str) -> String {
    let text = rendered.strip_prefix("error: ").unwrap_or(rendered);
    let paragraphs = text.split("\n\n").map(one_line).filter(|paragraph| {
        !paragraph.is_empty()
            && !paragraph.starts_with("Usage:")
            && !paragraph.starts_with("For more information")
    });
    let said = paragraphs.collect::<Vec<_>>().join("; ");
    // The standard library's words.
    let said = said.replace("invalid float literal", "not a number");
    let said = said.replace("invalid digit found in string", "not a whole number");
    format!("{said} (see --help)")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_error_is_one_line() {
        let rendered = "error: unexpected argument '--frob' found\n\n  tip: try '--from'\n\nUsage: \
                        venice up [OPTIONS]\n\nFor more information, try '--help'.\n";
        assert_eq!(
            clap_line(rendered),
            "unexpected argument '--frob' found; tip: try '--from' (see --help)"
        );
    }

    #[test]
    fn usage_in_a_chain_exits_with_two() {
        let error = anyhow::Error::new(Usage("no".into())).context("reading a.toml");
        assert_eq!(report(&error), EXIT_USAGE);
        assert_eq!(report(&anyhow::anyhow!("gone")), EXIT_FAILURE);
    }

    #[test]
    fn runners_codes_name_the_cause() {
        let missing = anyhow::Error::new(ProgramError::NotFound("x not found".into()));
        assert_eq!(report_of_runner(&missing.context("starting")), EXIT_NOT_FOUND);
        let data = ProgramError::NotExecutable("x is not executable".into());
        assert_eq!(report_of_runner(&data.into()), EXIT_NOT_EXECUTABLE);
        assert_eq!(report_of_runner(&Usage("no".into()).into()), EXIT_RUNNER);
    }

    #[test]
    fn closed_reader_is_no_error() {
        let error = anyhow::Error::new(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(report(&error.context("writing the table")), 0);
    }
}
