//! `venice swap` and `venice run --mode swap` where there are nbd and unified cgroups: on Debian's kernel,
//! in a guest.

use crate::swap::anchored;
use crate::swap::bodies;
use crate::swap::programs;
use std::time::Duration;

use venice_testkit::guest::{GuestPlan, Room, inside};

/// It has ublk too, but no devices of it that outlive their server.
static ROOM: Room = Room::new(GuestPlan {
    processors: 2,
    set_up: "mount -t cgroup2 none /sys/fs/cgroup",
    ..GuestPlan::new("venice-swap", &["nbd", "ublk_drv"])
});

/// Of each test, with others at work on the same machine.
const LIMIT: Duration = Duration::from_secs(480);

/// Runs `body` in the room's guest, once what it starts there is built.
fn in_guest(test: &str, body: impl FnOnce()) {
    programs::pages();
    inside(&ROOM, test, LIMIT, body);
}

#[test]
fn programs_are_swapped_by_nbd() {
    in_guest("programs_are_swapped_by_nbd", || {
        bodies::a_static_program_runs(Some("nbd"), &["shm"])
    });
}

#[test]
fn a_device_by_nbd_serves_until_it_is_detached_or_its_server_killed() {
    let test = "a_device_by_nbd_serves_until_it_is_detached_or_its_server_killed";
    in_guest(test, || bodies::requests_come_by("nbd"));
}

#[test]
fn in_a_unified_cgroup_a_program_gets_another_budget() {
    let test = "in_a_unified_cgroup_a_program_gets_another_budget";
    in_guest(test, bodies::gets_another_budget);
}

#[test]
fn what_a_unified_cgroup_has_on_a_device_comes_home_or_stays() {
    let test = "what_a_unified_cgroup_has_on_a_device_comes_home_or_stays";
    in_guest(test, bodies::comes_home_or_stays);
}

#[test]
fn unified_cgroups_of_others_keep_a_page() {
    in_guest("unified_cgroups_of_others_keep_a_page", anchored::groups_keep_a_page);
}
