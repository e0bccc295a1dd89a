//! SIGINT, SIGTERM and SIGHUP, turned into an error that unwinds the guards.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Catches SIGINT, SIGTERM and SIGHUP, which no longer end the process; [`check`] reports them.
pub fn catch_signals() -> Result<()> {
    let flag = INTERRUPTED.get_or_init(|| Arc::new(AtomicBool::new(false)));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(flag))
            .context("cannot catch Ctrl-C: clean-up would be impossible")?;
    }
    Ok(())
}

/// Checks for an interrupt. Every wait and loop calls this often.
///
/// # Errors
/// Once a signal requested the end of this process.
pub fn check() -> Result<()> {
    if INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
        bail!("interrupted: everything that was set up has been removed");
    }
    Ok(())
}

/// A timeout of a wait.
#[derive(Debug)]
pub struct Late {
    what: String,
    limit: Duration,
}

impl std::fmt::Display for Late {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} did not happen within {} s", self.what, self.limit.as_secs())
    }
}

impl std::error::Error for Late {}

/// Calls `done` every few milliseconds until it has an answer.
///
/// # Errors
/// When `done` fails, on an interrupt, and after `limit` ([`Late`], naming `what`).
pub fn wait_until<T>(
    what: &str,
    limit: Duration,
    mut done: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = std::time::Instant::now();
    loop {
        if let Some(answer) = done()? {
            return Ok(answer);
        }
        check()?;
        if start.elapsed() > limit {
            return Err(Late { what: what.to_owned(), limit }.into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
