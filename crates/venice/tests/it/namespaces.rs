//! `venice up --netns`: every node in its own network namespace.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Place, exists, is_root, kill, pid, skipped, wait_until};
use serde_json::Value;

const UP: [&str; 8] = ["up", "--nodes", "2", "--lend", "32MiB", "--port", "udp", "--netns"];

/// Namespaces of the rack that still exist, from those in its status.
fn namespaces(status: &Value) -> Vec<String> {
    let agents = status["agents"].as_array().unwrap();
    agents.iter().map(|agent| agent["netns"].as_str().unwrap().to_string()).collect()
}

fn namespace_of(pid: u64) -> String {
    let link = std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
    link.to_string_lossy().into_owned()
}

#[test]
fn down_removes_all_namespaces() {
    if !is_root() {
        skipped("down_removes_all_namespaces", "needs root");
        return;
    }
    let place = Place::new();
    place.venice(&UP).expect(0);
    let status = place.status();
    assert_eq!(status["netns"], true);
    assert_eq!(status["port"], "udp");
    let names = namespaces(&status);
    let agents = status["agents"].as_array().unwrap();
    let here = namespace_of(std::process::id().into());
    let mut inside: Vec<_> = agents.iter().map(|agent| namespace_of(pid(agent))).collect();
    assert_eq!(namespace_of(pid(&status["monitor"])), here);
    inside.push(here);
    inside.sort();
    inside.dedup();
    assert_eq!(inside.len(), 3, "two nodes and this one, each in its own");
    let nodes = place.venice(&["nodes", "--json"]).expect(0).json();
    for node in nodes.as_array().unwrap() {
        assert_eq!(node["state"], "up");
        assert!(node["udp_addr"].as_str().unwrap().starts_with("10."), "{node}");
    }

    // A killed agent restarts in its namespace, at its address.
    kill(pid(&agents[0]));
    place.venice(&["up"]).expect(0);
    let after = place.status();
    assert_eq!(namespaces(&after), names);
    for key in ["control_addr", "udp_addr", "shm_socket"] {
        assert_eq!(after["agents"][0][key], agents[0][key], "{key} changed");
    }
    assert_eq!(after["agents"][0]["state"], "up");

    place.venice(&["down"]).expect(0);
    for name in names {
        assert!(!exists(&Path::new("/run/netns").join(&name)), "{name} is left");
    }
}

#[test]
fn node_without_udp_comes_last() {
    if !is_root() {
        skipped("node_without_udp_comes_last", "needs root");
        return;
    }
    let place = Place::new();
    let up = ["up", "--nodes", "3", "--lend", "32MiB", "--port", "udp", "--netns"];
    place.venice(&up).expect(0);
    // A firewall that lets the calls of the control plane through.
    let cut = place.status()["agents"][1].clone();
    let namespace = cut["netns"].as_str().unwrap();
    let rule = ["-n", namespace, "rule", "add", "pref", "1", "ipproto", "udp", "blackhole"];
    assert!(Command::new("ip").args(rule).status().unwrap().success());
    let asked = |size: &str| {
        let plan = place.venice(&["place", size, "--copies", "1", "--json"]).expect(0).json();
        // In the order in which they joined.
        let mut nodes = plan["memory"]["nodes"].as_array().unwrap().iter();
        nodes.find(|node| node["node"] == cut["name"]).unwrap().clone()
    };
    wait_until("the rack knows", || {
        asked("16MiB")["why"].as_str().unwrap().starts_with("its udp link is down")
    });
    assert_eq!(asked("64MiB")["slabs"], 0, "the others have room for all");
    let last = asked("80MiB");
    assert_eq!(last["slabs"], 1, "{last}");
    place.venice(&["down"]).expect(0);
}

/// Output of `ip` about a node's interface.
fn interface_of(namespace: &str) -> String {
    let words = ["-n", namespace, "link", "show", "eth0"];
    let said = Command::new("ip").args(words).output().unwrap();
    String::from_utf8_lossy(&said.stdout).into_owned()
}

/// Number of datagrams that bypassed the kernel, by node.
fn past_kernel(place: &Place) -> Vec<u64> {
    let nodes = place.venice(&["nodes", "--json"]).expect(0).json();
    let rows = nodes.as_array().unwrap().iter();
    rows.map(|row| row["xdp_received"].as_u64().unwrap_or(0)).collect()
}

#[test]
fn killed_agent_leaves_no_xdp() {
    if !is_root() {
        let test = "killed_agent_leaves_no_xdp";
        skipped(test, "needs root");
        return;
    }
    let place = Place::new();
    let up = place.venice(&[&UP[..], &["--xdp"]].concat()).expect(0);
    assert!(up.out.contains("past the kernel"), "{up:?}");
    let status = place.status();
    assert_eq!(status["xdp"], true);
    let names = namespaces(&status);
    for name in &names {
        assert!(interface_of(name).contains("xdp"), "{}", interface_of(name));
    }
    let resources = place.venice(&["resources", "--json"]).expect(0).json();
    assert!(resources[0]["capabilities"].as_array().unwrap().contains(&"xdp".into()));
    // The link tests use this path.
    let start = Instant::now();
    while past_kernel(&place).contains(&0) {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", past_kernel(&place));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(place.venice(&["nodes"]).expect(0).out.contains("PAST KERNEL"));

    kill(pid(&status["agents"][0]));
    // The kernel detaches the XDP program a moment after its process has died.
    let start = Instant::now();
    while interface_of(&names[0]).contains("xdp") {
        assert!(start.elapsed() < Duration::from_secs(60), "{}", interface_of(&names[0]));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(interface_of(&names[1]).contains("xdp"), "the other's stays");
    place.venice(&["up"]).expect(0);
    assert!(interface_of(&names[0]).contains("xdp"), "{}", interface_of(&names[0]));
    place.venice(&["down"]).expect(0);
}

#[test]
fn xdp_requires_netns_and_udp() {
    let place = Place::new();
    let said = place.venice(&["up", "--xdp"]).expect(2);
    assert!(said.err.contains("--netns"), "{said:?}");
    let said = place.venice(&["up", "--netns", "--xdp"]).expect(2);
    assert!(said.complaint().contains("--port udp"), "{said:?}");
}

#[test]
fn namespaced_racks_are_separate() {
    if !is_root() {
        skipped("namespaced_racks_are_separate", "needs root");
        return;
    }
    let (one, two) = (Place::new(), Place::new());
    one.venice(&UP).expect(0);
    two.venice(&UP).expect(0);
    let (a, b) = (one.status(), two.status());
    assert_ne!(a["subnet"], b["subnet"]);
    assert!(namespaces(&a).iter().all(|name| !namespaces(&b).contains(name)));
    one.venice(&["down"]).expect(0);
    let b = two.status();
    assert!(b["agents"].as_array().unwrap().iter().all(|agent| agent["state"] == "up"), "{b}");
}

#[test]
fn down_cleans_up_after_crash() {
    if !is_root() {
        skipped("down_cleans_up_after_crash", "needs root");
        return;
    }
    let place = Place::new();
    place.venice(&UP).expect(0);
    let status = place.status();
    for agent in status["agents"].as_array().unwrap() {
        kill(pid(agent));
    }
    kill(pid(&status["monitor"]));
    std::fs::remove_dir_all(place.run_dir()).unwrap();
    place.venice(&["down"]).expect(0);
    for name in namespaces(&status) {
        assert!(!exists(&Path::new("/run/netns").join(&name)), "{name} is left");
    }
}
