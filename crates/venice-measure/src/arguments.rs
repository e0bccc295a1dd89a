//! Arguments shared by several benchmarks, and value parsers missing in clap.

use std::path::PathBuf;

use clap::Args;

/// Output of a report besides the terminal.
#[derive(Debug, Clone, Default, Args)]
pub struct OutputArgs {
    /// Write the figures to this file as JSON (`-` is standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write the plots as SVG, and a page with tables and plots, into this folder.
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
}

/// Parses a number above 0 of reasonable size.
pub fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 1e6 => Ok(value),
        _ => Err("expected a number greater than 0".to_owned()),
    }
}

/// Parses a share above 0 and at most 1.
pub fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 1.0 => Ok(value),
        _ => Err("expected a share above 0 and not above 1, for example 0.25".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sensible_numbers_pass() {
        assert_eq!(positive("2.5"), Ok(2.5));
        assert_eq!(share("1"), Ok(1.0));
        for text in ["0", "-1", "NaN", "inf", "1e300", "x", ""] {
            assert!(positive(text).is_err(), "{text}");
            assert!(share(text).is_err(), "{text}");
        }
        assert!(share("1.01").is_err());
    }
}
