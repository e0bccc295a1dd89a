//! Shell scripts that run in a guest, each with a rack of its own.

use std::time::Duration;

use venice_testkit::guest::{Ran, Room};

use crate::programs::venice_binary;

const LIMIT: Duration = Duration::from_secs(400);

/// Definitions for all scripts: `$v` is venice; `waits FILE WORDS` waits until a file contains
/// words; `frees BYTES` waits until a node has so much free. Both print the state after a timeout.
const SHELL: &str = "\
export VENICE_RUN_DIR=/run/rack-$name; cd /; log=/run/$name.log; go=/run/$name.go; \
run=; trap 'test -z $run || kill $run 2> /dev/null; $v down' EXIT; \
waits() { for i in $(seq 900); do grep -q \"$2\" $1 && return; sleep 0.2; done; \
          echo \"no '$2' in $1:\"; cat $log $VENICE_RUN_DIR/*/*log; exit 1; }; \
frees() { for i in $(seq 300); do \
          $v nodes --json | grep -q \"free_bytes.: $1,\" && return; sleep 0.2; done; \
          $v nodes; cat $log $VENICE_RUN_DIR/*/*log; exit 1; }; ";

/// A Python program: `GO TURNS MIB`. In each turn, once the file GO with the turn's number exists,
/// it writes more than it may keep, and reads it back.
pub const PROGRAM: &str = "\
import os, sys, time
size, go = int(sys.argv[3]) << 20, sys.argv[1]
b, pages = bytearray(size), range(0, size, 4096)
for turn in range(1, int(sys.argv[2]) + 1):
    for i in pages: b[i] = (i >> 12) * turn % 251 + 1
    print('written', turn, flush=True)
    while not os.path.exists(go + str(turn)): time.sleep(0.1)
    right = all(b[i] == (i >> 12) * turn % 251 + 1 for i in pages)
    print('right' if right else 'wrong', turn, flush=True)
";

/// Runs the script of a test in the room's guest; returns its output, or `None` without a guest.
///
/// # Panics
/// When the script fails.
pub fn in_guest(room: &Room, test: &str, script: &str) -> Option<String> {
    let venice = venice_binary();
    let name = &test[..10]; // Paths of sockets are short.
    let script = format!("name={name}; v='{}'; {SHELL}{script}", venice.display());
    match room.run(&script, LIMIT) {
        Ok(ran) => {
            let Ran { status, output } = ran.unwrap_or_else(|error| panic!("{error}"));
            println!("{output}");
            assert!(status == 0, "the script ended with {status}");
            Some(output)
        }
        Err(reason) => {
            println!("SKIPPED: {test}: no qemu: {reason}");
            None
        }
    }
}

/// Checks that the program has read back its data in each of so many turns.
///
/// # Panics
/// When it has not.
pub fn check_turns(output: &str, turns: u32) {
    for turn in 1..=turns {
        assert!(output.contains(&format!("right {turn}\n")), "{output}");
    }
}
