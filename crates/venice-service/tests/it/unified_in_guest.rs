//! Hosts in unified control groups, which Debian's kernel has: in a guest.

use std::time::Duration;

use venice_service::{HostSpec, Measure};
use venice_testkit::guest::{GuestPlan, Room, inside};

use crate::common::{Fixture, SECRET, connect};

static ROOM: Room = Room::new(GuestPlan {
    set_up: "mount -t cgroup2 none /sys/fs/cgroup",
    ..GuestPlan::new("service-hosts", &[])
});

/// The guest runs ten to thirty times slower.
const LIMIT: Duration = Duration::from_secs(240);

/// Opcode of `torment` that takes memory until something ends it.
const GROW: u16 = 4;
/// Opcode of `torment` that forks until that fails.
const FORK_BOMB: u16 = 2;

fn torment() -> HostSpec {
    let mut spec = HostSpec::new("torment", SECRET);
    spec.require = vec![Measure::MemoryCgroup, Measure::CpuCgroup, Measure::PidsCgroup];
    spec.calls.push(venice_service::CallGroup::Processes);
    spec.limits.memory_bytes = 48 << 20;
    spec.limits.processes = 20;
    spec.limits.start_ms = 60_000;
    spec
}

#[test]
fn unified_groups_bound_hosts() {
    inside(&ROOM, "unified_groups_bound_hosts", LIMIT, || {
        let fixture = Fixture::new();
        let (endpoints, confinement) = fixture.started(torment());
        println!("{confinement}");
        let mut client = connect(&endpoints[0], "torment");
        client.request(1, GROW, b"").unwrap();
        client.flush().unwrap();
        assert_eq!(fixture.death(), "SIGKILL: outgrew its memory");
        fixture.end();

        let (endpoints, _) = fixture.started(torment());
        let mut client = connect(&endpoints[0], "torment");
        let answer = String::from_utf8(client.call(1, FORK_BOMB, b"").unwrap().1).unwrap();
        let children: u32 = answer.split(' ').next().unwrap().parse().unwrap();
        assert!(children < 20, "{answer}");
        fixture.end();
        drop(fixture);
        let left = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten();
        let left = left.filter(|entry| entry.path().to_string_lossy().contains("venice-hosts"));
        assert_eq!(left.count(), 0);
    });
}
