//! The Python package, its own tests and its examples, on racks of their own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use venice_e2e::programs::{
    MIB, Port, Rack, Running, kill_now, mapped_slab_bytes, paged_mode_is_missing, venice_binary,
    wait_for,
};

const PATIENCE: Duration = Duration::from_secs(300);

/// The package as a wheel installs it, from the built library.
struct Package(TempDir);

impl Package {
    fn assemble() -> Package {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let built = venice_binary().with_file_name("lib_venice.so");
        assert!(built.exists(), "{} is not built: run `make build`", built.display());
        let to = folder.path().join("venice");
        std::fs::create_dir(&to).expect("a directory");
        let sources = root().join("crates/venice-py/python/venice");
        for file in std::fs::read_dir(sources).expect("the sources") {
            let file = file.expect("a file");
            if file.file_type().is_ok_and(|kind| kind.is_file()) {
                std::fs::copy(file.path(), to.join(file.file_name())).expect("a copy");
            }
        }
        std::fs::copy(built, to.join("_venice.abi3.so")).expect("a copy");
        Package(folder)
    }

    /// Returns a command of Debian's Python, which has numpy and pandas, with the package on
    /// `rack`.
    fn python(&self, rack: &Rack) -> Command {
        let mut python = Command::new("/usr/bin/python3");
        python.env("PYTHONPATH", self.0.path()).env("PYTHONDONTWRITEBYTECODE", "1");
        python.env("VENICE_RUN_DIR", rack.run_dir()).env_remove("VENICE_MONITOR");
        python.arg("-Xfaulthandler");
        python
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs a Python file, which must succeed; returns its output.
fn run(rack: &Rack, file: &str, arguments: &[&str]) -> String {
    let package = Package::assemble();
    let mut python = package.python(rack);
    python.arg(root().join(file)).args(arguments);
    let outcome = Running::spawn(python, false).finish(PATIENCE);
    outcome.expect_code(0);
    assert_eq!(rack.granted_bytes(), 0, "{file}: all is given back");
    String::from_utf8_lossy(&outcome.stdout).into_owned()
}

/// Runs a type checker of Debian's Python, which must find nothing.
fn checks(package: &Package, arguments: &[&str]) {
    let mut checker = Command::new("/usr/bin/python3");
    checker.arg("-m").args(arguments).current_dir(package.0.path());
    checker.env("PYTHONPATH", package.0.path()).env("MYPYPATH", package.0.path());
    let outcome = Running::spawn(checker, false).finish(PATIENCE);
    outcome.expect_code(0);
    println!("{}", String::from_utf8_lossy(&outcome.stdout));
}

/// The package, the stub of its native half beside the real one, and the examples as their readers
/// write them.
#[test]
fn type_hints_hold() {
    let package = Package::assemble();
    checks(&package, &["mypy", "--strict", "-p", "venice"]);
    checks(&package, &["mypy.stubtest", "venice._venice"]);
    for example in
        ["pagerank.py", "trips_pandas.py", "memcached_victim.py", "opencl_pool.py", "incast.py"]
    {
        let example = root().join("examples/python").join(example).display().to_string();
        checks(&package, &["mypy", "--ignore-missing-imports", &example]);
    }
}

/// Tests on a rack with storage and an accelerator that has a service.
fn memory_and_devices(port: Port) {
    let pool = tempfile::tempdir().expect("a temporary directory");
    let storage = format!("storage:{}=16MiB", pool.path().display());
    let offers = ["--offer", &storage, "--offer", "accelerator:emulated0,echo"];
    run(&Rack::start_with(port, 32, &offers), "crates/venice-py/tests/test_memory.py", &[]);
}

#[test]
fn memory_and_devices_over_udp() {
    memory_and_devices(Port::Udp);
}

#[test]
fn memory_and_devices_over_shm() {
    memory_and_devices(Port::Shm);
}

fn pools(port: Port) {
    let offer = |number: u32| {
        format!("node{}/accelerator:emulated{number}=fft+sum+scale@64MB/s", number + 2)
    };
    let (one, other) = (offer(0), offer(1));
    let rack = Rack::start_with(port, 32, &["--offer", &one, "--offer", &other]);
    run(&rack, "crates/venice-py/tests/test_accel.py", &[]);
}

#[test]
fn pools_of_opencl_devices() {
    if !Path::new("/etc/OpenCL/vendors/pocl.icd").exists() {
        return eprintln!("SKIPPED: pools_of_opencl_devices: no PoCL");
    }
    for port in [Port::Shm, Port::Udp] {
        let offers = ["node2", "node3"].map(|node| format!("{node}/accelerator:opencl=256MiB"));
        let rack = Rack::start_with(port, 32, &["--offer", &offers[0], "--offer", &offers[1]]);
        run(&rack, "crates/venice-py/tests/test_accel_opencl.py", &[]);
        let drawn = run(&rack, "examples/python/opencl_pool.py", &["2"]);
        assert!(drawn.starts_with("2 accelerators\n") && drawn.contains("@@@@"), "{drawn}");
    }
}

#[test]
fn pools_over_udp() {
    pools(Port::Udp);
}

#[test]
fn pools_over_shm() {
    pools(Port::Shm);
}

#[test]
fn victim_store_behind_memcached() {
    run(&Rack::start(Port::Udp, 32), "crates/venice-py/tests/test_victim.py", &[]);
}

#[test]
fn arrays_over_udp() {
    if paged_mode_is_missing("arrays_over_udp") {
        return;
    }
    run(&Rack::start(Port::Udp, 48), "crates/venice-py/tests/test_arrays.py", &[]);
}

#[test]
fn arrays_over_shm() {
    if paged_mode_is_missing("arrays_over_shm") {
        return;
    }
    run(&Rack::start(Port::Shm, 48), "crates/venice-py/tests/test_arrays.py", &[]);
}

#[test]
fn pagerank_exceeds_local_memory() {
    if paged_mode_is_missing("pagerank_exceeds_local_memory") {
        return;
    }
    let graph = ["--vertices", "100000", "--edges", "4000000", "--rounds", "3"];
    let arguments = [&graph[..], &["--local", "6MiB", "--check"]].concat();
    let said = run(&Rack::start(Port::Shm, 32), "examples/python/pagerank.py", &arguments);
    assert!(said.contains("the same ranks, to the last bit"), "{said}");
}

#[test]
fn pandas_job_over_borrowed_columns() {
    if paged_mode_is_missing("pandas_job_over_borrowed_columns") {
        return;
    }
    let arguments = ["--rows", "1500000", "--local", "6MiB", "--check"];
    let said = run(&Rack::start(Port::Udp, 32), "examples/python/trips_pandas.py", &arguments);
    assert!(said.contains("the same report as from local memory"), "{said}");
}

/// The loss of the only replica of a page raises SIGBUS, and an error that names the node.
#[test]
fn dead_donor_under_an_array_is_sigbus() {
    if paged_mode_is_missing("dead_donor_under_an_array_is_sigbus") {
        return;
    }
    let rack = Rack::start(Port::Shm, 64);
    let package = Package::assemble();
    let script = "import sys, numpy, venice\n\
        array = venice.connect().array(2 << 20, numpy.int64, local='4MiB', donors=['node2'])\n\
        array[:] = 1\n\
        open(sys.argv[1], 'w')\n\
        while True: array.sum()\n";
    let written = package.0.path().join("written");
    let mut python = package.python(&rack);
    python.args(["-c", script]).arg(&written);
    let running = Running::spawn(python, false);
    wait_for("the array to be written", PATIENCE, || written.exists().then_some(()));
    kill_now(rack.agent_pid("node2"));
    let outcome = running.finish(PATIENCE);
    outcome.expect_code(128 + 7);
    assert!(outcome.stderr.contains("lost with node node2"), "{}", outcome.stderr);
}

/// Kills two nodes one after the other under an array with two replicas: nothing is lost, since the
/// first loss is repaired although all of the array is written all the time.
fn donors_die_under_an_array(port: Port) {
    let rack = Rack::start(port, 64);
    let package = Package::assemble();
    let script = "import sys, numpy, venice\n\
        paged = venice.connect().paged('48MiB', local='4MiB', copies=2)\n\
        array = paged.array(2 << 20, numpy.int64)\n\
        array[:] = numpy.arange(array.size)\n\
        total = lambda: array.size * (array.size - 1) // 2\n\
        for gone in ['node1', 'node2']:\n\
        \x20   open(sys.argv[1] + gone, 'w')\n\
        \x20   rounds = 0\n\
        \x20   while gone not in paged.copies.lost_donors or paged.copies.short_slabs:\n\
        \x20       rounds += 1\n\
        \x20       array += 1\n\
        \x20       assert int(array.sum()) == total() + rounds * array.size\n\
        \x20   array -= rounds\n\
        assert (array == numpy.arange(array.size)).all()\n\
        assert paged.copies.lost_slabs == 0 and paged.copies.rebuilt > 0, paged.copies\n";
    let written = package.0.path().join("written-");
    let mut python = package.python(&rack);
    python.args(["-c", script]).arg(&written);
    let running = Running::spawn(python, false);
    for gone in ["node1", "node2"] {
        let ready = package.0.path().join(format!("written-{gone}"));
        wait_for("the array to be ready", PATIENCE, || ready.exists().then_some(()));
        kill_now(rack.agent_pid(gone));
    }
    running.finish(PATIENCE).expect_code(0);
}

#[test]
fn array_replicas_survive_donors_over_shm() {
    if paged_mode_is_missing("array_replicas_survive_donors_over_shm") {
        return;
    }
    donors_die_under_an_array(Port::Shm);
}

#[test]
fn array_replicas_survive_donors_over_udp() {
    if paged_mode_is_missing("array_replicas_survive_donors_over_udp") {
        return;
    }
    donors_die_under_an_array(Port::Udp);
}

/// Drains nodes under an array with one replica that is written all the time: its memory moves, and
/// the former memory is free.
fn drain_nodes_under_array(port: Port) {
    let rack = Rack::start(port, 64);
    let package = Package::assemble();
    let script = "import os, sys, numpy, venice\n\
        paged = venice.connect().paged('48MiB', local='4MiB', copies=1)\n\
        array = paged.array(4 << 20, numpy.int64)\n\
        array[:] = numpy.arange(array.size)\n\
        total = array.size * (array.size - 1) // 2\n\
        open(sys.argv[1] + 'ready', 'w')\n\
        rounds = 0\n\
        while not os.path.exists(sys.argv[1] + 'stop'):\n\
        \x20   rounds += 1\n\
        \x20   array += 1\n\
        \x20   assert int(array.sum()) == total + rounds * array.size\n\
        array -= rounds\n\
        assert (array == numpy.arange(array.size)).all()\n\
        assert paged.copies.lost_slabs == 0, paged.copies\n";
    let at = package.0.path().join("array-");
    let mut python = package.python(&rack);
    python.args(["-c", script]).arg(&at);
    let running = Running::spawn(python, false);
    let ready = package.0.path().join("array-ready");
    wait_for("the array to be ready", PATIENCE, || ready.exists().then_some(()));
    for name in ["node1", "node2"] {
        let drained = rack.venice(&["drain", name, "--wait-s", "120"]);
        assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stdout));
        let nodes = rack.json(&["nodes"]);
        let mut rows = nodes.as_array().expect("rows").iter();
        let row = rows.find(|row| row["name"] == name).expect("it is up");
        assert_eq!((&row["draining"], &row["granted_bytes"]), (&true.into(), &0.into()), "{row}");
        let table = String::from_utf8_lossy(&rack.venice(&["nodes"]).stdout).into_owned();
        let line = table.lines().find(|line| line.starts_with(name)).expect("a line");
        assert_eq!(line.split_whitespace().nth(1), Some("drained"), "{table}");
        let mapped_bytes = mapped_slab_bytes(running.pid());
        assert!(mapped_bytes <= 48 * MIB, "{name}: {mapped_bytes} bytes");
        kill_now(rack.agent_pid(name));
    }
    std::fs::write(package.0.path().join("array-stop"), "").expect("a file");
    running.finish(PATIENCE).expect_code(0);
}

