//! The listing of a program that has borrowed memory in the run directory, and changes of its
//! budgets.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::{Rack as Daemons, eventually};
use venice_client::{Error, Hint, MemoryOptions, PagedMemory, Pattern, PortKind, Rack};
use venice_recipient::runs::{Answer, Question, RunRow, RunsDir, conversation, files};
use venice_wire::SLAB_BYTES;

const MIB: u64 = 1 << 20;
/// The variable with the run directory of a test's process.
const RUN_DIR: &str = "VENICE_RUN_DIR";
/// Set in a process of its own.
const OWN_PROCESS: &str = "VENICE_TEST_IN_ITS_OWN_PROCESS";

/// Runs the test `name` once more, in a process with its own run directory; returns true in that
/// process.
fn in_own_process(name: &str) -> bool {
    if std::env::var_os(OWN_PROCESS).is_some() {
        return true;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", &format!("listed::{name}"), "--nocapture"]);
    test.env(RUN_DIR, folder.path()).env(OWN_PROCESS, "1").env_remove("VENICE_MONITOR");
    let output = test.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    print!("{}", String::from_utf8_lossy(&said));
    false
}

fn run_dir() -> std::path::PathBuf {
    std::env::var_os(RUN_DIR).unwrap().into()
}

/// Sends a request to this process's own socket; `None` if there is none.
fn ask(question: Question) -> Option<Answer> {
    let path = RunsDir::of(&run_dir()).socket_path(std::process::id());
    let stream = UnixStream::connect(path).ok()?;
    conversation::ask(stream, &question, Some(Duration::from_secs(10))).unwrap()
}

fn row() -> Option<RunRow> {
    match ask(Question::Row)? {
        Answer::Row(row) => Some(*row),
        other => panic!("{other:?}"),
    }
}

fn limited(local_bytes: u64) -> RunRow {
    match ask(Question::Limit(local_bytes)) {
        Some(Answer::Row(row)) => *row,
        other => panic!("{other:?}"),
    }
}

fn refused(local_bytes: u64) -> String {
    match ask(Question::Limit(local_bytes)) {
        Some(Answer::Refused(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn options(copies: u32) -> MemoryOptions {
    let mut options = MemoryOptions::default();
    options.port = Some(PortKind::Shm);
    options.copies = Some(copies);
    options
}

/// Returns `None`, after printing a line, if this process may have no pager.
fn paged(test: &str, rack: &Rack, len_bytes: u64, local_bytes: u64) -> Option<PagedMemory> {
    match rack.paged_memory(len_bytes, local_bytes, &options(1)) {
        Err(Error::Refused(said)) if said.contains("userfaultfd") => {
            println!("SKIPPED: {test}: no userfaultfd");
            None
        }
        memory => Some(memory.unwrap()),
    }
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn borrowed_memory_is_listed_until_released() {
    if !in_own_process("borrowed_memory_is_listed_until_released") {
        return;
    }
    let daemons = Daemons::start(2, 6);
    let rack = Rack::connect_by(daemons.access()).unwrap();
    assert!(row().is_none() && is_empty(&run_dir()), "nothing was borrowed");
    let first = rack.get_memory(2 * SLAB_BYTES, &options(1)).unwrap();
    let one = row().expect("it is shown");
    let process = std::process::id();
    assert_eq!((one.run, one.pid, &one.processes[..]), (process, process, &[process][..]));
    assert_eq!(
        (one.mode.as_str(), one.port.as_str(), one.replicas.as_str()),
        ("library", "shm", "1 copy")
    );
    assert_eq!((one.borrowed_bytes, one.remote_bytes), (2 * SLAB_BYTES, 2 * SLAB_BYTES));
    assert_eq!((one.local_bytes, one.resident_bytes), (0, 0));
    assert!(one.command.contains("borrowed_memory_is_listed"), "{}", one.command);
    assert!(refused(64 * MIB).contains("no arrays to limit"));

    let second = rack.get_memory(SLAB_BYTES, &options(2)).unwrap();
    let two = row().unwrap();
    assert_eq!((two.borrowed_bytes, two.replicas.as_str()), (3 * SLAB_BYTES, "1 copy; 2 copies"));
    let dir = RunsDir::of(&run_dir());
    eventually("both to be in the file", || {
        let rows = files(&dir);
        rows.len() == 1 && (rows[0].copies.slabs, rows[0].copies.copies) == (3, 1)
    });
    assert!(files(&dir)[0].line().starts_with(&format!("run {process} (")), "{:?}", files(&dir));

    drop(first);
    assert_eq!(row().unwrap().borrowed_bytes, SLAB_BYTES);
    drop(second);
    assert!(is_empty(&run_dir()), "nothing is left behind");
    // Again, like at first.
    let third = rack.get_memory(1, &options(1)).unwrap();
    assert_eq!(row().unwrap().borrowed_bytes, SLAB_BYTES);
    drop(third);
    assert!(row().is_none() && is_empty(&run_dir()));
}

#[test]
fn borrowing_works_without_run_directory() {
    let test = "borrowing_works_without_run_directory";
    if !in_own_process(test) {
        return;
    }
    let daemons = Daemons::start(1, 4);
    let rack = Rack::connect_by(daemons.access()).unwrap();
    let write_and_read = || {
        let memory = rack.get_memory(1, &options(1)).unwrap();
        memory.write(5, b"far").unwrap();
        let mut back = [0; 3];
        memory.read(5, &mut back).unwrap();
        assert_eq!(&back, b"far");
        memory
    };
    // A file is in the place of the folder.
    let runs = run_dir().join("runs");
    std::fs::write(&runs, "").unwrap();
    let unseen = write_and_read();
    assert!(row().is_none());
    assert_eq!(std::fs::read_dir(run_dir()).unwrap().count(), 1);
    std::fs::remove_file(&runs).unwrap();
    // Both are shown with the next borrowed memory.
    let seen = write_and_read();
    assert_eq!(row().unwrap().borrowed_bytes, 2 * SLAB_BYTES);
    drop((unseen, seen));
    assert!(is_empty(&run_dir()));
    std::fs::remove_dir(run_dir()).unwrap();
    drop(write_and_read());
    assert!(!run_dir().exists(), "it would never be removed");
}

#[test]
fn budgets_change_during_use() {
    let test = "budgets_change_during_use";
    if !in_own_process(test) {
        return;
    }
    let daemons = Daemons::start(2, 6);
    let rack = Rack::connect_by(daemons.access()).unwrap();
    let Some(memory) = paged(test, &rack, 2 * SLAB_BYTES, 24 * MIB) else { return };
    let mut region = memory.map(2 * SLAB_BYTES).unwrap();
    let fill = |bytes: &mut [u8], seed: u8| {
        bytes.iter_mut().step_by(512).zip(0u32..).for_each(|(byte, at)| *byte = at as u8 ^ seed);
    };
    let check = |bytes: &[u8], seed: u8| {
        bytes.iter().step_by(512).zip(0u32..).all(|(byte, at)| *byte == at as u8 ^ seed)
    };
    fill(region.bytes_mut(), 1);
    assert!(check(region.bytes(), 1));
    let one = row().unwrap();
    assert_eq!((one.local_bytes, one.borrowed_bytes), (24 * MIB, 2 * SLAB_BYTES));
    assert!((8 * MIB..=24 * MIB).contains(&one.resident_bytes), "{one:?}");
    assert!(one.remote_bytes >= 8 * MIB && one.faults > 100, "{one:?}");
    assert!(one.fault_p99_us >= one.fault_p50_us && one.fault_p50_us.is_some(), "{one:?}");

    // All pages have a far slot by now, so none is free: they are evicted all the same.
    for mib in [6, 20, 4, 9] {
        assert_eq!(limited(mib * MIB).local_bytes, mib * MIB);
        assert_eq!(memory.local_bytes(), mib * MIB);
        eventually("what is too much to leave", || row().unwrap().resident_bytes <= mib * MIB);
        fill(region.bytes_mut(), mib as u8);
        assert!(check(region.bytes(), mib as u8));
        assert!(memory.resident_bytes() <= mib * MIB, "{mib} MiB");
    }
    assert!(matches!(memory.set_local_bytes(4 * MIB - 1), Err(Error::Invalid(_))));
    assert!(refused(2 * MIB).contains("4MiB at least"));

    let faults = row().unwrap().faults;
    let Some(other) = paged(test, &rack, SLAB_BYTES, 7 * MIB) else { return };
    let both = limited(24 * MIB);
    assert!((24 * MIB - 8192..=24 * MIB).contains(&both.local_bytes), "{both:?}");
    assert_eq!((memory.local_bytes(), other.local_bytes()), (14 * MIB, 10 * MIB), "5 to 3 of 16");
    assert!(refused(7 * MIB).contains("2 budgets of their own: ask for 8MiB at least"));
    assert_eq!(memory.local_bytes(), 14 * MIB, "nobody's changed");
    drop(other);
    memory.set_local_bytes(5 * MIB).unwrap();
    let last = row().unwrap();
    assert_eq!(last.local_bytes, 5 * MIB);
    assert!(last.faults >= faults, "{last:?}");
    assert!(check(region.bytes(), 9));
}

#[test]
fn advice_covers_whole_pages() {
    let test = "advice_covers_whole_pages";
    if !in_own_process(test) {
        return;
    }
    let daemons = Daemons::start(1, 3);
    let rack = Rack::connect_by(daemons.access()).unwrap();
    let Some(memory) = paged(test, &rack, 2 * SLAB_BYTES, 8 * MIB) else { return };
    let mut region = memory.map(2 * SLAB_BYTES).unwrap();
    let len = region.len_bytes();
    region.bytes_mut().iter_mut().step_by(4096).zip(1u32..).for_each(|(byte, at)| *byte = at as u8);
    region.advise(0, len, Hint::PageOut).unwrap();
    assert!(memory.resident_bytes() < MIB, "{}", memory.resident_bytes());
    // From within one page to within another.
    region.advise(10 * 4096 + 4000, 600 * 4096, Hint::WillNeed).unwrap();
    // The last of 601 pages may still be in flight.
    eventually("what is wanted", || memory.resident_bytes() > 450 * 4096);
    assert!(memory.resident_bytes() < 700 * 4096, "{}", memory.resident_bytes());
    let faults = row().unwrap().faults;
    let touched = region.bytes()[10 * 4096..611 * 4096].iter().step_by(4096).zip(11u32..);
    assert!(touched.into_iter().all(|(byte, at)| *byte == at as u8));
    assert!(row().unwrap().faults - faults < 100, "most were here");
    region.advise(0, len, Hint::Use(Pattern::Random)).unwrap();
    region.advise(0, len, Hint::PageOut).unwrap();
    assert_eq!(region.bytes()[1000 * 4096], 1001u32 as u8);
    assert!(memory.resident_bytes() < 64 * 4096, "nothing came ahead: {}", memory.resident_bytes());
    region.advise(0, 0, Hint::PageOut).unwrap();
    region.advise(0, len, Hint::Use(Pattern::Normal)).unwrap();
    region.advise(len - 1, 1, Hint::Cold).unwrap();
    for (offset, len_bytes) in [(0, len + 1), (len, 1), (usize::MAX, 2)] {
        let beyond = region.advise(offset, len_bytes, Hint::Cold);
        assert!(matches!(beyond, Err(Error::OutOfRange { .. })), "{beyond:?}");
    }
}
