//! `venice up`, `status`, `down`: the life cycle of a local rack, with accidents.

use std::fs;
use std::net::TcpListener;
use std::process::Stdio;

use crate::common::{self, Place, exists, kill, pid, runs, signal, wait, wait_until};
use rustix::process::Signal;
use serde_json::Value;

fn agents(status: &Value) -> &Vec<Value> {
    status["agents"].as_array().unwrap()
}

fn all_pids(status: &Value) -> Vec<u64> {
    std::iter::once(&status["monitor"]).chain(agents(status)).map(pid).collect()
}

#[test]
fn up_status_down() {
    let place = Place::new();
    place.up(3);
    let status = place.status();
    assert_eq!(status["monitor"]["state"], "up");
    assert_eq!(status["port"], "shm");
    assert_eq!(status["netns"], false);
    assert_eq!(status["run_dir"], place.run_dir().to_str().unwrap());
    let names: Vec<_> = agents(&status).iter().map(|a| a["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["node1", "node2", "node3"]);
    for agent in agents(&status) {
        assert_eq!(agent["state"], "up");
        assert_eq!(agent["lent_bytes"], 32 << 20);
        assert_eq!(agent["free_bytes"], 32 << 20);
        assert!(runs(pid(agent)));
    }
    let text = place.venice(&["status"]).expect(0).out;
    assert!(text.contains("node3") && text.contains("monitor"), "{text}");

    let pids = all_pids(&status);
    let said = place.venice(&["down"]).expect(0);
    assert!(said.out.contains("4 processes"), "{}", said.out);
    assert!(!pids.iter().any(|pid| runs(*pid)), "a process outlived the rack");
    assert!(!place.run_dir().exists(), "the run directory is left");
    place.venice(&["down"]).expect(0);
}

/// Applies where the kernel shares processors by session (sched(7)).
#[test]
fn daemons_have_higher_session_weight() {
    const TEST: &str = "daemons_have_higher_session_weight";
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: {TEST}: no root");
        return;
    }
    if !fs::exists("/proc/self/autogroup").unwrap() {
        println!("SKIPPED: {TEST}: no autogroup");
        return;
    }
    let place = Place::new();
    place.up(1);
    for pid in all_pids(&place.status()) {
        let share = fs::read_to_string(format!("/proc/{pid}/autogroup")).unwrap();
        assert!(share.trim_end().ends_with(" nice -10"), "{share}");
    }
}

#[test]
fn tables_print_json_lists() {
    let place = Place::new();
    place.up(2);
    let status = place.status();
    let nodes = place.venice(&["nodes", "--json"]).expect(0).json();
    let nodes = nodes.as_array().unwrap();
    assert_eq!(nodes.len(), 2);
    for (node, agent) in nodes.iter().zip(agents(&status)) {
        assert_eq!(node["name"], agent["name"]);
        assert_eq!(node["pid"], agent["pid"]);
        assert_eq!(node["state"], "up");
        assert_eq!(node["lent_bytes"], 32 << 20);
        assert_eq!(node["free_bytes"], 32 << 20);
    }
    let resources = place.venice(&["resources", "--json"]).expect(0).json();
    assert_eq!(resources.as_array().unwrap().len(), 2);
    assert_eq!(resources[0]["kind"], "memory");
    assert_eq!(resources[0]["bytes"], 32 << 20);
    let grants = place.venice(&["grants", "--json"]).expect(0).json();
    assert_eq!(grants, Value::Array(Vec::new()));
    assert!(place.venice(&["links", "--json"]).expect(0).json().is_array());
    for list in ["nodes", "resources", "grants", "links"] {
        let said = place.venice(&[list]).expect(0);
        let header = said.out.lines().next().unwrap();
        assert_eq!(header, header.to_uppercase(), "{list}: {}", said.out);
    }
    // An explicit address gives the same result as the record.
    let addr = status["monitor"]["addr"].as_str().unwrap();
    let said = place.venice(&["nodes", "--json", "--monitor", addr]).expect(0);
    assert_eq!(said.json().as_array().unwrap().len(), 2);
}

#[test]
fn pool_nodes_only_lend() {
    let place = Place::new();
    let said = place.venice(&["up", "--source-routes"]).expect(2);
    assert!(said.complaint().contains("--topology"), "{}", said.err);
    let words = ["up", "--topology", "mesh:3", "--pool", "1", "--lend", "32MiB"];
    let said = place.venice(&words).expect(0);
    let otherwise = place.venice(&["up", "--source-routes"]).expect(1);
    assert!(otherwise.complaint().contains("without --source-routes"), "{}", otherwise.err);
    assert!(said.out.contains("3 nodes (1 of them pool nodes)"), "{}", said.out);
    let nodes = place.venice(&["nodes", "--json"]).expect(0).json();
    let roles: Vec<_> = nodes.as_array().unwrap().iter().map(|n| n["role"].clone()).collect();
    assert_eq!(roles, ["peer", "peer", "pool"]);
    let text = place.venice(&["nodes"]).expect(0).out;
    assert!(text.lines().next().unwrap().contains("ROLE"), "{text}");
    place.venice(&["up", "--pool", "2"]).expect(1);
    place.venice(&["up", "--pool", "1"]).expect(0);
}

#[test]
fn down_removes_external_router() {
    let place = Place::new();
    place.venice(&["up", "--topology", "router", "--nodes", "1", "--lend", "32MiB"]).expect(0);
    place.venice(&["down"]).expect(0);
    assert!(!place.run_dir().exists(), "down leaves nothing");
}

#[test]
fn up_twice_changes_nothing() {
    let place = Place::new();
    place.up(2);
    let before = place.status();
    let said = place.venice(&["up"]).expect(0);
    assert!(said.out.contains("already"), "{}", said.out);
    place.up(2);
    assert_eq!(all_pids(&before), all_pids(&place.status()));
    for other in [&["--nodes", "3"][..], &["--lend", "64MiB"], &["--port", "udp"]] {
        let said = place.venice(&[&["up"], other].concat()).expect(1);
        assert!(said.complaint().contains("venice down"), "{}", said.err);
    }
    assert_eq!(all_pids(&before), all_pids(&place.status()));
}

#[test]
fn concurrent_ups_make_one_rack() {
    let place = Place::new();
    let words = ["up", "--nodes", "2", "--lend", "32MiB"];
    std::thread::scope(|scope| {
        let ups: Vec<_> = (0..3).map(|_| scope.spawn(|| place.venice(&words))).collect();
        for up in ups {
            up.join().unwrap().expect(0);
        }
    });
    let status = place.status();
    assert!(agents(&status).iter().all(|agent| agent["state"] == "up"), "{status}");
    let said = place.venice(&["down"]).expect(0);
    assert!(said.out.contains("3 processes"), "{}", said.out);
}

#[test]
fn up_restarts_only_dead_agent() {
    let place = Place::new();
    place.up(3);
    let before = place.status();
    kill(pid(&agents(&before)[1]));
    let hurt = place.status();
    assert_eq!(agents(&hurt)[1]["state"], "dead");
    assert!(agents(&hurt)[1]["pid"].is_null());
    let said = place.venice(&["up"]).expect(0);
    assert!(said.out.contains("node2") && !said.out.contains("node1"), "{}", said.out);
    let after = place.status();
    assert_eq!(agents(&after)[1]["state"], "up");
    assert_ne!(pid(&agents(&after)[1]), pid(&agents(&before)[1]));
    for index in [0, 2] {
        assert_eq!(pid(&agents(&after)[index]), pid(&agents(&before)[index]));
    }
    assert_eq!(pid(&after["monitor"]), pid(&before["monitor"]));
    // Its ports are exclusive only inside a namespace (namespaces.rs): here another program may
    // have taken them meanwhile.
    assert_eq!(agents(&after)[1]["shm_socket"], agents(&before)[1]["shm_socket"]);
    let nodes = place.venice(&["nodes", "--json"]).expect(0).json();
    assert_eq!(nodes.as_array().unwrap().len(), 3, "no node twice: {nodes}");
}

#[test]
fn silent_and_revoked_agents_get_advice() {
    let place = Place::new();
    place.up(2);
    let state = || agents(&place.status())[1]["state"].clone();
    let hung = pid(&agents(&place.status())[1]);
    common::signal(hung, rustix::process::Signal::STOP);
    common::wait_until("it is missed", || state() == "silent");
    let advice = format!("kill -9 {hung}");
    let said = place.venice(&["status"]).expect(0);
    assert!(said.out.contains(&advice) && !said.out.contains("restarts dead"), "{said:?}");
    let said = place.venice(&["up"]).expect(1);
    assert!(said.complaint().contains(&advice), "{said:?}");
    common::signal(hung, rustix::process::Signal::CONT);
    common::wait_until("it reports again", || state() == "up");

    let said = place.venice(&["node", "revoke", "node2"]).expect(0);
    assert!(said.out.contains("until they end"), "{said:?}");
    common::wait_until("the node is revoked", || state() == "revoked");
    for words in [["status"], ["up"]] {
        let said = place.venice(&words).expect(0);
        let all = said.out.clone() + &said.err;
        assert!(all.contains("venice token new --node node2"), "{said:?}");
    }
    join_again(&place, "node2");
    common::wait_until("it is in again", || state() == "up");
}

#[test]
fn rack_restarts_without_revoked_node() {
    let place = Place::new();
    place.up(2);
    place.venice(&["node", "revoke", "node2"]).expect(0);
    common::kill(pid(&place.status()["monitor"]));
    let said = place.venice(&["up"]).expect(0);
    assert!(said.err.contains("venice token new --node node2"), "{said:?}");
    assert_eq!(agents(&place.status())[0]["state"], "up");
    // Its running agent takes up the certificate of its second join, and is a full member.
    join_again(&place, "node2");
    common::wait_until("it is in again", || agents(&place.status())[1]["state"] == "up");
    let shown = place.venice(&["identity", "--json"]).expect(0).json();
    assert_eq!(shown["revoked"][0]["joined_again"], true, "{shown}");
    common::kill(pid(&place.status()["monitor"]));
    let said = place.venice(&["up"]).expect(0);
    assert!(!said.err.contains("revoked"), "{said:?}");
    let nodes = place.venice(&["place", "16MiB", "--json"]).expect(0).out;
    assert!(nodes.contains("node2"), "{nodes}");
}

/// Joins a revoked node's machine again, with a token for that name.
fn join_again(place: &Place, node: &str) {
    let token = place.venice(&["token", "new", "--node", node]).expect(0).out;
    let identity = place.run_dir().join(node).join("identity");
    let identity = identity.to_str().unwrap();
    place.venice(&["join", "--name", node, "--identity", identity, token.trim()]).expect(0);
}

/// `venice up` is killed before it records addresses and one of its nodes.
#[test]
fn up_completes_interrupted_start() {
    let place = Place::new();
    place.up(2);
    let before = place.status();
    let path = place.run_dir().join("rack.json");
    let mut record: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    record["monitor"]["addr"] = "127.0.0.1:0".into();
    record["agents"][0]["control_addr"] = "".into();
    let node2 = record["agents"][1].as_object_mut().unwrap();
    node2.retain(|key, _| key != "pid" && key != "start_ticks");
    fs::write(&path, record.to_string()).unwrap();
    let text = place.venice(&["status"]).expect(0).out;
    assert!(text.contains("`venice up` completes it"), "{text}");

    let said = place.venice(&["up"]).expect(0).out;
    assert!(said.starts_with("Restarted node2."), "{said}");
    let after = place.status();
    for key in ["pid", "addr", "state"] {
        assert_eq!(after["monitor"][key], before["monitor"][key], "{key}");
    }
    for key in ["pid", "control_addr", "state"] {
        assert_eq!(after["agents"][0][key], before["agents"][0][key], "{key}");
    }
    assert_eq!(after["agents"][1]["state"], "up");
    assert!(!runs(pid(&before["agents"][1])), "an unrecorded agent runs on");
}

#[test]
fn monitor_restarts_at_its_address() {
    let place = Place::new();
    place.up(2);
    let before = place.status();
    kill(pid(&before["monitor"]));
    let hurt = place.status();
    assert_eq!(hurt["monitor"]["state"], "dead");
    assert_eq!(agents(&hurt)[0]["state"], "unknown");
    place.venice(&["nodes"]).expect(1).complaint();
    place.venice(&["up"]).expect(0);
    let after = place.status();
    assert_eq!(after["monitor"]["addr"], before["monitor"]["addr"]);
    assert_eq!(all_pids(&after)[1..], all_pids(&before)[1..], "agents live on");
    assert!(agents(&after).iter().all(|agent| agent["state"] == "up"), "{after}");
}

#[test]
fn up_revives_dead_rack() {
    let place = Place::new();
    place.up(2);
    for pid in all_pids(&place.status()) {
        kill(pid);
    }
    place.venice(&["up"]).expect(0);
    let status = place.status();
    assert!(agents(&status).iter().all(|agent| agent["state"] == "up"), "{status}");
    // A dead rack may come back in another shape.
    for pid in all_pids(&status) {
        kill(pid);
    }
    place.up(1);
    assert_eq!(agents(&place.status()).len(), 1);
}

#[test]
fn down_spares_reused_pid() {
    let place = Place::new();
    place.up(1);
    let agent = pid(&agents(&place.status())[0]);
    kill(agent);
    let mut stranger = std::process::Command::new("sleep").arg("300").spawn().unwrap();
    let path = place.run_dir().join("rack.json");
    let record = fs::read_to_string(&path).unwrap();
    let mut record: Value = serde_json::from_str(&record).unwrap();
    record["agents"][0]["pid"] = stranger.id().into();
    fs::write(&path, record.to_string()).unwrap();
    assert_eq!(agents(&place.status())[0]["state"], "dead");
    place.venice(&["up"]).expect(0);
    place.venice(&["down"]).expect(0);
    assert!(runs(stranger.id().into()), "down killed a stranger");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn taken_port_is_named_or_avoided() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let place = Place::new();
    let words = ["up", "--nodes", "1", "--lend", "32MiB", "--monitor-port", &port];
    let said = place.venice(&words).expect(1);
    assert!(said.complaint().contains(&port), "{}", said.err);
    assert!(!place.run_dir().exists(), "a failed up leaves nothing");
    drop(taken);
    // Without an explicit port another one is taken: two racks side by side.
    let other = Place::new();
    place.venice(&words[..5]).expect(0);
    other.venice(&words[..5]).expect(0);
    assert_ne!(place.status()["monitor"]["addr"], other.status()["monitor"]["addr"]);
}

#[test]
fn stale_socket_is_replaced() {
    let place = Place::new();
    fs::create_dir_all(place.run_dir().join("node1")).unwrap();
    let socket = place.run_dir().join("node1/shm.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(exists(&socket));
    place.up(1);
    kill(pid(&agents(&place.status())[0]));
    assert!(exists(&socket), "a killed agent leaves its socket");
    place.venice(&["up"]).expect(0);
    assert_eq!(agents(&place.status())[0]["state"], "up");
    place.venice(&["down"]).expect(0);
    assert!(!exists(&socket));
}

#[test]
fn damaged_record_is_cleared() {
    let place = Place::new();
    place.up(2);
    let pids = all_pids(&place.status());
    fs::write(place.run_dir().join("rack.json"), "{ half").unwrap();
    let said = place.venice(&["up"]).expect(1);
    assert!(said.complaint().contains("venice down"), "{}", said.err);
    place.venice(&["down"]).expect(0);
    assert!(!pids.iter().any(|pid| runs(*pid)), "down finds processes without a record");
}

#[test]
fn unrecorded_daemons_are_stopped() {
    let place = Place::new();
    place.up(1);
    let pids = all_pids(&place.status());
    fs::remove_file(place.run_dir().join("rack.json")).unwrap();
    place.up(2);
    assert!(!pids.iter().any(|pid| runs(*pid)), "the old ones were not stopped");
    assert_eq!(agents(&place.status()).len(), 2);
}

#[test]
fn failed_up_stops_its_processes() {
    let place = Place::new();
    // node2's directory cannot be created: a file is in its place.
    fs::create_dir_all(place.run_dir()).unwrap();
    fs::write(place.run_dir().join("node2"), "in the way").unwrap();
    let said = place.venice(&["up", "--nodes", "3", "--lend", "32MiB"]).expect(1);
    assert!(said.complaint().contains("node2"), "{}", said.err);
    let path = place.run_dir().to_str().unwrap().to_string();
    wait_until("every daemon is gone", || !any_process_mentions(&path));
    place.venice(&["status"]).expect(1);
}

#[test]
fn terminated_up_leaves_nothing() {
    let place = Place::new();
    let words = ["up", "--nodes", "2", "--lend", "32MiB"];
    let mut up = place.command(&words).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the record is begun", || {
        exists(&place.run_dir().join("rack.json.new")) || exists(&place.run_dir().join("rack.json"))
    });
    signal(up.id().into(), Signal::TERM);
    assert_eq!(wait(&mut up, &words).code(), Some(1));
    assert!(!place.run_dir().exists());
}

#[test]
fn foreign_run_directory_stays() {
    let place = Place::new();
    fs::create_dir(place.run_dir()).unwrap();
    place.up(1);
    place.venice(&["down"]).expect(0);
    assert_eq!(fs::read_dir(place.run_dir()).unwrap().count(), 0);
}

#[test]
fn excess_lend_starts_nothing() {
    let place = Place::new();
    let said = place.venice(&["up", "--nodes", "2", "--lend", "500TiB"]).expect(1);
    assert!(said.complaint().contains("available"), "{}", said.err);
    assert!(!place.run_dir().exists());
}

fn any_process_mentions(text: &str) -> bool {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.map(|entry| entry.path().join("cmdline")).any(|path| {
        let words = fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(text)
    })
}
