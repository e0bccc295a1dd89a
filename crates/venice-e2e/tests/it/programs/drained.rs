//! Nodes are drained, and die meanwhile, under a running program: no wrong byte, nothing lost.

use std::time::Duration;

use serde_json::Value;
use venice_e2e::programs::{
    Busy, MIB, Port, Rack, descendants, kill_now, mapped_slab_bytes, paged_mode_is_missing,
    wait_for,
};

const LEND_MIB: u64 = 128;
const LIMIT: Duration = Duration::from_secs(120);

/// Returns the row of a node in `venice nodes`.
fn node(rack: &Rack, name: &str) -> Value {
    let rows = rack.json(&["nodes"]);
    rows.as_array().unwrap().iter().find(|row| row["name"] == name).unwrap().clone()
}

fn is_in(name: &str, list: &Value) -> bool {
    list.as_array().is_some_and(|names| names.iter().any(|other| other == name))
}

fn drain_nodes(test: &str, port: Port) {
    if paged_mode_is_missing(test) {
        return;
    }
    let rack = Rack::start(port, LEND_MIB);
    let mut busy = Busy::start(&rack, "80MiB", 1);
    for name in ["node1", "node2"] {
        assert_ne!(node(&rack, name)["granted_bytes"], 0, "{name} lends");
        let drained = rack.venice(&["drain", name, "--wait-s", "120"]);
        assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stdout));
        busy.expect_running();
        let row = node(&rack, name);
        assert_eq!((&row["granted_bytes"], &row["draining"]), (&0.into(), &true.into()));
        // A drained node may end for maintenance without effect.
        kill_now(rack.agent_pid(name));
    }
    let row = busy.wait_until_moved(&rack);
    assert_eq!((&row["lost_donors"], &row["lost_slabs"]), (&Value::Array(vec![]), &0.into()));
    assert_ne!(row["moved"], 0, "{row}");
    let said = busy.stop();
    for name in ["node1", "node2"] {
        assert!(said.contains(&format!("node {name} is being drained")), "{said}");
        assert!(said.contains(&format!("node {name} has its memory back")), "{said}");
    }
    assert!(!said.contains("died"), "{said}");
}

#[test]
fn nodes_drain_under_a_program_over_shm() {
    drain_nodes("nodes_drain_under_a_program_over_shm", Port::Shm);
}

#[test]
fn nodes_drain_under_a_program_over_udp() {
    drain_nodes("nodes_drain_under_a_program_over_udp", Port::Udp);
}

/// Returned memory is free at the node, although the program and its child had it mapped and
/// continue.
#[test]
fn returned_memory_is_free_over_shm() {
    if paged_mode_is_missing("returned_memory_is_free_over_shm") {
        return;
    }
    for more in [&[][..], &["--faults", "in-thread"]] {
        let rack = Rack::start(Port::Shm, LEND_MIB);
        let mut busy = Busy::start_forked(&rack, "80MiB", 1, more);
        let pids = || {
            let mut pids = descendants(busy.running.pid());
            pids.push(busy.running.pid());
            pids
        };
        let pids = pids();
        let mapped = || pids.iter().map(|&pid| mapped_slab_bytes(pid)).collect::<Vec<_>>();
        wait_for("parent and child to have mapped slabs", LIMIT, || {
            (mapped().iter().filter(|&&len_bytes| len_bytes > 32 * MIB).count() >= 2).then_some(())
        });
        for name in ["node1", "node2"] {
            let drained = rack.venice(&["drain", name, "--wait-s", "120"]);
            assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stdout));
            let mapped = mapped();
            assert!(mapped.iter().all(|&len_bytes| len_bytes <= 80 * MIB), "{name}: {mapped:?}");
        }
        busy.expect_running();
        assert_ne!(busy.wait_until_moved(&rack)["moved"], 0);
        busy.stop();
    }
}

fn nodes_die_during_a_move(test: &str, port: Port) {
    if paged_mode_is_missing(test) {
        return;
    }
    let rack = Rack::start(port, LEND_MIB);
    let mut busy = Busy::start(&rack, "80MiB", 2);
    let start_to_drain = |name: &str, busy: &mut Busy| {
        assert!(rack.venice(&["drain", name, "--no-wait"]).status.success());
        wait_for("the move to begin", LIMIT, || {
            busy.expect_running();
            let row = rack.run_row()?;
            let is_moving = is_in(name, &row["leaving_donors"]);
            (is_moving || node(&rack, name)["granted_bytes"] == 0).then_some(())
        });
    };
    // The node that everything moves away from.
    start_to_drain("node1", &mut busy);
    kill_now(rack.agent_pid("node1"));
    wait_for("both copies to be there", LIMIT, || {
        busy.expect_running();
        let row = rack.run_row()?;
        (!is_in("node1", &row["leaving_donors"]) && row["short_slabs"] == 0).then_some(())
    });
    // One of the two target nodes: of each slab the other replica is left, or the old one.
    start_to_drain("node2", &mut busy);
    kill_now(rack.agent_pid("node3"));
    wait_for("the loss to be seen", LIMIT, || {
        busy.expect_running();
        is_in("node3", &rack.run_row()?["lost_donors"]).then_some(())
    });
    let said = busy.stop();
    assert!(!said.contains("what only it held is lost"), "{said}");
}

#[test]
fn nodes_die_during_a_move_over_shm() {
    nodes_die_during_a_move("nodes_die_during_a_move_over_shm", Port::Shm);
}

#[test]
fn nodes_die_during_a_move_over_udp() {
    nodes_die_during_a_move("nodes_die_during_a_move_over_udp", Port::Udp);
}

/// Only this machine has room: memory first, its disk if requested. Local memory needs no replicas,
/// and takes all fragments of coded memory.
#[test]
fn all_nodes_drain_under_a_program() {
    if paged_mode_is_missing("all_nodes_drain_under_a_program") {
        return;
    }
    let (local, disk) = ("go to this machine's own memory", "go to files in /var/tmp");
    for (port, kept, place, said) in [
        (Port::Udp, ["--copies", "1"], "donors,local", local),
        (Port::Shm, ["--copies", "1"], "disk", disk),
        (Port::Shm, ["--copies", "2"], "donors,local", local),
        (Port::Udp, ["--copies", "2"], "donors,disk", disk),
        (Port::Shm, ["--coding", "2+1"], "donors,local", local),
    ] {
        let rack = Rack::start(port, LEND_MIB);
        let mut busy = Busy::start_kept(&rack, "80MiB", &kept, &["--reclaim-to", place]);
        for name in ["node1", "node2", "node3", "node4"] {
            let drained = rack.venice(&["drain", name, "--no-wait"]);
            assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
        }
        wait_for("all to be here", LIMIT, || {
            busy.expect_running();
            let rows = rack.json(&["nodes"]);
            rows.as_array()?.iter().all(|row| row["granted_bytes"] == 0).then_some(())
        });
        for name in ["node1", "node2", "node3", "node4"] {
            kill_now(rack.agent_pid(name));
        }
        let told = busy.stop();
        assert!(told.contains(said) && !told.contains("died"), "{kept:?}: {told}");
    }
}
