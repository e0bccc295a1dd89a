//! Arguments shared by several benchmarks, and value parsers missing in clap.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use rustix::fs::{Access, access};

/// Output of a report besides the terminal.
#[derive(Debug, Clone, Default, Args)]
pub struct OutputArgs {
    /// Write the figures to this file as JSON (`-` is standard output).
    #[arg(long, value_name = "FILE", value_parser = output_file())]
    pub json: Option<PathBuf>,

    /// Write the plots as SVG, and a page with tables and plots, into this folder.
    #[arg(long, value_name = "DIR", value_parser = output_folder())]
    pub plots: Option<PathBuf>,
}

/// Parses the path of a file to be written, `-` being standard output. Refuses one that cannot be
/// written, before the measurement; leaves no new file behind.
pub fn output_file() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(|text: OsString| {
        let path = PathBuf::from(text);
        let checked = match path == Path::new("-") {
            true => Ok(()),
            false => check_file(&path),
        };
        checked.map(|()| path)
    })
}

/// Parses the path of a folder for output; its parent must exist. Refuses one that cannot be written,
/// before the measurement; leaves no new folder behind.
pub fn output_folder() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(|text: OsString| {
        let path = PathBuf::from(text);
        check_folder(&path).map(|()| path)
    })
}

fn check_file(path: &Path) -> Result<(), String> {
    if path.is_dir() {
        return Err("it is a directory".to_owned());
    }
    // A file that exists is not opened: the other end of a FIFO would notice.
    let checked = match path.exists() {
        true => access(path, Access::WRITE_OK).map_err(io::Error::from),
        false => File::create_new(path).and_then(|_| fs::remove_file(path)),
    };
    checked.map_err(|error| explain(path, &error))
}

fn check_folder(path: &Path) -> Result<(), String> {
    let checked = match fs::metadata(path) {
        Ok(found) if !found.is_dir() => return Err("it is no directory".to_owned()),
        Ok(_) => access(path, Access::WRITE_OK | Access::EXEC_OK).map_err(io::Error::from),
        Err(_) => fs::create_dir(path).and_then(|()| fs::remove_dir(path)),
    };
    checked.map_err(|error| explain(path, &error))
}

fn explain(path: &Path, error: &io::Error) -> String {
    match path.parent() {
        Some(parent) if error.kind() == io::ErrorKind::NotFound => {
            format!("no such directory: {}: make it (mkdir -p)", parent.display())
        }
        _ => format!("cannot be written: {error}"),
    }
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
    fn unwritable_output_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let (file, folder) = (temp.path().join("out.json"), temp.path().join("plots"));
        assert_eq!(check_file(&file), Ok(()));
        assert_eq!(check_folder(&folder), Ok(()));
        assert!(!file.exists() && !folder.exists(), "a check leaves nothing behind");
        fs::write(&file, "kept").unwrap();
        assert_eq!(check_file(&file), Ok(()));
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
        assert!(check_folder(&file).unwrap_err().contains("no directory"));
        assert!(check_file(temp.path()).unwrap_err().contains("a directory"));
        let refused = [check_file(&folder.join("x")), check_folder(&folder.join("x"))];
        assert!(refused.iter().all(|it| it.as_ref().unwrap_err().contains("make it")));
    }

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
