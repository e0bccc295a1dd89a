//! The program to run: its path, and whether the shim can serve it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use venice_cli::failure::{ProgramError, usage};

/// The loader of the C library the shim is built for.
const LOADER: &str = "ld-linux-x86-64.so.2";
/// Most nested `#!` interpreters: the kernel's own bound.
const MOST_INTERPRETERS: usize = 4;

/// The error of a program that only the kernel can page.
#[derive(Debug, thiserror::Error)]
#[error("{what}: use --mode swap (the kernel's own paging to borrowed memory), or {other}")]
pub struct NoShim {
    /// The program, and the reason.
    pub what: String,
    other: &'static str,
}

/// Finds the program as a shell would.
pub fn find(name: &OsStr) -> anyhow::Result<PathBuf> {
    let shown = name.to_string_lossy();
    if shown.is_empty() {
        return Err(usage("the program's name is empty: give a program after --"));
    }
    if shown.contains('/') {
        let path = PathBuf::from(name);
        if !path.exists() {
            return Err(ProgramError::NotFound(format!("{shown} not found: check the path")).into());
        }
        let unfit = |why: &str| Err(ProgramError::NotExecutable(format!("{shown} {why}")).into());
        if path.is_dir() {
            return unfit("is a directory: name a program");
        }
        if !is_executable(&path) {
            return unfit("is not executable: check its permissions");
        }
        return Ok(path);
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|p| is_executable(p));
    if found.is_none() && shown.starts_with('-') {
        return Err(usage(format!(
            "there is no option {shown}, and no program of that name: see `venice run --help`"
        )));
    }
    let missing = || format!("{shown} not found in PATH: install it, or give its path");
    found.ok_or_else(|| ProgramError::NotFound(missing()).into())
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Checks that the shim can be loaded into the program, or into its interpreter.
pub fn check(program: &Path) -> anyhow::Result<()> {
    let mut path = program.to_path_buf();
    for _ in 0..MOST_INTERPRETERS {
        let mut head = Vec::new();
        File::open(&path)
            .and_then(|file| file.take(64 * 1024).read_to_end(&mut head))
            .with_context(|| format!("reading {}", path.display()))?;
        match script_interpreter(&head) {
            Some(interpreter) => path = interpreter,
            None => return check_elf(&path, &head),
        }
    }
    bail!("{}: too many nested #! interpreters; run the interpreter directly", program.display())
}

fn script_interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|&b| b == b'\n').next()?;
    let word = std::str::from_utf8(line).ok()?.split_whitespace().next()?;
    Some(PathBuf::from(word))
}

fn check_elf(path: &Path, head: &[u8]) -> anyhow::Result<()> {
    let shown = path.display();
    const ELF64_LITTLE: &[u8] = b"\x7fELF\x02\x01";
    if !head.starts_with(ELF64_LITTLE) {
        let why = "is neither a 64-bit ELF program nor a script: Venice cannot run it";
        return Err(ProgramError::NotExecutable(format!("{shown} {why}")).into());
    }
    match loader(head) {
        Some(loader) if loader.ends_with(LOADER) => Ok(()),
        Some(loader) => Err(NoShim {
            what: format!(
                "{shown} uses the loader {loader}, but the shim needs glibc's ({LOADER})"
            ),
            other: "a build for glibc",
        }
        .into()),
        None => Err(NoShim {
            what: format!("{shown} is a static program, into which the shim cannot be loaded"),
            other: "a dynamic build",
        }
        .into()),
    }
}

/// Returns the path in the program header `PT_INTERP` (`elf(5)`); `None` for a static program.
fn loader(head: &[u8]) -> Option<String> {
    const PT_INTERP: u64 = 3;
    let number = |at: usize, len: usize| {
        let bytes = head.get(at..at + len)?;
        Some(bytes.iter().rev().fold(0u64, |value, &byte| value << 8 | byte as u64))
    };
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for index in 0..count {
        let header = usize::try_from(table + index * size).ok()?;
        if number(header, 4)? == PT_INTERP {
            let start = number(header + 8, 8)? as usize;
            let len = number(header + 32, 8)? as usize;
            let text = head.get(start..start.checked_add(len)?)?;
            let text = text.strip_suffix(b"\0").unwrap_or(text);
            return Some(String::from_utf8_lossy(text).into_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_yields_its_interpreter() {
        assert_eq!(script_interpreter(b"#!/bin/sh -e\nls\n"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(script_interpreter(b"\x7fELF"), None);
    }

    #[test]
    fn truncated_elf_has_no_loader() {
        let me = std::env::current_exe().unwrap();
        check(&me).unwrap();
        let head = std::fs::read(&me).unwrap();
        assert!(loader(&head).is_some());
        for len in [0, 4, 63, 64, 100] {
            assert_eq!(loader(&head[..len.min(head.len())]), None);
        }
    }

    #[test]
    fn missing_program_is_named() {
        let error = find(OsStr::new("no-such-program")).unwrap_err().to_string();
        assert!(error.contains("no-such-program") && error.contains("PATH"), "{error}");
    }
}
