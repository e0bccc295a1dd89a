//! The user's folder of files that can be made again.

use std::path::PathBuf;

/// Returns `$XDG_CACHE_HOME/venice`, or `~/.cache/venice`; `None` without a home.
pub(crate) fn folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = variable("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")));
    Some(cache?.join("venice"))
}
