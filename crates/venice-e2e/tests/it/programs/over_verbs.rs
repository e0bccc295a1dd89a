//! Programs under `venice run` whose far memory is reached by RDMA: a rack in the guest, over soft
//! RoCE. An emulated processor runs donors, recipient and all devices, so the programs are small.

use venice_e2e::programs::in_guest::{PROGRAM, check_turns, in_guest};
use venice_testkit::guest::{GuestPlan, Room};

static ROOM: Room = Room::new(GuestPlan {
    memory_mib: 2048,
    processors: 2,
    set_up: "ip link add venice0 type veth peer name venice1 && \
             ip addr add 10.77.0.1/24 dev venice0 && \
             ip link set venice0 up && ip link set venice1 up && \
             rdma link add rxe0 type rxe netdev venice0",
    ..GuestPlan::new("run-over-verbs", &["veth", "rdma_rxe"])
});

#[test]
fn write_and_read_back_over_verbs() {
    // A busy machine may delay a donor's answer to the Monitor Node: the request is repeated then.
    let script = format!(
        "$v up --nodes 1 --lend 128MiB --port verbs; touch ${{go}}1; \
         for attempt in 1 2 3 4 5; do \
             $v run --local 6MiB --remote 64MiB --stats -- python3 -c \"{PROGRAM}\" $go 1 9 \
                 && exit 0; \
             sleep 1; \
         done; cat $VENICE_RUN_DIR/*/*log; exit 1"
    );
    let test = "write_and_read_back_over_verbs";
    let Some(output) = in_guest(&ROOM, test, &script) else { return };
    check_turns(&output, 1);
    assert!(!output.contains(" 0 far;"), "it paged: {output}");
}

/// One donor of three dies, its replicas are rebuilt on the third, another dies, and no byte is
/// lost.
#[test]
fn replicas_are_rebuilt_over_verbs() {
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
    let Some(output) = in_guest(&ROOM, "replicas_are_rebuilt_over_verbs", &script) else {
        return;
    };
    check_turns(&output, 3);
}

/// A drained donor's only replicas move to other donors, and to the program's own machine at last,
/// while the program runs.
#[test]
fn drained_memory_moves_over_verbs() {
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
    let test = "drained_memory_moves_over_verbs";
    let Some(output) = in_guest(&ROOM, test, &script) else { return };
    check_turns(&output, 3);
    for said in ["node node1 has its memory back", "node node2 has its memory back"] {
        assert!(output.contains(said), "{said}: {output}");
    }
}

/// One of three donors of coded memory dies: pages are computed, fragments rebuilt on a fourth that
/// had none before, and another dies.
#[test]
fn coded_memory_outlives_a_donor_over_verbs() {
    // Three fragments lie on three nodes, independent of the order in which the four joined. The
    // coding's own tables take 8 MiB of the local memory.
    let script = format!(
        "$v up --nodes 4 --lend 64MiB --port verbs; $v drain node4; \
         $v run --local 14MiB --remote 32MiB --coding 2+1 --stats \
             -- python3 -c \"{PROGRAM}\" $go 3 16 > $log 2>&1 & run=$!; \
         waits $log 'written 1'; $v drain --undo node4; \
         pkill -9 -f 'agent.*node1'; touch ${{go}}1; \
         waits $log 'all fragments are there again'; \
         waits $log 'written 2'; \
         pkill -9 -f 'agent.*node2'; sleep 1; touch ${{go}}2; \
         waits $log 'written 3'; touch ${{go}}3; \
         wait $run; code=$?; run=; cat $log; exit $code"
    );
    let test = "coded_memory_outlives_a_donor_over_verbs";
    let Some(output) = in_guest(&ROOM, test, &script) else { return };
    check_turns(&output, 3);
}
