//! Mistakes with `--ranks`, which are found without an MPI.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a copy of the program that lies alone; returns its exit code and what it said.
fn refused(folder: &Path, words: &str) -> (Option<i32>, String) {
    let mut command = Command::new(folder.join("venice-lab"));
    command.current_dir(folder).args(["sim", "run"]).args(words.split_whitespace());
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.stdout.is_empty(), "{output:?}");
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn impossible_ranks_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    fs::copy(env!("CARGO_BIN_EXE_venice-lab"), temp.path().join("venice-lab")).unwrap();
    let many = "memcached-tail --quick --points nodes=500";
    for (words, why) in [
        (format!("{many} --ranks 0"), "a number of ranks, 1 to 1024"),
        (format!("{many} --ranks 100000"), "a number of ranks, 1 to 1024"),
        (format!("{many} --ranks two"), "a number of ranks, 1 to 1024"),
        (format!("{many} --ranks 2 --threads 2"), "cannot be used with"),
        (format!("{many} --ranks 1000"), "topology: 1000 ranks, and it has 16 parts"),
        ("incast-1g --quick --ranks 2".into(), "topology: it is one part"),
        ("rack-scale --quick --ranks 2".into(), "world: rack is one part"),
        ("venice-rack --quick --ranks 2".into(), "world: remote-access is one part"),
    ] {
        let (code, said) = refused(temp.path(), &words);
        assert_eq!(code, Some(2), "{words}: {said}");
        assert!(said.contains(why) && said.lines().count() == 1, "{words}: {said}");
    }
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1, "nothing was written");
}

#[test]
fn missing_program_is_named() {
    let temp = tempfile::tempdir().unwrap();
    fs::copy(env!("CARGO_BIN_EXE_venice-lab"), temp.path().join("venice-lab")).unwrap();
    let (code, said) = refused(temp.path(), "memcached-tail --quick --points nodes=500 --ranks 2");
    assert_eq!(code, Some(1), "{said}");
    // Without an MPI that comes first.
    assert!(said.contains("venice-mpi --features mpi") || said.contains("openmpi-bin"), "{said}");
}
