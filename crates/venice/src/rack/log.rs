//! Last lines of a daemon's log, for the error message when it dies at its start.

use std::fs;

use super::run_dir::RunDir;
use venice_cli::terminal;

const LINES: usize = 8;

/// Shows the last lines that `name` wrote, unless an error is among them: [`last_error`] returns
/// that, and the command's own error contains it.
pub fn show_tail(dir: &RunDir, name: &str) {
    if dir.log_path(name).exists() && last_error(dir, name).is_none() {
        terminal::remark(tail(dir, name));
    }
}

/// Returns the last lines that `name` wrote, indented, or the reason why there are none.
pub fn tail(dir: &RunDir, name: &str) -> String {
    let path = dir.log_path(name);
    let text = match fs::read(&path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => return format!("  (cannot read its log {}: {error})", path.display()),
    };
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        return "  (it wrote nothing to its log)".to_string();
    }
    let first = lines.len().saturating_sub(LINES);
    lines[first..].iter().map(|line| format!("  {name}: {line}")).collect::<Vec<_>>().join("\n")
}

/// Returns the last error in the log of the daemon `name`, if any.
pub fn last_error(dir: &RunDir, name: &str) -> Option<String> {
    let bytes = fs::read(dir.log_path(name)).ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    text.lines().rev().find_map(|line| line.strip_prefix("venice: ")).map(str::to_string)
}
