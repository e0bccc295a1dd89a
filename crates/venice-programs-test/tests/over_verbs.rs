//! A program under `venice run` whose far memory is reached by RDMA: a rack in the guest, over soft
//! RoCE. An emulated processor runs donor, recipient and both devices, so the program is small.

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

/// Writes twice what it may keep, and reads it back.
const PROGRAM: &str = "\
b = bytearray(9 << 20)
for i in range(0, len(b), 4096): b[i] = (i >> 12) % 251 + 1
print('right' if all(b[i] == (i >> 12) % 251 + 1 for i in range(0, len(b), 4096)) else 'wrong')
";

#[test]
fn a_program_reads_back_what_it_wrote_over_verbs() {
    let venice = venice_binary();
    // A busy machine may keep the Monitor Node waiting for a donor: asked again then.
    let script = format!(
        "export VENICE_RUN_DIR=/run/rack; v='{}'; cd /; \
         $v up --nodes 1 --lend 128MiB --port verbs && \
         for attempt in 1 2 3 4 5; do \
             $v run --local 6MiB --remote 64MiB --stats -- python3 -c \"{PROGRAM}\" && exit 0; \
             sleep 1; \
         done; cat /run/rack/*/*log; exit 1",
        venice.display()
    );
    let ran = ROOM.with(|guest| guest.must(&script, Duration::from_secs(240)));
    match ran {
        Ok(output) => {
            let output = output.unwrap_or_else(|error| panic!("{error}"));
            println!("{output}");
            assert!(output.contains("right\n"), "{output}");
            assert!(!output.contains(" 0 far;"), "it paged: {output}");
        }
        Err(reason) => {
            println!("SKIPPED: a_program_reads_back_what_it_wrote_over_verbs: no qemu: {reason}");
        }
    }
}
