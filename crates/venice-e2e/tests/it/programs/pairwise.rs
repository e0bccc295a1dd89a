//! Pairwise coverage of mode × port × protection × page size × program: each pair of values that go
//! together stands in some row. The other tests of this folder take each value further.
//!
//! With a protection that survives the death of a donor, a donor dies in the middle.

use std::process::Command;

use venice_e2e::programs::compare::{PROGRAM_LIMIT, same_output};
use venice_e2e::programs::values::shuffled;
use venice_e2e::programs::{Port, Rack, kill_now, paged_mode_is_missing, redis};

/// 20 MiB of values, of which 12 MiB may be local.
const KEYS: u64 = 20_000;

/// The options of `venice run` with a budget; large pages need more of it.
fn with_budget<'a>(options: &[&'a str]) -> Vec<&'a str> {
    let local = if options.contains(&"2m") { "32MiB" } else { "12MiB" };
    [&["--local", local, "--remote", "64MiB"], options].concat()
}

/// One row: the test's name, the port, the options of `venice run`, whether a donor dies, the program.
macro_rules! ways {
    ($($name:ident: $port:ident, [$($option:literal),*], $donor:ident, $program:ident;)*) => {
        $(#[test]
        fn $name() {
            if paged_mode_is_missing(concat!("programs::pairwise::", stringify!($name))) {
                return;
            }
            let folder = tempfile::tempdir().expect("a temporary directory");
            let folder = folder.path().to_str().expect("UTF-8");
            let options = [$($option),*].map(|option: &str| if option == "FOLDER" { folder } else { option });
            $program(Port::$port, &options, Donor::$donor);
        })*
    };
}

ways! {
    paged_shm_one_copy: Shm, ["--copies", "1"], Lives, sort;
    paged_shm_two_copies: Shm, ["--copies", "2"], Dies, keep_values;
    paged_shm_coded: Shm, ["--coding", "2+1"], Dies, keep_values;
    paged_shm_write_behind: Shm, ["--copies", "1", "--write-behind", "FOLDER"], Lives, python;
    paged_shm_in_thread: Shm, ["--copies", "2", "--faults", "in-thread"], Lives, python;
    paged_shm_64k_coded: Shm, ["--coding", "2+1", "--page-size", "64k"], Lives, sqlite;
    paged_shm_2m_pages: Shm, ["--copies", "1", "--page-size", "2m"], Lives, sort;
    paged_udp_one_copy: Udp, ["--copies", "1"], Lives, sqlite;
    paged_udp_two_copies: Udp, ["--copies", "2"], Dies, keep_values;
    paged_udp_coded: Udp, ["--coding", "2+1"], Lives, sort;
    paged_udp_write_behind: Udp, ["--copies", "1", "--write-behind", "FOLDER"], Dies, keep_values;
    paged_udp_64k_pages: Udp, ["--copies", "1", "--page-size", "64k"], Lives, python;
    window_shm_values: Shm, ["--mode", "window"], Lives, keep_values;
    window_shm_python: Shm, ["--mode", "window"], Lives, python;
    window_shm_sort: Shm, ["--mode", "window"], Lives, sort;
    swap_shm_one_copy: Shm, ["--mode", "swap", "--copies", "1"], Lives, sqlite;
    swap_shm_two_copies: Shm, ["--mode", "swap", "--copies", "2"], Dies, keep_values;
    swap_udp_one_copy: Udp, ["--mode", "swap", "--copies", "1"], Lives, python;
    swap_udp_two_copies: Udp, ["--mode", "swap", "--copies", "2"], Lives, sort;
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Donor {
    Lives,
    Dies,
}

/// Redis holds values; each must be right, before and after the death of a donor.
fn keep_values(port: Port, options: &[&str], donor: Donor) {
    let rack = Rack::start(port, 64);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = rack.run(&with_budget(options), &redis::server(folder.path()));
    let mut client = redis::Client::connect(&redis::socket(folder.path()));
    let keys = shuffled(KEYS, 11);
    client.set_all(&keys, 1);
    if donor == Donor::Dies {
        kill_now(rack.agent_pid("node2"));
    }
    client.check_all(&shuffled(KEYS, 12), |_| 1);
    client.set_all(&keys[..keys.len() / 2], 2);
    let rewritten: std::collections::HashSet<u64> =
        keys[..keys.len() / 2].iter().copied().collect();
    client.check_all(&keys, |key| if rewritten.contains(&key) { 2 } else { 1 });
    client.shut_down();
    server.finish(PROGRAM_LIMIT).expect_code(0);
}

fn same(port: Port, options: &[&str], donor: Donor, program: &Command) {
    assert!(donor == Donor::Lives, "only keep_values has a donor die");
    same_output(&Rack::start(port, 64), &with_budget(options), program);
}

fn python(port: Port, options: &[&str], donor: Donor) {
    let mut command = Command::new("python3");
    // Parent and child have 10 MiB each once the parent has rewritten its rows.
    command.arg("-c").arg(
        "import hashlib, os\n\
         def digest():\n    \
             whole = hashlib.sha256()\n    \
             for row in rows: whole.update(row)\n    \
             print(whole.hexdigest(), flush=True)\n\
         rows = [hashlib.sha256(str(i).encode()).digest() * 16 for i in range(20_000)]\n\
         child = os.fork()\n\
         if child:\n    \
             os.waitpid(child, 0)\n    \
             rows[::3] = [row[::-1] for row in rows[::3]]\n\
         digest()\n",
    );
    same(port, options, donor, &command);
}

fn sort(port: Port, options: &[&str], donor: Donor) {
    let mut command = Command::new("sh");
    command.arg("-c").arg("seq 400000 | sort --buffer-size=60M --parallel=1 -k1.2 | md5sum");
    command.env("LC_ALL", "C");
    same(port, options, donor, &command);
}

fn sqlite(port: Port, options: &[&str], donor: Donor) {
    let mut command = Command::new("sqlite3");
    command.arg(":memory:").arg(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000) \
         INSERT INTO t SELECT i, hex(zeroblob(200)) || i FROM n; \
         CREATE INDEX by_text ON t(text); \
         SELECT count(*), sum(length(text)), max(text) FROM t WHERE text > '0';",
    );
    command.args(["-cmd", "CREATE TABLE t(id INTEGER PRIMARY KEY, text TEXT);"]);
    same(port, options, donor, &command);
}
