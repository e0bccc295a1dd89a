//! `venice ps` and `venice limit`: a program's local budget is shown, and changed while it runs.

use std::fs::File;
use std::process::Output;
use std::time::Duration;

use serde_json::Value;
use venice_e2e::programs::values::shuffled;
use venice_e2e::programs::{CProgram, MIB, Port, Rack, Running, exit_code, rss_anon_bytes};
use venice_e2e::programs::{paged_mode_is_missing, redis, wait_for};

const LIMIT: Duration = Duration::from_secs(120);
/// Keys for about 70 MiB of Redis.
const REDIS_KEYS: u64 = 50_000;

/// Returns the only run of the rack.
fn run_row(rack: &Rack) -> Value {
    let rows = rack.json(&["ps"]);
    assert_eq!(rows.as_array().map(Vec::len), Some(1), "{rows}");
    rows[0].clone()
}

fn number(row: &Value, field: &str) -> u64 {
    row[field].as_u64().unwrap_or_else(|| panic!("no {field}: {row}"))
}

fn limit(rack: &Rack, pid: u32, mib: u64) -> Output {
    rack.venice(&["limit", &pid.to_string(), "--local", &format!("{mib}MiB")])
}

fn limited(rack: &Rack, pid: u32, mib: u64) -> Value {
    let row = rack.json(&["limit", &pid.to_string(), "--local", &format!("{mib}MiB")]);
    assert_eq!(number(&row, "local_bytes"), mib * MIB, "{row}");
    assert!(number(&row, "resident_bytes") <= mib * MIB, "{row}");
    row
}

/// Checks that it failed with `code` and one line that contains `words`.
#[track_caller]
fn refused(output: &Output, code: i32, words: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(exit_code(output.status), code, "{stderr}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("venice: ") && stderr.contains(words), "{stderr}");
}

/// Starts `keep_busy` and waits until all its memory is in use.
fn busy(rack: &Rack, options: &[&str], mib: &str) -> (CProgram, Running) {
    let program = CProgram::compile("keep_busy");
    let mut running = rack.run(options, &program.command(&[mib, "ready", "stop"]));
    wait_for("the program to use its memory", LIMIT, || {
        assert!(running.is_running(), "it ended before its memory was in use");
        program.dir().join("ready").exists().then_some(())
    });
    (program, running)
}

/// Lets it check everything once more and end.
fn stop_and_check((program, running): (CProgram, Running)) {
    File::create(program.dir().join("stop")).expect("a file");
    let outcome = running.finish(LIMIT);
    outcome.expect_code(0);
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), "every byte right\n");
}

#[test]
fn redis_follows_its_budget() {
    if paged_mode_is_missing("redis_follows_its_budget") {
        return;
    }
    let rack = Rack::start(Port::Shm, 128);
    assert_eq!(rack.json(&["ps"]), Value::Array(Vec::new()));
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = ["--local", "48MiB", "--remote", "256MiB"];
    let server = rack.run(&options, &redis::server(dir.path()));
    let mut client = redis::Client::connect(&redis::socket(dir.path()));
    let keys = shuffled(REDIS_KEYS, 3);
    client.set_all(&keys, 1);
    client.check_all(&keys, |_| 1);

    let row = run_row(&rack);
    assert_eq!((&row["mode"], &row["port"]), (&"paged".into(), &"shm".into()));
    assert_eq!(number(&row, "run"), u64::from(server.pid()));
    assert!(row["command"].as_str().is_some_and(|text| text.contains("redis-server --port 0")));
    assert_eq!(
        (number(&row, "local_bytes"), number(&row, "borrowed_bytes")),
        (48 << 20, 256 << 20)
    );
    let resident_bytes = number(&row, "resident_bytes");
    assert!((MIB..=48 * MIB).contains(&resident_bytes), "{row}");
    assert!(number(&row, "remote_bytes") > MIB && number(&row, "faults") > 1000, "{row}");
    assert!(row["faults_per_s"].as_f64() > Some(0.0), "{row}");
    assert!(row["fault_p50_us"].as_f64() > Some(0.0), "{row}");
    assert!(row["fault_p99_us"].as_f64() >= row["fault_p50_us"].as_f64(), "{row}");
    assert_eq!(row["donors"].as_array().map(Vec::len), Some(4), "{row}");
    let table = rack.venice(&["ps"]).stdout;
    assert!(String::from_utf8_lossy(&table).contains("48MiB"), "{table:?}");

    // The limit works by the process id of the program, and by that of `venice run`.
    let pid = number(&row, "pid") as u32;
    limited(&rack, pid, 12);
    assert!(rss_anon_bytes(pid) <= 12 * MIB, "{}", rss_anon_bytes(pid));
    client.check_all(&keys, |_| 1);
    client.set_all(&keys[..5000], 2);
    assert!(rss_anon_bytes(pid) <= 12 * MIB, "{}", rss_anon_bytes(pid));
    limited(&rack, server.pid(), 160);
    let generation = |key: u64| 1 + u64::from(keys[..5000].contains(&key));
    let written: Vec<u64> = keys[..8000].to_vec();
    client.check_all(&written, generation);
    client.check_all(&keys[8000..], |_| 1);
    assert!(rss_anon_bytes(pid) > 40 * MIB, "{}", rss_anon_bytes(pid));

    refused(&limit(&rack, pid, 3), 2, "ask for 4MiB at least");
    refused(&limit(&rack, pid, 1 << 30), 2, "more than this machine has");
    refused(&limit(&rack, 1, 64), 1, "process 1 is not a program on borrowed memory");
    client.shut_down();
    server.finish(LIMIT).expect_code(0);
    assert_eq!(rack.json(&["ps"]), Value::Array(Vec::new()));
}

