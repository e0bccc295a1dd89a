//! The experiments that come with Venice: their tables are those of `shipped/`, on any machine.

use std::fs;
use std::path::Path;
use std::process::Command;

use venice_worlds::catalogue;

/// Experiments that take hours, and how `make soak` runs them.
const LONG: [(&str, &[&str]); 1] = [("memcached-tail", &["--set", "application.requests=3000"])];

/// Runs an experiment and returns its tables, without the times that they took.
fn tables(name: &str, words: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_venice-lab"));
    command.args(["sim", "run", name, "--out", "out"]).args(words).current_dir(folder.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    without_times(&String::from_utf8(output.stdout).unwrap())
}

/// Takes the last column off the first table, which has the time of each point.
fn without_times(tables: &str) -> String {
    let mut is_first = true;
    let mut lines = String::new();
    for (number, line) in tables.lines().enumerate() {
        is_first &= number < 2 || !line.is_empty();
        let is_row = is_first && number > 1;
        let line = if is_row { line.rsplit_once("  ").unwrap().0.trim_end() } else { line };
        lines.extend([line.trim_end(), "\n"]);
    }
    lines
}

/// Compares tables with those of a file.
fn compare(file: &str, tables: &str) {
    let wanted = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/shipped").join(file);
    if fs::read_to_string(&wanted).unwrap_or_default() == tables {
        return;
    }
    let found = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
    fs::write(&found, tables).unwrap();
    let (wanted, found) = (wanted.display(), found.display());
    panic!("other tables: diff -u {wanted} {found}\nif they are meant: cp {found} {wanted}");
}

#[test]
fn small_variants_keep_their_tables() {
    for name in catalogue().names() {
        let alone = tables(name, &["--quick", "--threads", "1"]);
        compare(&format!("{name}-quick.txt"), &alone);
        assert_eq!(tables(name, &["--quick", "--threads", "2"]), alone, "{name} on two threads");
    }
}

#[test]
fn whole_variants_keep_their_tables() {
    let is_long = |name: &&str| LONG.iter().any(|(long, _)| long == name);
    for name in catalogue().names().filter(|name| !is_long(name)) {
        compare(&format!("{name}.txt"), &tables(name, &["--threads", "1"]));
    }
}

#[test]
#[ignore = "half an hour: a part of make soak"]
fn long_variants_keep_their_tables() {
    for (name, words) in LONG {
        compare(&format!("{name}.txt"), &tables(name, words));
    }
}

#[test]
fn tables_lose_their_times() {
    let tables = "title\n\nRTO  EVENTS   TOOK\n1ms     595  0.0 s\n\n4 of  4\n";
    assert_eq!(without_times(tables), "title\n\nRTO  EVENTS\n1ms     595\n\n4 of  4\n");
}
