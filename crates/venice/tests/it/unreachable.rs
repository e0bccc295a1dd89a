//! A node that reports to the Monitor Node, at an address where nobody reaches it.

use crate::common::rack::Rack;
use crate::common::wait_until;

#[test]
fn unreachable_donor_is_named() {
    let mut rack = Rack::start(1, &[]);
    let socket = rack.place.file("node1.shm").display().to_string();
    rack.add_agent("node1", &["--lend", "64MiB", "--shm-socket", &socket]);
    // All of 127.0.0.0/8 is this machine; the agent listens at one address of it.
    rack.add_agent("node2", &["--lend", "64MiB", "--advertise", "127.77.0.9"]);
    rack.place.find_monitor_at(&rack.all());
    let node = || rack.place.venice(&["nodes", "--json"]).expect(0).json()[1].clone();
    wait_until("the Monitor Node has called it", || node()["state"] != "up");
    let node = node();
    assert_eq!(node["state"], "unreachable", "{node}");
    let addr = node["control_addr"].as_str().unwrap();
    assert!(addr.starts_with("127.77.0.9:"), "{addr}");

    let fault = format!("cannot be reached at {addr}");
    let run = ["run", "--port", "shm", "--local", "8MiB", "--remote", "16MiB", "--", "true"];
    let one_copy = rack.place.venice(&run).expect(0);
    let complaint = format!(
        "has no room for two copies of this program's far memory on different nodes (node2 {fault})"
    );
    assert!(one_copy.err.contains(&complaint), "{one_copy:?}");

    let refused = rack.place.venice(&["get", "memory=128MiB", "--", "true"]).expect(125);
    let complaint = format!("64MiB free (node1 64MiB, node2, which {fault}, 0B)");
    assert!(refused.complaint().contains(&complaint), "{refused:?}");
    let resources = rack.place.venice(&["resources"]).expect(0);
    assert!(resources.out.contains(&format!("its node {fault}")), "{resources:?}");

    let log = std::fs::read_to_string(rack.place.file("monitor0.log")).unwrap();
    assert!(log.contains("reports, but cannot be reached") && !log.contains("is down"), "{log}");
}
