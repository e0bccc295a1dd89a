//! One program run without Venice, then with a quarter of its peak memory local.

use std::process::Command;
use std::time::Duration;

use crate::programs::{MIB, Outcome, Rack, Running};

/// Fixed part of the margin of resident anonymous memory above `--local`: resident memory that is
/// not paged (the data of the program and its libraries, the main stack, the pager's own tables).
pub const MARGIN_FIXED_BYTES: u64 = 8 * MIB;
/// Divisor of `--local` for the rest of the margin: pages that faults bring in before eviction
/// catches up.
pub const MARGIN_SHARE: u64 = 16;

/// Time limit of one program, far above any normal duration, so that only a hang exceeds it.
pub const PROGRAM_LIMIT: Duration = Duration::from_secs(240);

/// A program with the files whose bytes are part of its result.
pub struct Program {
    /// The command to start.
    pub command: Command,
    /// Reads the result beside the standard output; called after each run.
    pub result: Box<dyn Fn() -> Vec<u8>>,
}

impl Program {
    /// Creates a program whose result is its standard output alone.
    pub fn new(command: Command) -> Program {
        Program { command, result: Box::new(Vec::new) }
    }
}

/// Results of both runs, for further checks.
pub struct Compared {
    /// The run without Venice.
    pub plain: Outcome,
    /// The run with a quarter of that run's peak local.
    pub venice: Outcome,
    /// The `--local` of the second run, in bytes.
    pub local_bytes: u64,
}

/// Runs `program` both ways; exit code, output and result must be the same, and the resident memory
/// must stay near `--local`.
#[track_caller]
pub fn compare(rack: &Rack, name: &str, program: &Program) -> Compared {
    let plain = Running::spawn(copy(&program.command), false).finish(PROGRAM_LIMIT);
    plain.expect_code(0);
    let plain_result = (program.result)();

    let local_bytes = quarter_of(plain.peak_bytes);
    let options = run_options(local_bytes, plain.peak_bytes);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let venice = rack.run(&options, &program.command).finish(PROGRAM_LIMIT);
    report(name, &plain, &venice, local_bytes);
    venice.expect_code(plain.code());
    assert!(
        plain.stdout == venice.stdout,
        "{name}: standard output differs: {}",
        difference(&plain.stdout, &venice.stdout)
    );
    assert!(plain_result == (program.result)(), "{name}: its result differs");
    check_resident(name, &venice, local_bytes);
    check_all_together(name, &venice, local_bytes);
    Compared { plain, venice, local_bytes }
}

/// Runs `program` plainly and by `venice run` with `options`: exit code 0 and the same output are
/// required. Returns the outcome of the run under Venice.
#[track_caller]
pub fn same_output(rack: &Rack, options: &[&str], program: &Command) -> Outcome {
    let plain = Running::spawn(copy(program), false).finish(PROGRAM_LIMIT);
    plain.expect_code(0);
    let venice = rack.run(options, program).finish(PROGRAM_LIMIT);
    venice.expect_code(0);
    assert_eq!(
        String::from_utf8_lossy(&plain.stdout),
        String::from_utf8_lossy(&venice.stdout),
        "{}",
        venice.stderr
    );
    venice
}

/// Returns a quarter of a peak, rounded up to a whole MiB.
pub fn quarter_of(peak_bytes: u64) -> u64 {
    assert!(peak_bytes >= 32 * MIB, "a peak of {peak_bytes} bytes is too small to show anything");
    (peak_bytes / 4).next_multiple_of(MIB)
}

/// Returns the options of `venice run` for a program with this peak: twice the peak far, for a fork
/// that rewrites everything.
pub fn run_options(local_bytes: u64, peak_bytes: u64) -> Vec<String> {
    let remote_bytes = (2 * peak_bytes).next_multiple_of(MIB) + 64 * MIB;
    ["--local", &local_bytes.to_string(), "--remote", &remote_bytes.to_string(), "--stats"]
        .map(String::from)
        .to_vec()
}

/// Checks that the resident memory of the run stayed within the margin, and that the run was really
/// paged.
#[track_caller]
pub fn check_resident(name: &str, venice: &Outcome, local_bytes: u64) {
    let allowed = allowed_bytes(local_bytes);
    assert!(
        venice.peak_bytes <= allowed,
        "{name}: {} MiB resident at its peak, --local was {} MiB: at most {} MiB are allowed",
        venice.peak_bytes / MIB,
        local_bytes / MIB,
        allowed / MIB
    );
    assert!(
        venice.stderr.contains("faults"),
        "{name}: --stats printed no summary:\n{}",
        venice.stderr
    );
}

/// Checks that all processes of the run together stayed within the margin: for programs whose
/// processes share little, since a fork's shared pages count twice.
#[track_caller]
pub fn check_all_together(name: &str, venice: &Outcome, local_bytes: u64) {
    let allowed = allowed_bytes(local_bytes);
    assert!(
        venice.peak_sum_bytes <= allowed,
        "{name}: all processes together had {} MiB resident, --local was {} MiB: at most {} MiB",
        venice.peak_sum_bytes / MIB,
        local_bytes / MIB,
        allowed / MIB
    );
}

/// Checks by `--stats` that pages left for the donors and came back.
#[track_caller]
pub fn check_went_far(name: &str, venice: &Outcome) {
    /// More than a run that only looks at far memory moves.
    const MANY: u64 = 200;
    for words in ["pages in ", "pages out "] {
        let pages = venice.number_after(words);
        assert!(pages >= MANY, "{name}: {words}{pages}:\n{}", venice.stderr);
    }
}

fn allowed_bytes(local_bytes: u64) -> u64 {
    local_bytes + MARGIN_FIXED_BYTES + local_bytes / MARGIN_SHARE
}

/// Prints the cost of the run in one line.
pub fn report(name: &str, plain: &Outcome, venice: &Outcome, local_bytes: u64) {
    println!(
        "{name}: peak {} MiB in {:.1} s without Venice; --local {} MiB: peak {} MiB, \
         all processes {} MiB, in {:.1} s",
        plain.peak_bytes / MIB,
        plain.took.as_secs_f64(),
        local_bytes / MIB,
        venice.peak_bytes / MIB,
        venice.peak_sum_bytes / MIB,
        venice.took.as_secs_f64()
    );
    println!("{}", venice.stderr);
}

/// Copies program, arguments, environment and directory: `Command` has no `clone`.
pub fn copy(command: &Command) -> Command {
    let mut copy = Command::new(command.get_program());
    copy.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => copy.env(name, value),
            None => copy.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        copy.current_dir(dir);
    }
    copy
}

/// Describes the first lines that differ, or the lengths.
fn difference(plain: &[u8], venice: &[u8]) -> String {
    let (plain, venice) = (String::from_utf8_lossy(plain), String::from_utf8_lossy(venice));
    let pair = plain.lines().zip(venice.lines()).enumerate().find(|(_, (a, b))| a != b);
    match pair {
        Some((line, (a, b))) => format!("line {}: {a:.200?} became {b:.200?}", line + 1),
        None => format!("{} bytes became {}", plain.len(), venice.len()),
    }
}
