//! `venice window` in a guest whose memory device is a file of this machine: the donor's memory
//! becomes system memory of the recipient.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use venice_testkit::guest::{Guest, GuestPlan, Room};

const LIMIT: Duration = Duration::from_secs(200);
/// The donor's memory, as seen from here and, by QEMU, from this crate's directory.
const DONOR: &str = "../../target/guest/window-donor.mem";

/// An NVDIMM on a NUMA node without processors stands for memory behind a fabric: firmware
/// describes it like a CXL device, and it becomes a DAX device. It is backed by a file of this
/// machine.
static ROOM: Room = Room::new(GuestPlan {
    devices: &[
        "-M",
        "nvdimm=on",
        "-m",
        "slots=2,maxmem=4G",
        "-object",
        "memory-backend-ram,id=own,size=1024M",
        "-numa",
        "node,nodeid=0,cpus=0,memdev=own",
        "-numa",
        "node,nodeid=1",
        "-object",
        "memory-backend-file,id=donor,share=on,mem-path=../../target/guest/window-donor.mem,size=512M",
        "-device",
        "nvdimm,id=nvdimm,memdev=donor,node=1",
    ],
    // Does what `ndctl create-namespace --mode=devdax --map=mem` does.
    set_up: "cd /sys/bus/nd && echo namespace0.0 >drivers/nd_pmem/unbind &&
        echo 2097152 >devices/dax0.0/align && echo ram >devices/dax0.0/mode &&
        cat /proc/sys/kernel/random/uuid >devices/dax0.0/uuid &&
        echo namespace0.0 >devices/dax0.0/namespace && echo dax0.0 >drivers/dax_pmem/bind &&
        mkdir /tmp/groups && mount -t cgroup2 none /tmp/groups &&
        echo +cpuset >/tmp/groups/cgroup.subtree_control && mkdir /tmp/groups/far &&
        echo 1 >/tmp/groups/far/cpuset.mems",
    ..GuestPlan::new("window", &["nfit", "nd_pmem", "dax_pmem", "device_dax"])
});

/// A program that fills memory of NUMA node 1 with known lines, waits, and checks them.
const PROGRAM: &str = r#"
(echo $BASHPID >/tmp/groups/far/cgroup.procs; exec python3 -c '
import os, time
line = lambda i: ("venice-window-%08d " % i) * 20
lines = [line(i) for i in range(40000)]
open("/tmp/filled", "w").close()
while not os.path.exists("/tmp/go-on"): time.sleep(0.05)
wrong = sum(lines[i] != line(i) for i in range(40000))
print(wrong, "lines are wrong")
' >/tmp/said 2>&1) &
"#;

fn venice(guest: &mut Guest, words: &str) -> String {
    guest.must(&format!("'{}' {words}", env!("CARGO_BIN_EXE_venice")), LIMIT).unwrap()
}

/// Memory of NUMA node 1 in the guest, in KiB.
fn node_kib(guest: &mut Guest, what: &str) -> u64 {
    let command = format!("grep -s {what} /sys/devices/system/node/node1/meminfo || echo x x x 0");
    let said = guest.must(&command, LIMIT).unwrap();
    said.split_whitespace().nth(3).unwrap().parse().unwrap()
}

/// Counts the beginnings of the program's lines in the donor's memory.
fn lines_at_the_donor() -> usize {
    let found = Command::new("grep").args(["-a", "-o", "venice-window-00011", DONOR]).output();
    String::from_utf8_lossy(&found.unwrap().stdout).lines().count()
}

#[test]
fn donor_memory_attaches_and_detaches() {
    let _ = fs::remove_file(DONOR);
    let told = ROOM.with(|guest| {
        let without =
            guest.run(&format!("'{}' window attach dax0.0", env!("CARGO_BIN_EXE_venice")), LIMIT);
        let without = without.unwrap();
        assert!(without.status == 1 && without.output.contains("modprobe kmem"), "{without:?}");
        guest.must("modprobe kmem", LIMIT).unwrap();
        // The doctor's other rows are ignored: the shim, for one, need not be built yet.
        let doctor = format!("'{}' doctor", env!("CARGO_BIN_EXE_venice"));
        let said = guest.run(&doctor, LIMIT).unwrap().output;
        assert!(said.contains("dax0.0 510MiB (device)"), "{said}");
        assert_eq!(node_kib(guest, "MemTotal"), 0);

        let said = venice(guest, "window attach dax0.0");
        assert!(
            said.contains("dax0.0 is system memory: 3 blocks") && said.contains("node 1"),
            "{said}"
        );
        assert_eq!(node_kib(guest, "MemTotal"), 3 << 17);
        let twice =
            guest.run(&format!("'{}' window attach dax0.0", env!("CARGO_BIN_EXE_venice")), LIMIT);
        assert_eq!(twice.unwrap().status, 2);
        let row: serde_json::Value =
            serde_json::from_str(&venice(guest, "window list --json")).unwrap();
        assert_eq!((&row[0]["state"], &row[0]["online_blocks"]), (&"memory".into(), &3.into()));

        guest.must(PROGRAM, LIMIT).unwrap();
        guest.must("until [ -e /tmp/filled ]; do sleep 0.05; done", LIMIT).unwrap();
        let used_kib = node_kib(guest, "MemUsed");
        assert!(used_kib > 15_000, "the program is elsewhere: {used_kib} KiB used");
        assert!(lines_at_the_donor() > 1000, "the donor's memory holds nothing of it");

        // The pages move to the guest's own memory, unnoticed by the program.
        let said = venice(guest, "window detach dax0.0");
        assert!(said.contains("dax0.0 is a device again"), "{said}");
        assert_eq!(node_kib(guest, "MemTotal"), 0);
        guest
            .must("touch /tmp/go-on; wait; until [ -s /tmp/said ]; do sleep 0.05; done", LIMIT)
            .unwrap();
        assert_eq!(guest.must("cat /tmp/said", LIMIT).unwrap(), "0 lines are wrong\n");
        let again = venice(guest, "window attach dax0.0");
        assert!(again.contains("3 blocks"), "{again}");
    });
    if let Err(reason) = told {
        println!("SKIPPED: donor_memory_attaches_and_detaches: no qemu: {reason}");
    }
    let _ = fs::remove_file(Path::new(DONOR));
}
