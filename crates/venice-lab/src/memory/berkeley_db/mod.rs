//! Berkeley DB in memory (Venice paper, section 4.1): a small C program, compiled on demand against
//! the library's version on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::setup::Lacking;

const SOURCE: &str = include_str!("workload.c");

/// Compiles the program into `folder`; the inner error names what this machine lacks for it.
///
/// # Errors
/// When the folder cannot be written.
pub(super) fn build(folder: &Path) -> Result<Result<PathBuf, Lacking>> {
    compile("cc", SOURCE, folder)
}

fn compile(compiler: &str, source: &str, folder: &Path) -> Result<Result<PathBuf, Lacking>> {
    let (text, program) = (folder.join("berkeley-db.c"), folder.join("berkeley-db"));
    std::fs::write(&text, source).with_context(|| format!("cannot write {}", text.display()))?;
    let mut command = Command::new(compiler);
    command.arg("-O2").arg("-o").arg(&program).arg(&text).arg("-ldb");
    let said = match command.output() {
        Ok(output) if output.status.success() => return Ok(Ok(program)),
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => format!("{compiler}: {error}"),
    };
    let line = said.lines().find(|line| line.contains("error")).or(said.lines().next());
    Ok(Err(Lacking(format!(
        "Berkeley DB's library and a C compiler are needed (apt-get install libdb5.3-dev gcc \
         libc6-dev): {}",
        line.unwrap_or("no message from the compiler").trim()
    ))))
}

#[cfg(test)]
mod tests {
    use super::super::work::WorkReport;
    use super::*;

    fn report(program: &Path, folder: &Path) -> WorkReport {
        let json = folder.join("report.json");
        let mut command = Command::new(program);
        let status = command.args(["1000000", "1", "--json"]).arg(&json).status().unwrap();
        assert!(status.success(), "{status}");
        serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap()
    }

    #[test]
    fn digest_repeats_and_nothing_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let program = match build(folder.path()).unwrap() {
            Ok(program) => program,
            Err(Lacking(why)) => return eprintln!("SKIPPED: {why}"),
        };
        let reports = [(); 2].map(|()| report(&program, folder.path()));
        assert_eq!(reports[0].digests, reports[1].digests);
        assert_eq!((reports[0].digests.len(), reports[0].wrong), (2, 0));
        assert!(reports[0].operations == 50_000 && reports[0].resident_bytes > 1_000_000);
    }

    /// Builds a program that stores other words than it looks for.
    #[test]
    fn wrong_word_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let stores = "record value = record_of(key, 0);";
        assert_eq!(SOURCE.matches(stores).count(), 1);
        let source = SOURCE.replace(stores, "record value = record_of(key + (key == 7), 0);");
        let Ok(program) = compile("cc", &source, folder.path()).unwrap() else {
            return eprintln!("SKIPPED: no Berkeley DB here");
        };
        assert!(report(&program, folder.path()).wrong > 0);
    }

    #[test]
    fn missing_part_is_named_with_package() {
        let folder = tempfile::tempdir().unwrap();
        let source = SOURCE.replace("<db.h>", "<no_such_library.h>");
        for (compiler, source, missing) in [
            ("cc", &*source, "no_such_library.h"),
            ("no-such-compiler", SOURCE, "no-such-compiler"),
        ] {
            let Err(Lacking(why)) = compile(compiler, source, folder.path()).unwrap() else {
                panic!("{missing} is not there");
            };
            assert!(why.contains("apt-get install libdb5.3-dev") && why.contains(missing), "{why}");
        }
    }
}
