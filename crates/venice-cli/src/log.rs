//! The log of daemons, on stderr.

use std::ffi::OsStr;
use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::failure::usage;

/// Environment variable with the log's filter, in tracing's syntax: `info`, `venice_agent=debug`.
pub const LOG_VARIABLE: &str = "VENICE_LOG";

/// Sends the log to stderr. systemd's journal and the logs of a local rack take it from there.
///
/// # Errors
/// A usage error if [`LOG_VARIABLE`] is invalid.
pub fn start_log() -> anyhow::Result<()> {
    let filter = filter(std::env::var_os(LOG_VARIABLE).as_deref())?;
    let colour = std::io::stderr().is_terminal();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour);
    // A second daemon in one process exists only in tests.
    let _ = subscriber.try_init();
    Ok(())
}

/// Checks [`LOG_VARIABLE`] for a command that passes it on to daemons.
///
/// # Errors
/// A usage error if it is invalid.
pub fn check() -> anyhow::Result<()> {
    filter(std::env::var_os(LOG_VARIABLE).as_deref()).map(drop)
}

fn filter(text: Option<&OsStr>) -> anyhow::Result<EnvFilter> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(EnvFilter::new("info"));
    };
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
    if std::env::var_os(LOG_VARIABLE).is_some() {
        start_log()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Usage;

    #[test]
    fn invalid_filter_is_usage_error() {
        for text in ["", "info", "venice_agent=debug", "warn,venice_fabric=trace"] {
            filter(Some(OsStr::new(text))).unwrap();
        }
        filter(None).unwrap();
        for text in ["][", "foo=bar=baz"] {
            let error = filter(Some(OsStr::new(text))).unwrap_err();
            assert!(error.is::<Usage>() && error.to_string().contains(text), "{error}");
        }
    }
}
