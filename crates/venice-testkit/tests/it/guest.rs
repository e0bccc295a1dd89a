//! The guest itself.

use std::time::Duration;

use venice_testkit::guest::{Guest, GuestError, GuestPlan, Room, inside};

const LIMIT: Duration = Duration::from_secs(60);

static ROOM: Room = Room::new(GuestPlan::new(
    "guest-itself",
    &["nbd", "bonding", "sch_netem", "nvme-tcp", "cxl_mem", "kmem", "rdma_rxe"],
));

#[test]
fn commands_return_status_and_output() {
    let told = ROOM.with(|guest| {
        let ran = guest.run("echo out; echo err >&2; exit 7", LIMIT).unwrap();
        assert_eq!((ran.status, ran.output.as_str()), (7, "out\nerr\n"));
        let ran = guest.run("echo later; sleep 100", Duration::from_secs(1)).unwrap();
        assert!(ran.status == 137 && ran.output.starts_with("later\n"), "{ran:?}");
        let many = guest.must("head -c 300000 /dev/zero | tr '\\0' x", LIMIT).unwrap();
        assert!(many.len() == 300_000 && many.bytes().all(|byte| byte == b'x'));
        let failed = guest.must("false", LIMIT).unwrap_err();
        assert!(matches!(failed, GuestError::Failed { status: 1, .. }), "{failed}");
    });
    if let Err(reason) = told {
        println!("SKIPPED: commands_return_status_and_output: no qemu: {reason}");
    }
}

#[test]
fn test_runs_inside_the_guest() {
    inside(&ROOM, "test_runs_inside_the_guest", LIMIT, || {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        assert!(release.contains("amd64"), "Debian's kernel, not {release}");
        let modules = std::fs::read_to_string("/proc/modules").unwrap();
        for module in ["nbd ", "bonding ", "sch_netem ", "rdma_rxe "] {
            assert!(modules.contains(module), "{module} is not loaded");
        }
    });
}

#[test]
fn writes_stay_in_the_guest() {
    let scratch = std::env::temp_dir().join(format!("written-in-a-guest-{}", std::process::id()));
    let told = ROOM.with(|guest| {
        let path = scratch.display();
        let read = guest.must(&format!("echo here >'{path}'; cat '{path}'"), LIMIT).unwrap();
        assert_eq!(read, "here\n");
        assert!(!scratch.exists());
    });
    if let Err(reason) = told {
        println!("SKIPPED: writes_stay_in_the_guest: no qemu: {reason}");
    }
}

#[test]
fn dead_guest_error_has_its_console() {
    let mut guest = match Guest::boot(&GuestPlan::new("guest-that-dies", &[])) {
        Ok(guest) => guest,
        Err(GuestError::Missing(reason)) => {
            let test = "dead_guest_error_has_its_console";
            return println!("SKIPPED: {test}: no qemu: {reason}");
        }
        Err(error) => panic!("{error}"),
    };
    let error = guest.run("echo c >/proc/sysrq-trigger", LIMIT).unwrap_err();
    assert!(error.to_string().contains("Kernel panic"), "{error}");
}
