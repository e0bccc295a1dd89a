//! Programs under `venice run` whose far memory is reached by RDMA: a rack in the guest, over soft
//! RoCE. An emulated processor runs donors, recipient and all devices, so the programs are small.

use std::time::Duration;

use venice_guest_test::{GuestPlan, Room};
use venice_programs_test::venice_binary;

static ROOM: Room = Room::new(GuestPlan {
    memory_mib: 2048,
    processors: 2,
    set_up: "ip link add venice0 type veth peer name venice1 && \
             ip addr add 10.77.0.1/24 dev venice0 && \
             ip link set venice0 up && ip link set venice1 up && \
             rdma link add rxe0 type rxe netdev venice0",
    ..GuestPlan::new("run-over-verbs", &["veth", "rdma_rxe"])
});

/// What each of the scripts can use: `waits FILE WORDS` waits until a file has words in it, and shows what
/// there is when they do not come.
const SHELL: &str = "\
export VENICE_RUN_DIR=/run/rack-$name; cd /; log=/run/$name.log; go=/run/$name.go; \
run=; trap 'test -z $run || kill $run 2> /dev/null; $v down' EXIT; \
waits() { for i in $(seq 900); do grep -q \"$2\" $1 && return; sleep 0.2; done; \
          echo \"no '$2' in $1:\"; cat $log $VENICE_RUN_DIR/*/*log; exit 1; }; ";

/// Writes more than it may keep, and reads it back, as often as it is told to go on.
const PROGRAM: &str = "\
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

/// Runs a script in the guest; what it said, or `None` without one.
fn in_guest(test: &str, script: &str) -> Option<String> {
    let venice = venice_binary();
    let name = &test[..10]; // Paths of sockets are short.
    let script = format!("name={name}; v='{}'; {SHELL}{script}", venice.display());
    match ROOM.with(|guest| guest.must(&script, Duration::from_secs(400))) {
        Ok(output) => {
            let output = output.unwrap_or_else(|error| panic!("{error}"));
            println!("{output}");
            Some(output)
        }
        Err(reason) => {
            println!("SKIPPED: {test}: no qemu: {reason}");
            None
        }
    }
}

/// In each of so many turns the program has read back what it wrote.
fn was_right(output: &str, turns: u32) {
    for turn in 1..=turns {
        assert!(output.contains(&format!("right {turn}\n")), "{output}");
    }
}

#[test]
fn a_program_reads_back_what_it_wrote_over_verbs() {
    // A busy machine may keep the Monitor Node waiting for a donor: asked again then.
    let script = format!(
        "$v up --nodes 1 --lend 128MiB --port verbs; touch ${{go}}1; \
         for attempt in 1 2 3 4 5; do \
             $v run --local 6MiB --remote 64MiB --stats -- python3 -c \"{PROGRAM}\" $go 1 9 \
                 && exit 0; \
             sleep 1; \
         done; cat $VENICE_RUN_DIR/*/*log; exit 1"
    );
    let test = "a_program_reads_back_what_it_wrote_over_verbs";
    let Some(output) = in_guest(test, &script) else { return };
    was_right(&output, 1);
    assert!(!output.contains(" 0 far;"), "it paged: {output}");
}

/// One donor of three dies, its copies are built anew on the third, another dies, and no byte is lost.
#[test]
fn lost_copies_are_built_anew_over_verbs() {
    let script = format!(
        "$v up --nodes 3 --lend 64MiB --port verbs; \
         $v run --local 6MiB --remote 32MiB --copies 2 --stats -- python3 -c \"{PROGRAM}\" $go 3 9 \
             > $log 2>&1 & run=$!; \
         waits $log 'written 1'; \
         pkill -9 -f 'agent.*node1'; \
         waits $log 'all copies are there again'; touch ${{go}}1; \
         waits $log 'written 2'; \
         pkill -9 -f 'agent.*node2'; sleep 1; touch ${{go}}2; \
         waits $log 'written 3'; touch ${{go}}3; \
         wait $run; code=$?; run=; cat $log; exit $code"
    );
    let Some(output) = in_guest("lost_copies_are_built_anew_over_verbs", &script) else { return };
    was_right(&output, 3);
}

/// A drained donor's only copies move to other donors, and to the program's own machine at last,
/// while the program runs.
#[test]
fn a_drained_donors_memory_moves_over_verbs() {
    let script = format!(
        "$v up --nodes 2 --lend 64MiB --port verbs; \
         $v run --local 6MiB --remote 32MiB --copies 1 --reclaim-to donors,local --stats \
             -- python3 -c \"{PROGRAM}\" $go 3 9 > $log 2>&1 & run=$!; \
         waits $log 'written 1'; \
         $v drain node1; touch ${{go}}1; \
         waits $log 'written 2'; \
         $v drain node2; touch ${{go}}2; \
         waits $log 'written 3'; touch ${{go}}3; \
         wait $run; code=$?; run=; cat $log; exit $code"
    );
    let test = "a_drained_donors_memory_moves_over_verbs";
    let Some(output) = in_guest(test, &script) else { return };
    was_right(&output, 3);
    for said in ["node node1 has its memory back", "node node2 has its memory back"] {
        assert!(output.contains(said), "{said}: {output}");
    }
}

/// Of three donors of coded memory one dies: pages are computed, fragments built anew on a fourth, and
/// another dies.
#[test]
fn coded_memory_outlives_a_donor_over_verbs() {
    // The coding's own tables are 8 MiB of what is local.
    let script = format!(
        "$v up --nodes 4 --lend 64MiB --port verbs; \
         $v run --local 14MiB --remote 32MiB --coding 2+1 --stats \
             -- python3 -c \"{PROGRAM}\" $go 3 16 > $log 2>&1 & run=$!; \
         waits $log 'written 1'; \
         pkill -9 -f 'agent.*node1'; touch ${{go}}1; \
         waits $log 'all fragments are there again'; \
         waits $log 'written 2'; \
         pkill -9 -f 'agent.*node2'; sleep 1; touch ${{go}}2; \
         waits $log 'written 3'; touch ${{go}}3; \
         wait $run; code=$?; run=; cat $log; exit $code"
    );
    let test = "coded_memory_outlives_a_donor_over_verbs";
    let Some(output) = in_guest(test, &script) else { return };
    was_right(&output, 3);
}
