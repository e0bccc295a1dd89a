//! Programs whose far memory lies in memory devices (DAX): racks in a guest that has two of them.

use venice_e2e::programs::in_guest::{PROGRAM, check_turns, in_guest};
use venice_testkit::guest::{GuestPlan, Room};

/// NVDIMMs stand for memory behind a fabric. dax0.0 is mapped by pages of 4 KiB, as a window needs
/// them, dax1.0 by those of 2 MiB.
static ROOM: Room = Room::new(GuestPlan {
    memory_mib: 1280,
    processors: 2,
    devices: &[
        "-M",
        "nvdimm=on",
        "-m",
        "slots=4,maxmem=6G",
        "-object",
        "memory-backend-ram,id=small,size=128M",
        "-device",
        "nvdimm,id=nvdimm0,memdev=small",
        "-object",
        "memory-backend-ram,id=large,size=128M",
        "-device",
        "nvdimm,id=nvdimm1,memdev=large",
    ],
    // The same steps as `ndctl create-namespace --mode=devdax --map=mem --align=...`.
    set_up: "dax() { cd /sys/bus/nd && echo namespace$1.0 >drivers/nd_pmem/unbind &&
        echo $2 >devices/dax$1.0/align && echo ram >devices/dax$1.0/mode &&
        cat /proc/sys/kernel/random/uuid >devices/dax$1.0/uuid &&
        echo namespace$1.0 >devices/dax$1.0/namespace && echo dax$1.0 >drivers/dax_pmem/bind; } &&
        dax 0 4096 && dax 1 2097152 && ls -l /dev/dax0.0 /dev/dax1.0",
    ..GuestPlan::new("dax", &["nfit", "nd_pmem", "dax_pmem", "device_dax", "kmem"])
});

/// Counts the pages of a device that hold the data of [`PROGRAM`]: one byte and zeros.
const LOOK: &str = "\
import mmap, os, sys
bytes = int(open('/sys/bus/dax/devices/' + sys.argv[1] + '/size').read())
memory = mmap.mmap(os.open('/dev/' + sys.argv[1], os.O_RDWR), bytes)
pages = sum(memory[at:at + 4096].count(0) == 4095 for at in range(0, bytes, 4096))
print(sys.argv[2], 'pages:', pages, flush=True)
";

/// Starts [`PROGRAM`] with most of its memory in a window, for so many turns, and lets it write the
/// first.
fn in_window(turns: u32) -> String {
    format!(
        "$v run --mode window --local 6MiB --remote 64MiB -- python3 -c \"{PROGRAM}\" $go {turns} 48 \
             > $log 2>&1 & run=$!; \
         waits $log 'written 1'; "
    )
}

/// Returns the number behind `words`.
fn number(output: &str, words: &str) -> u64 {
    let (_, after) = output.split_once(words).unwrap_or_else(|| panic!("no {words:?}: {output}"));
    let digits = after.trim_start().split(|c: char| !c.is_ascii_digit()).next().unwrap();
    digits.parse().unwrap_or_else(|_| panic!("no number after {words:?}: {output}"))
}

/// A program's own loads and stores reach the device, and its pages are zeroed afterwards.
#[test]
fn window_maps_the_device() {
    let program = in_window(1);
    let script = format!(
        "$v up --nodes 1 --lend-dax dax0.0; \
         {program}\
         echo mappings: $(grep -c /dev/dax0.0 /proc/$(pgrep -n python3)/maps); \
         python3 -c \"{LOOK}\" dax0.0 then; \
         touch ${{go}}1; wait $run; code=$?; run=; cat $log; \
         frees 117440512; \
         python3 -c \"{LOOK}\" dax0.0 afterwards; \
         $v nodes; $v window list; exit $code"
    );
    let Some(output) = in_guest(&ROOM, "window_maps_the_device", &script) else { return };
    check_turns(&output, 1);
    assert!(number(&output, "mappings:") > 1, "{output}");
    assert!(number(&output, "then pages:") > 9000, "{output}");
    assert_eq!(number(&output, "afterwards pages:"), 0, "{output}");
}

/// A program pages to a device with large pages, and over the network.
#[test]
fn paging_uses_devices_with_large_pages() {
    let run = |port, go: &str| {
        format!(
            "touch ${{go}}{go}1; \
             $v run --port {port} --local 6MiB --remote 64MiB --stats -- \
                 python3 -c \"{PROGRAM}\" ${{go}}{go} 1 24 || exit; "
        )
    };
    let script = format!(
        "$v up --nodes 2 --lend-dax dax0.0 --lend-dax node2/dax1.0; $v status; {}{}",
        run("shm", "a"),
        run("udp", "b")
    );
    let test = "paging_uses_devices_with_large_pages";
    let Some(output) = in_guest(&ROOM, test, &script) else { return };
    assert_eq!(output.matches("right 1\n").count(), 2, "{output}");
    assert!(!output.contains(" 0 far;"), "it paged: {output}");
}

/// Mapped memory stays with its program when the agent dies: the agent's successor lends only the
/// rest.
#[test]
fn mapped_memory_is_not_lent_again() {
    let program = in_window(2);
    let script = format!(
        "$v up --nodes 1 --lend-dax dax0.0; \
         {program}frees 50331648; \
         VENICE_RUN_DIR=/run/other $v up --nodes 1 --lend-dax dax0.0; \
         pkill -9 -f 'agent.*node1'; sleep 1; $v up; frees 50331648; \
         touch ${{go}}1; waits $log 'written 2'; touch ${{go}}2; \
         wait $run; code=$?; run=; cat $log; frees 117440512; echo all is free; exit $code"
    );
    let test = "mapped_memory_is_not_lent_again";
    let Some(output) = in_guest(&ROOM, test, &script) else { return };
    check_turns(&output, 2);
    assert!(output.contains("/dev/dax0.0 is lent by another agent of this machine"), "{output}");
    assert!(output.contains("all is free"), "{output}");
}

/// Unsupported requests are refused, with the reason.
#[test]
fn unsupported_requests_are_refused() {
    let script = "\
        $v up --nodes 1 --lend-dax dax7.0; $v up --nodes 1 --lend-dax sda; \
        $v up --nodes 1 --lend-dax node3/dax0.0; \
        $v agent --name x --lend 64MiB --lend-dax dax0.0; $v agent --name x --lend-dax sda; \
        $v up --nodes 1 --lend-dax dax1.0; \
        $v run --mode window --local 6MiB --remote 16MiB -- echo it ran; \
        cd /; $v up --nodes 1 --lend-dax dax0.0; echo over";
    let test = "unsupported_requests_are_refused";
    let Some(output) = in_guest(&ROOM, test, script) else { return };
    for said in [
        "--lend-dax: no DAX device dax7.0",
        "write it as in dax0.0",
        "--lend-dax node3/dax0.0: there are node1 to node1",
        "cannot be used with",
        "\"sda\" is not a memory device name",
        "mapped by pages of 2MiB, and a window needs those of 4KiB",
        "in which node1 lends dax1.0",
    ] {
        assert!(output.contains(said), "{said}: {output}");
    }
    assert!(!output.contains("it ran"), "{output}");
}
