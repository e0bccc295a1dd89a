//! Tools that use as much memory as they are given.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use venice_e2e::programs::compare::{
    PROGRAM_LIMIT, Program, check_resident, compare, copy, quarter_of, report, run_options,
};
use venice_e2e::programs::{Port, Rack, Running, paged_mode_is_missing};
use venice_testkit::random::SplitMix64;

#[test]
fn gnu_sort_fills_a_large_buffer() {
    if paged_mode_is_missing("gnu_sort_fills_a_large_buffer") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (input, output) = (dir.path().join("input"), dir.path().join("output"));
    fs::write(&input, lines(350_000)).expect("a file");
    let mut command = Command::new("sort");
    command.args(["--buffer-size=400M", "--parallel=2", "-o"]).arg(&output).arg(&input);
    command.env("LC_ALL", "C");
    let program = Program {
        command,
        result: Box::new(move || {
            let sorted = fs::read(&output).expect("sort writes its output");
            fs::remove_file(&output).expect("the output");
            sorted
        }),
    };
    compare(Rack::shared(Port::Shm), "sort", &program);
}

/// Generates lines of 96 characters with many common prefixes.
fn lines(count: usize) -> Vec<u8> {
    let mut random = SplitMix64(99);
    let mut text = String::with_capacity(count * 97);
    for _ in 0..count {
        let number = random.draw();
        let _ = writeln!(text, "{:04}{:092x}", number % 1000, u128::from(number).pow(2));
    }
    text.into_bytes()
}

#[test]
fn gcc_compiles_a_large_file() {
    if paged_mode_is_missing("gcc_compiles_a_large_file") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (source, object) = (dir.path().join("large.c"), dir.path().join("large.o"));
    fs::write(&source, c_source(900)).expect("a file");
    let mut command = Command::new("gcc");
    command.args(["-O1", "-c", "-o"]).arg(&object).arg(&source).current_dir(dir.path());
    let program = Program {
        command,
        result: Box::new(move || {
            let compiled = fs::read(&object).expect("gcc writes the object");
            fs::remove_file(&object).expect("the object");
            compiled
        }),
    };
    compare(Rack::shared(Port::Shm), "gcc", &program);
}

/// Generates a C file of many functions, with tables that the compiler keeps in memory to the end.
fn c_source(functions: usize) -> String {
    let mut random = SplitMix64(5);
    let mut text = String::from("#include <stdint.h>\n");
    for f in 0..functions {
        let _ = writeln!(text, "static const uint64_t table_{f}[64] = {{");
        for _ in 0..64 {
            let _ = write!(text, "{}u,", random.draw() >> 1);
        }
        let _ = writeln!(text, "}};\nuint64_t function_{f}(uint64_t x, uint64_t y) {{");
        for step in 0..12 {
            let _ = writeln!(
                text,
                "  x = (x ^ table_{f}[(y + {step}) & 63]) * {}u; if (x & {}) y += x >> {};",
                random.draw() >> 1,
                1 << step,
                step + 3
            );
        }
        let _ = writeln!(text, "  return x ^ y;\n}}");
    }
    text
}

#[test]
fn stress_ng_verifies_its_writes() {
    if paged_mode_is_missing("stress_ng_verifies_its_writes") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut command = Command::new("stress-ng");
    command.args([
        "--vm",
        "2",
        "--vm-bytes",
        "192M",
        "--vm-keep",
        "--vm-ops",
        "200000",
        "--verify",
    ]);
    command.args(["--vm-method", "all", "--seed", "1", "--oomable", "--timeout", "90"]);
    command.current_dir(dir.path());

    let plain = Running::spawn(copy(&command), false).finish(PROGRAM_LIMIT);
    plain.expect_code(0);
    let local_bytes = quarter_of(plain.peak_bytes);
    let options = run_options(local_bytes, 2 * plain.peak_bytes);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let rack = Rack::shared(Port::Shm);
    let venice = rack.run(&options, &command).finish(PROGRAM_LIMIT);
    report("stress-ng", &plain, &venice, local_bytes);
    // Its times differ from run to run; its verification must not.
    venice.expect_code(0);
    assert!(!venice.stderr.contains("fail:"), "{}", venice.stderr);
    check_resident("stress-ng", &venice, local_bytes);
}
