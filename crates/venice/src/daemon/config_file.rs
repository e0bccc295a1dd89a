//! TOML configuration of the daemons. A key that is not known is an error: a typing mistake must not
//! silently mean the default.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error};
use venice_wire::ByteSize;

use crate::failure::Usage;

/// Reads the file, or gives the empty configuration where none is named.
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
        format!("line {line}: {}", error.message())
    })
}

/// A size in a file: `lend = "512MiB"`, or a number of bytes.
pub fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ByteSize>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Text(String),
        Bytes(u64),
    }
    match Written::deserialize(deserializer)? {
        Written::Text(text) => super::lend_size(&text).map(Some).map_err(D::Error::custom),
        Written::Bytes(bytes) => {
            super::lend_size(&bytes.to_string()).map(Some).map_err(D::Error::custom)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Settings {
        #[serde(deserialize_with = "size")]
        lend: Option<ByteSize>,
        name: Option<String>,
    }

    #[test]
    fn sizes_are_text_or_numbers() {
        let settings: Settings = parse("lend = \"32MiB\"\nname = \"a\"").unwrap();
        assert_eq!(settings.lend, Some(ByteSize(32 << 20)));
        let settings: Settings = parse("lend = 16777216").unwrap();
        assert_eq!(settings.lend, Some(ByteSize(16 << 20)));
    }

    #[test]
    fn unknown_keys_are_named_with_their_line() {
        let error = parse::<Settings>("name = \"a\"\nlentt = 5\n").unwrap_err();
        assert!(error.contains("line 2") && error.contains("lentt"), "{error}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read::<Settings>(Some(Path::new("/nonexistent/a.toml"))).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/a.toml"), "{error}");
        assert_eq!(read::<Settings>(None).unwrap(), Settings::default());
    }
}
