//! The shim library that `venice run` loads into programs.

use std::path::{Path, PathBuf};

use super::{Finding, Mode};

const LIBRARY: &str = "libvenice_preload.so";

/// Row about the shim library.
pub fn examine() -> Vec<Finding> {
    let places = places();
    let found = places.iter().find(|place| place.is_file());
    let finding = match found {
        Some(place) => Finding::ok("shim library", place.display().to_string()),
        None => Finding::missing(
            "shim library",
            format!("no {LIBRARY} in {}", list(&places)),
            "install it beside the venice binary, or set VENICE_SHIM",
        ),
    };
    vec![finding.needed_by(&[Mode::Paged, Mode::Window])]
}

/// Returns the candidate paths: the one in `VENICE_SHIM`, else those beside the binary.
pub fn places() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os("VENICE_SHIM") {
        return vec![PathBuf::from(named)];
    }
    let exe = std::env::current_exe().ok();
    let bin = exe.as_deref().and_then(Path::parent).unwrap_or(Path::new("/usr/bin"));
    vec![
        bin.join(LIBRARY),
        bin.join("../lib/venice").join(LIBRARY),
        bin.join("../lib").join(LIBRARY),
    ]
}

fn list(places: &[PathBuf]) -> String {
    places.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
}
