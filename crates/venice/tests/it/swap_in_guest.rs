//! `venice swap` and `venice run --mode swap` with nbd and cgroups v2: on Debian's kernel, in a
//! guest.

use crate::swap::anchored;
use crate::swap::bodies;
use crate::swap::by_helper;
use crate::swap::programs;
use std::time::Duration;

use venice_testkit::guest::{GuestPlan, Room, inside};

/// The kernel has ublk too, but its devices do not outlive their server.
static ROOM: Room = Room::new(GuestPlan {
    processors: 2,
    set_up: "mount -t cgroup2 none /sys/fs/cgroup",
    ..GuestPlan::new("venice-swap", &["nbd", "ublk_drv"])
});

/// Time limit of each test, with other load on the machine.
const LIMIT: Duration = Duration::from_secs(480);

/// Runs `body` in the guest, after building the programs it starts there.
fn in_guest(test: &str, body: impl FnOnce()) {
    programs::pages();
    inside(&ROOM, test, LIMIT, body);
}

#[test]
fn programs_swap_over_nbd() {
    in_guest("programs_swap_over_nbd", || bodies::a_static_program_runs(Some("nbd"), &["shm"]));
}

#[test]
fn members_swap_in_cgroup_v2() {
    in_guest("members_swap_in_cgroup_v2", || {
        let members = by_helper::Members::of_rack(2, "128MiB");
        by_helper::members_program_runs(&members);
        by_helper::limits_of_session_stay(&members);
    });
}

#[test]
fn nbd_device_serves_until_detached() {
    let test = "nbd_device_serves_until_detached";
    in_guest(test, || bodies::requests_come_by("nbd"));
}

#[test]
fn limit_changes_budget_in_cgroup_v2() {
    let test = "limit_changes_budget_in_cgroup_v2";
    in_guest(test, bodies::gets_another_budget);
}

#[test]
fn detach_reads_back_in_cgroup_v2() {
    let test = "detach_reads_back_in_cgroup_v2";
    in_guest(test, bodies::comes_home_or_stays);
}

#[test]
fn anchor_keeps_page_in_cgroup_v2() {
    in_guest("anchor_keeps_page_in_cgroup_v2", anchored::groups_keep_a_page);
}
