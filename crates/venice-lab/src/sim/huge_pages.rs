//! Huge pages for the heap of a simulated world.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use venice_cli::terminal;

/// The variable of glibc's settings, which it reads as a program starts.
const VARIABLE: &str = "GLIBC_TUNABLES";
/// The setting by which its heap asks for huge pages (glibc 2.35; `madvise(2)`: `MADV_HUGEPAGE`).
const SETTING: &str = "glibc.malloc.hugetlb";

/// Starts this program anew with its heap in huge pages, once: a world of thousands of hosts is read at
/// random, and its address translations take a fourth of the time otherwise.
pub(crate) fn use_for_heap() {
    let Some((variable, value)) = for_heap() else { return };
    let mut words = env::args_os();
    let (Ok(program), Some(name)) = (env::current_exe(), words.next()) else { return };
    let error = Command::new(program).arg0(name).args(words).env(variable, value).exec();
    terminal::remark(format!("no huge pages: cannot start anew: {error}"));
}

/// Returns the variable that gives a program such a heap, unless this one has it.
pub(crate) fn for_heap() -> Option<(&'static str, OsString)> {
    with_huge_pages(env::var_os(VARIABLE)).map(|value| (VARIABLE, value))
}

/// Returns the settings with huge pages; `None` if they say something of them already.
fn with_huge_pages(before: Option<OsString>) -> Option<OsString> {
    let mut value = before.unwrap_or_default();
    if value.to_string_lossy().contains(SETTING) {
        return None;
    }
    if !value.is_empty() {
        value.push(":");
    }
    value.push(format!("{SETTING}=1"));
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_kept() {
        let set = |before: Option<&str>| with_huge_pages(before.map(OsString::from));
        assert_eq!(set(None).unwrap(), "glibc.malloc.hugetlb=1");
        let others = set(Some("glibc.malloc.check=1")).unwrap();
        assert_eq!(others, "glibc.malloc.check=1:glibc.malloc.hugetlb=1");
        assert_eq!(set(Some("glibc.malloc.hugetlb=0")), None);
    }
}
