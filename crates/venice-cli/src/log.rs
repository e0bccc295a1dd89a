//! The log of daemons: as text or JSON on stderr, or with fields in systemd's journal.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use anyhow::Context;
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::failure::usage;
use crate::variables::variable;

/// Environment variable with the log's filter, in tracing's syntax: `info`, `venice_agent=debug`.
pub const LOG_VARIABLE: &str = "VENICE_LOG";
/// Environment variable with the log's format: `text`, `json`, `journald`.
pub const FORMAT_VARIABLE: &str = "VENICE_LOG_FORMAT";
/// Set by systemd to device and inode of the journal's stream, `DEVICE:INODE`, where stdout or stderr
/// is it (systemd.exec(5)).
const STREAM_VARIABLE: &str = "JOURNAL_STREAM";
/// Prefix of the journal's fields: `VENICE_NODE`.
const FIELD_PREFIX: &str = "VENICE";

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line of text, on stderr
    Text,
    /// A JSON object a line, on stderr
    Json,
    /// An entry of systemd's journal, with fields like VENICE_NODE
    Journald,
}

/// The option of daemons for their log.
#[derive(Args, Debug, Clone, Default)]
pub struct LogArgs {
    /// Form of the log [default: journald where stderr is the journal, else text]
    #[arg(long, value_enum, value_name = "text|json|journald", env = FORMAT_VARIABLE)]
    #[arg(hide_possible_values = true)]
    log_format: Option<LogFormat>,
}

impl LogArgs {
    /// Starts the log.
    ///
    /// # Errors
    /// A usage error if [`LOG_VARIABLE`] is invalid; an error if the journal was chosen and cannot
    /// be reached.
    pub fn start(&self) -> anyhow::Result<()> {
        start(self.log_format)
    }
}

/// Starts the log of a process without [`LogArgs`], in the format of [`FORMAT_VARIABLE`].
///
/// # Errors
/// A usage error if a variable is invalid; the errors of [`LogArgs::start`].
pub fn start_log() -> anyhow::Result<()> {
    start(format_of(variable(FORMAT_VARIABLE).as_deref())?)
}

fn start(format: Option<LogFormat>) -> anyhow::Result<()> {
    let filter = filter(variable(LOG_VARIABLE).as_deref())?;
    let lines = || tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    // A second daemon in one process exists only in tests.
    let _ = match format.unwrap_or_else(default_format) {
        LogFormat::Text => registry.with(lines().with_ansi(io::stderr().is_terminal())).try_init(),
        LogFormat::Json => registry.with(lines().json().with_span_list(false)).try_init(),
        LogFormat::Journald => {
            let journal = tracing_journald::layer().context(
                "--log-format journald: the journal cannot be reached (systemd-journald, \
                 /run/systemd/journal/socket): use text or json",
            )?;
            registry.with(journal.with_field_prefix(Some(FIELD_PREFIX.to_owned()))).try_init()
        }
    };
    Ok(())
}

/// Returns the journal's own format where stderr is the journal.
fn default_format() -> LogFormat {
    match std::env::var(STREAM_VARIABLE).is_ok_and(|stream| is_stderr(&stream)) {
        true => LogFormat::Journald,
        false => LogFormat::Text,
    }
}

/// True if `DEVICE:INODE` is stderr's. The variable may be inherited by processes whose stderr is
/// another file.
fn is_stderr(stream: &str) -> bool {
    let stderr = io::stderr().as_fd().try_clone_to_owned().map(File::from);
    let Ok(found) = stderr.and_then(|file| file.metadata()) else { return false };
    stream == format!("{}:{}", found.dev(), found.ino())
}

/// Checks the log's variables for a command that passes them on to daemons.
///
/// # Errors
/// A usage error if one is invalid.
pub fn check() -> anyhow::Result<()> {
    format_of(variable(FORMAT_VARIABLE).as_deref())?;
    filter(variable(LOG_VARIABLE).as_deref()).map(drop)
}

fn format_of(text: Option<&OsStr>) -> anyhow::Result<Option<LogFormat>> {
    let Some(text) = text else { return Ok(None) };
    match LogFormat::from_str(&text.to_string_lossy(), false) {
        Ok(format) => Ok(Some(format)),
        Err(_) => {
            Err(usage(format!("{FORMAT_VARIABLE} is {text:?}: write text, json or journald")))
        }
    }
}

fn filter(text: Option<&OsStr>) -> anyhow::Result<EnvFilter> {
    let Some(text) = text else { return Ok(EnvFilter::new("info")) };
    let parsed = EnvFilter::try_new(text.to_string_lossy());
    parsed.map_err(|why| {
        usage(format!(
            "{LOG_VARIABLE} is {text:?}: {why}: write for example info or venice_agent=debug"
        ))
    })
}

/// Starts the log like [`start_log`] if [`LOG_VARIABLE`] is set, for commands without a log by
/// default.
///
/// # Errors
/// The errors of [`start_log`].
pub fn start_log_if_asked() -> anyhow::Result<()> {
    if variable(LOG_VARIABLE).is_some() {
        start_log()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Usage;

    #[test]
    fn invalid_format_is_usage_error() {
        let of = |text: &str| format_of(Some(OsStr::new(text)));
        assert_eq!(of("json").unwrap(), Some(LogFormat::Json));
        assert_eq!(format_of(None).unwrap(), None);
        let error = of("xml").unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("journald"), "{error}");
    }

    #[test]
    fn foreign_stream_is_not_stderr() {
        assert!(!is_stderr("0:1") && !is_stderr(""));
        let file = io::stderr().as_fd().try_clone_to_owned().map(File::from).unwrap();
        let found = file.metadata().unwrap();
        assert!(is_stderr(&format!("{}:{}", found.dev(), found.ino())));
    }

    #[test]
    fn invalid_filter_is_usage_error() {
        for text in ["info", "venice_agent=debug", "warn,venice_fabric=trace"] {
            filter(Some(OsStr::new(text))).unwrap();
        }
        filter(None).unwrap();
        for text in ["][", "foo=bar=baz"] {
            let error = filter(Some(OsStr::new(text))).unwrap_err();
            assert!(error.is::<Usage>() && error.to_string().contains(text), "{error}");
        }
    }
}
