//! Progress shown while a measurement runs: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// One phase of known length. Dropping it clears the bar, or prints the phase's duration.
#[derive(Debug)]
pub struct Phase {
    bar: ProgressBar,
    label: String,
    start: Instant,
    plain: bool,
}

impl Phase {
    /// Shows a phase of `steps` steps.
    pub fn new(label: impl Into<String>, steps: u64) -> Self {
        let label = label.into();
        let plain = !std::io::stderr().is_terminal();
        let target = if plain {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr_with_hz(8)
        };
        let bar = ProgressBar::with_draw_target(Some(steps), target)
            .with_style(style())
            .with_message(label.clone());
        Self { bar, label, start: Instant::now(), plain }
    }

    /// Shows a phase of unknown length.
    pub fn waiting(label: impl Into<String>) -> Self {
        let phase = Self::new(label, 0);
        phase.bar.set_style(spinner_style());
        phase.bar.enable_steady_tick(std::time::Duration::from_millis(120));
        phase
    }

    /// Advances the bar by `steps`.
    pub fn advance(&self, steps: u64) {
        self.bar.inc(steps);
    }
}

impl Drop for Phase {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        if self.plain {
            eprintln!("  {:<44} {:>7.1} s", self.label, self.start.elapsed().as_secs_f64());
        }
    }
}

/// Prints a line that stays, above the bars.
pub fn note(text: &str) {
    eprintln!("{text}");
}

// Returns the bar's style. The templates are constants; a wrong one falls back to indicatif's own.
fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg:44} {bar:32} {percent:>3} % {elapsed:>4}, {eta:>4} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn spinner_style() -> ProgressStyle {
    ProgressStyle::with_template("{msg:44} {spinner} {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
}