#[test]
fn nodes_drain_under_an_array_over_shm() {
    if paged_mode_is_missing("nodes_drain_under_an_array_over_shm") {
        return;
    }
    drain_nodes_under_array(Port::Shm);
}

#[test]
fn nodes_drain_under_an_array_over_udp() {
    if paged_mode_is_missing("nodes_drain_under_an_array_over_udp") {
        return;
    }
    drain_nodes_under_array(Port::Udp);
}

/// A program with memory and two arrays, which continues until told to stop.
const LIBRARY_PROGRAM: &str = "import os, sys, numpy, venice\n\
    rack = venice.connect()\n\
    memory = rack.get_memory('16MiB', copies=1)\n\
    array = rack.array(4 << 20, numpy.int64, local='24MiB', copies=1)\n\
    other = rack.array(1 << 20, numpy.int64, local='8MiB', copies=1)\n\
    other[:] = 7\n\
    array[:] = numpy.arange(array.size)\n\
    if len(sys.argv) > 2:\n\
    \x20   import time\n\
    \x20   child = os.fork()\n\
    \x20   if child == 0: time.sleep(120); os._exit(0)\n\
    \x20   open(sys.argv[2], 'w').write(str(child))\n\
    open(sys.argv[1] + 'ready', 'w')\n\
    rounds = 0\n\
    while not os.path.exists(sys.argv[1] + 'stop'):\n\
    \x20   rounds += 1\n\
    \x20   array += 1\n\
    \x20   assert int(array.sum()) == array.size * (array.size - 1) // 2 + rounds * array.size\n\
    assert (other == 7).all()\n";

