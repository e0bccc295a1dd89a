//! What a program imports from the C library, read before it runs: the functions by which it could
//! start threads, processes or further code.
//!
//! The loader lists the libraries (`ld.so --list` maps them and runs nothing), and their dynamic
//! symbol tables name what they import (elf(5)). The C library's own parts are not looked at: what
//! they do by themselves is known.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Functions by which a program starts threads, forks, runs another program, loads further code,
/// makes system calls of its own, or makes reserved memory usable (which a window does not place).
const STARTERS: [&str; 39] = [
    "pthread_create",
    "thrd_create",
    "aio_read",
    "aio_write",
    "aio_fsync",
    "lio_listio",
    "timer_create",
    "mq_notify",
    "getaddrinfo_a",
    "fork",
    "_Fork",
    "__fork",
    "vfork",
    "__vfork",
    "clone",
    "__clone",
    "forkpty",
    "daemon",
    "posix_spawn",
    "posix_spawnp",
    "execve",
    "execv",
    "execvp",
    "execvpe",
    "execl",
    "execlp",
    "execle",
    "fexecve",
    "execveat",
    "system",
    "popen",
    "_IO_popen",
    "wordexp",
    "dlopen",
    "dlmopen",
    "__libc_dlopen_mode",
    "syscall",
    "mprotect",
    "pkey_mprotect",
];

/// Parts of the C library (glibc), up to the version.
const C_LIBRARY: [&str; 10] = [
    "ld-linux-x86-64.so",
    "libc.so",
    "libm.so",
    "libmvec.so",
    "libpthread.so",
    "libdl.so",
    "librt.so",
    "libresolv.so",
    "libutil.so",
    "linux-vdso.so",
];

/// Returns why the program may start a thread or a process, for users; `None`: it does neither.
pub fn may_start(program: &Path) -> Option<String> {
    for variable in ["LD_PRELOAD", "LD_AUDIT"] {
        if std::env::var_os(variable).is_some_and(|value| !value.is_empty()) {
            return Some(format!("{variable} loads further code"));
        }
    }
    let Ok(bytes) = std::fs::read(program) else {
        return Some(format!("{} cannot be read", program.display()));
    };
    if !bytes.starts_with(b"\x7fELF") {
        return Some("a script's interpreter may start processes".to_owned());
    }
    let Some(libraries) = libraries(program) else {
        return Some("the loader does not list its libraries".to_owned());
    };
    let files = std::iter::once(program.to_path_buf()).chain(libraries);
    files.filter(|file| !is_c_library(file)).find_map(|file| starter_in(&file))
}

/// Returns the function of [`STARTERS`] that a file imports, for users.
fn starter_in(file: &Path) -> Option<String> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let Some(imports) = std::fs::read(file).ok().and_then(|bytes| imports(&bytes)) else {
        return Some(format!("{name} does not tell what it imports"));
    };
    let starter = imports.iter().find(|import| STARTERS.contains(&import.as_str()))?;
    Some(format!("{name} imports {starter}"))
}

fn is_c_library(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let is_versioned = |rest: &str| rest.is_empty() || rest.starts_with('.');
    C_LIBRARY.iter().any(|part| name.strip_prefix(part).is_some_and(is_versioned))
}

/// Returns the libraries that the loader finds for a program; `None`: it finds not all of them.
fn libraries(program: &Path) -> Option<Vec<PathBuf>> {
    let listed = Command::new("/lib64/ld-linux-x86-64.so.2").arg("--list").arg(program).output();
    let listed = listed.ok().filter(|listed| listed.status.success())?;
    parse_list(std::str::from_utf8(&listed.stdout).ok()?)
}

/// Parses lines like `libz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f...)`.
fn parse_list(text: &str) -> Option<Vec<PathBuf>> {
    let file = |line: &str| -> Option<PathBuf> {
        let found = line.split_once(" => ").map_or(line, |(_, found)| found);
        let (path, _) = found.trim().rsplit_once(" (0x")?;
        Some(PathBuf::from(path))
    };
    text.lines().map(file).collect()
}

/// Returns the undefined dynamic symbols of an ELF file; `None` if it has no table of them.
fn imports(elf: &[u8]) -> Option<Vec<String>> {
    const SHT_DYNSYM: u64 = 11;
    const SYMBOL_BYTES: usize = 24;
    let (table, size, count) = (number(elf, 40, 8)?, number(elf, 58, 2)?, number(elf, 60, 2)?);
    let header = |index: u64| usize::try_from(table.checked_add(index.checked_mul(size)?)?).ok();
    let body = |index: u64| {
        let at = header(index)?;
        let start = usize::try_from(number(elf, at + 24, 8)?).ok()?;
        let length = usize::try_from(number(elf, at + 32, 8)?).ok()?;
        elf.get(start..start.checked_add(length)?)
    };
    let is_symbols =
        |index: &u64| header(*index).and_then(|at| number(elf, at + 4, 4)) == Some(SHT_DYNSYM);
    let index = (0..count).find(is_symbols)?;
    let strings = body(number(elf, header(index)? + 40, 4)?)?;
    let symbols = body(index)?.chunks_exact(SYMBOL_BYTES);
    let undefined = symbols.filter(|symbol| number(symbol, 6, 2) == Some(0));
    let name = |symbol: &[u8]| {
        let text = strings.get(number(symbol, 0, 4)? as usize..)?;
        Some(String::from_utf8_lossy(text.split(|&byte| byte == 0).next()?).into_owned())
    };
    undefined.map(name).collect()
}

/// Returns the little-endian number of `length` bytes at `at`.
fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(length)?)?;
    Some(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_seen_beforehand() {
        let me = std::env::current_exe().unwrap();
        let why = may_start(&me).unwrap();
        assert!(why.contains(" imports "), "{why}");
        let imports = imports(&std::fs::read(&me).unwrap()).unwrap();
        assert!(imports.iter().any(|name| name == "pthread_create"), "{imports:?}");
    }

    #[test]
    fn loader_lists_are_parsed() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibz.so.1 => /lib/libz.so.1 (0x00007f00)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f01)\n";
        let files = parse_list(text).unwrap();
        assert_eq!(files[1], PathBuf::from("/lib/libz.so.1"));
        assert!(is_c_library(&files[0]) && !is_c_library(&files[1]) && is_c_library(&files[2]));
        assert_eq!(parse_list("\tlibz.so.1 => not found\n"), None);
    }

    #[test]
    fn truncated_elf_is_unknown() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(imports(&bytes[..bytes.len().min(100)]), None);
        assert!(starter_in(Path::new("/nonexistent")).is_some());
    }
}
