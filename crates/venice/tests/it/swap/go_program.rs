//! A program in Go: its runtime maps memory by bare system calls, invisible to a shim, so that only
//! the kernel can page it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use venice_wire::ByteSize;

use super::{can_swap, grants, list};
use crate::common::{Place, Said, finish};

const LINES: u64 = 400_000;
const WANTED: &str = "f00d";
/// Marker in every program made by Go's linker.
const GO_BUILD_INFO: &[u8] = b"\xff Go buildinf:";

/// Lines of hexadecimal digits, one for each number, in order.
fn lines() -> String {
    let mut text = String::new();
    for number in 0..LINES {
        let digits = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let _ =
            writeln!(text, "{number:07} {digits:016x} {:016x}", digits.rotate_left(29) ^ number);
    }
    text
}

/// Debian's `fzf` reads a list before it prints its matches, in a fraction of the memory.
#[test]
fn go_program_runs_on_swap() {
    const TEST: &str = "go_program_runs_on_swap";
    let Some(_alone) = can_swap(TEST) else { return };
    let program = fs::read("/usr/bin/fzf").expect("scripts/setup.sh installs fzf");
    let marks = program.windows(GO_BUILD_INFO.len()).filter(|bytes| *bytes == GO_BUILD_INFO);
    assert_ne!(marks.count(), 0, "this fzf is not written in Go");

    let place = Place::new();
    place.venice(&["up", "--nodes", "2", "--lend", "128MiB"]).expect(0);
    let text = lines();
    let input = place.file("lines");
    fs::write(&input, &text).unwrap();
    let said = find(&place, &input).expect(0);
    let expected: Vec<&str> = text.lines().filter(|line| line.contains(WANTED)).collect();
    assert!(expected.len() > 100, "the list has only {} lines with {WANTED}", expected.len());
    // Its threads search parts of the list, and print them one after the other.
    let mut found: Vec<&str> = said.out.lines().collect();
    found.sort_unstable();
    assert!(found == expected, "{} lines instead of {}", found.len(), expected.len());

    assert!(said.err.contains("swapped to 192MiB of node"), "{}", said.err);
    let written = said.err.split("written ").nth(1).and_then(|rest| rest.split(';').next());
    let written: ByteSize = written.expect("a summary").parse().expect("a size");
    assert!(written.0 > 8 << 20, "{}", said.err);
    assert_eq!((list(&place).len(), grants(&place)), (0, 0));
}

fn find(place: &Place, input: &Path) -> Said {
    // It prints nothing before it has read the whole list.
    let script = "exec fzf --exact --no-sort --sync --filter \"$1\" <\"$2\"";
    let input = input.to_str().unwrap();
    let run = ["run", "--mode", "swap", "--local", "24MiB", "--remote", "192MiB", "--copies", "1"];
    let program = ["--stats", "--", "sh", "-c", script, "sh", WANTED, input];
    let mut command = place.command(&[&run[..], &program].concat());
    command.env_remove("FZF_DEFAULT_OPTS");
    finish(command, &run)
}