/// Starts it and waits until its arrays are written.
fn library_program(rack: &Rack, package: &Package, more: &[&str]) -> Running {
    let at = package.0.path().join("program-");
    let mut python = package.python(rack);
    python.args(["-c", LIBRARY_PROGRAM]).arg(&at).args(more);
    let mut running = Running::spawn(python, false);
    let ready = package.0.path().join("program-ready");
    wait_for("the arrays to be written", PATIENCE, || {
        assert!(running.is_running(), "{}", running.stderr_so_far());
        ready.exists().then_some(())
    });
    running
}

/// Returns the names in the folder of the runs, if there is one.
fn runs(rack: &Rack) -> Vec<String> {
    let entries = std::fs::read_dir(rack.run_dir().join("runs")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn array_program_follows_its_budget() {
    if paged_mode_is_missing("array_program_follows_its_budget") {
        return;
    }
    let (rack, package) = (Rack::start(Port::Shm, 64), Package::assemble());
    let running = library_program(&rack, &package, &[]);
    let rows = rack.json(&["ps"]);
    assert_eq!(rows.as_array().map(Vec::len), Some(1), "one row of all: {rows}");
    let row = &rows[0];
    let number = |row: &serde_json::Value, field: &str| row[field].as_u64().expect("a number");
    let pid = running.pid();
    assert_eq!((number(row, "run"), number(row, "pid")), (pid.into(), pid.into()));
    assert_eq!((&row["mode"], &row["port"]), (&"library".into(), &"shm".into()), "{row}");
    assert!(row["command"].as_str().is_some_and(|text| text.starts_with("/usr/bin/python3 ")));
    assert_eq!(
        (number(row, "local_bytes"), number(row, "borrowed_bytes")),
        (32 * MIB, (16 + 32 + 16) * MIB)
    );
    assert!((MIB..=32 * MIB).contains(&number(row, "resident_bytes")), "{row}");
    assert!(number(row, "remote_bytes") > 20 * MIB, "memory and pages: {row}");
    assert!(row["faults_per_s"].as_f64() > Some(0.0), "{row}");
    assert!(row["fault_p99_us"].as_f64() >= row["fault_p50_us"].as_f64(), "{row}");
    let table = String::from_utf8_lossy(&rack.venice(&["ps"]).stdout).into_owned();
    assert!(
        table.lines().any(|line| line.contains(" library ") && line.contains("32MiB")),
        "{table}"
    );
    let line = format!("run {pid} (/usr/bin/python3 ");
    wait_for("its line in `venice status`", PATIENCE, || {
        let status = String::from_utf8_lossy(&rack.venice(&["status"]).stdout).into_owned();
        let its = status.lines().find(|it| it.starts_with(&line))?.to_owned();
        its.ends_with("1 copy of 4 slabs, all there").then_some(())
    });

    for mib in [12, 40, 9] {
        let row = rack.json(&["limit", &pid.to_string(), "--local", &format!("{mib}MiB")]);
        // Each array has its part in whole pages.
        let local_bytes = number(&row, "local_bytes");
        assert!((mib * MIB - 8192..=mib * MIB).contains(&local_bytes), "{row}");
        assert!(number(&row, "resident_bytes") <= local_bytes, "{row}");
    }
    let refused = rack.venice(&["limit", &pid.to_string(), "--local", "7MiB"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("ask for 8MiB at least"), "{said}");
    std::fs::write(package.0.path().join("program-stop"), "").expect("a file");
    running.finish(PATIENCE).expect_code(0);
    assert_eq!((rack.json(&["ps"]), runs(&rack)), (serde_json::json!([]), Vec::new()));
    assert_eq!(rack.json(&["status"])["runs"], serde_json::json!([]));
}

/// The run file of a killed program goes, although a child that it forked has its socket open.
#[test]
fn killed_array_program_leaves_nothing() {
    if paged_mode_is_missing("killed_array_program_leaves_nothing") {
        return;
    }
    let (rack, package) = (Rack::start(Port::Udp, 64), Package::assemble());
    let child = package.0.path().join("child");
    let mut running = library_program(&rack, &package, &[child.to_str().expect("a path")]);
    assert_eq!(rack.json(&["ps"])[0]["port"], "udp");
    wait_for("its file", PATIENCE, || (runs(&rack).len() == 2).then_some(()));
    running.signal(Signal::KILL);
    wait_for("its end", PATIENCE, || (!running.is_running()).then_some(()));
    assert_eq!(rack.json(&["status"])["runs"], serde_json::json!([]));
    assert_eq!((rack.json(&["ps"]), runs(&rack)), (serde_json::json!([]), Vec::new()));
    let child = std::fs::read_to_string(child).expect("a number");
    kill_now(child.parse().expect("a number"));
    running.finish(PATIENCE).expect_code(128 + 9);
}
