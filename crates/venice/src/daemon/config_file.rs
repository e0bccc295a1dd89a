//! TOML configuration of the daemons. Unknown keys are errors: a mistyped key must not silently
//! mean the default.

use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;

use venice_cli::failure::Usage;

/// Reads the file, or returns the default configuration without one.
pub fn read<T: DeserializeOwned + Default>(path: Option<&Path>) -> anyhow::Result<T> {
    let Some(path) = path else { return Ok(T::default()) };
    let text = fs::read_to_string(path)
        .map_err(|error| Usage(format!("configuration {}: {error}", path.display())))?;
    parse(&text).map_err(|error| Usage(format!("configuration {}: {error}", path.display())).into())
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count() + 1;
        let written = text.lines().nth(line - 1).unwrap_or_default().trim();
        format!("line {line} ({written}): {}", error.message())
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Settings {
        name: Option<String>,
    }

    #[test]
    fn unknown_key_error_names_line() {
        let error = parse::<Settings>("name = \"a\"\nlentt = 5\n").unwrap_err();
        assert!(error.contains("line 2") && error.contains("lentt"), "{error}");
    }

    #[test]
    fn missing_file_is_named() {
        let error = read::<Settings>(Some(Path::new("/nonexistent/a.toml"))).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/a.toml"), "{error}");
        assert_eq!(read::<Settings>(None).unwrap(), Settings::default());
    }
}