/// Raises and lowers budgets while every page is written and checked over and over.
fn budgets_change_under(test: &str, port: Port, budgets_mib: &[u64]) {
    if paged_mode_is_missing(test) {
        return;
    }
    let rack = Rack::start(port, 64);
    let program = busy(&rack, &["--local", "64MiB", "--remote", "96MiB"], "48");
    let pid = program.1.pid();
    for mib in budgets_mib {
        limited(&rack, pid, *mib);
        std::thread::sleep(Duration::from_millis(300));
    }
    stop_and_check(program);
}

#[test]
fn budgets_change_on_shm() {
    let test = "budgets_change_on_shm";
    budgets_change_under(test, Port::Shm, &[8, 40, 6, 16, 64, 5, 12]);
}

#[test]
fn budgets_change_on_udp() {
    let test = "budgets_change_on_udp";
    budgets_change_under(test, Port::Udp, &[12, 40, 8, 32, 64, 9, 16]);
}

#[test]
fn budget_without_far_room_is_refused() {
    if paged_mode_is_missing("budget_without_far_room_is_refused") {
        return;
    }
    let rack = Rack::start(Port::Shm, 32);
    let program = busy(&rack, &["--local", "96MiB", "--remote", "32MiB"], "64");
    refused(&limit(&rack, program.1.pid(), 16), 1, "of its far memory 32MiB is free");
    assert_eq!(number(&run_row(&rack), "local_bytes"), 96 * MIB);
    limited(&rack, program.1.pid(), 48);
    stop_and_check(program);
}

#[test]
fn mapped_window_memory_stays() {
    let rack = Rack::start(Port::Shm, 64);
    let options = ["--mode", "window", "--local", "16MiB", "--remote", "96MiB"];
    let program = busy(&rack, &options, "64");
    let row = run_row(&rack);
    assert_eq!(row["mode"], "window");
    refused(&limit(&rack, program.1.pid(), 8), 1, "in a window what is mapped stays");
    let grown = rack.json(&["limit", &program.1.pid().to_string(), "--local", "32MiB"]);
    assert_eq!(number(&grown, "local_bytes"), 32 * MIB);
    stop_and_check(program);
}

/// Runs a program that reads `pages` at random, somewhat more than fit the budget: most touches
/// must find their page resident, neither staged nor far.
fn somewhat_more_than_fits(test: &str, port: Port, local: &str, pages: u64) {
    const TOUCHES: u64 = 60_000;
    if paged_mode_is_missing(test) {
        return;
    }
    let program = CProgram::compile("random_reads");
    let command = program.command(&[&pages.to_string(), &TOUCHES.to_string()]);
    let options = ["--local", local, "--remote", "64MiB", "--copies", "1", "--stats"];
    let outcome = Rack::shared(port).run(&options, &command).finish(LIMIT);
    outcome.expect_code(0);
    let [staged, far] = [" staged", " far;"].map(|words| outcome.number_before(words));
    let (first, touches) = (2 * pages, TOUCHES as f64);
    let share = (staged + far).saturating_sub(first) as f64 / touches;
    println!("{staged} staged, {far} far, {share:.3} of all touches after the first ones");
    assert!(share < 0.34, "{share:.3} of all touches: {}", outcome.stderr);
}

/// Staged pages count on the budget: they must not take most of a small one.
#[test]
fn small_budget_keeps_most_pages_resident() {
    let test = "small_budget_keeps_most_pages_resident";
    somewhat_more_than_fits(test, Port::Shm, "4MiB", 1000);
}

/// The port's own buffers count too.
#[test]
fn small_udp_budget_keeps_most_pages_resident() {
    let test = "small_udp_budget_keeps_most_pages_resident";
    somewhat_more_than_fits(test, Port::Udp, "8MiB", 1900);
}
