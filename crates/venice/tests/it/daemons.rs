//! `venice monitor` and `venice agent` alone, in the foreground.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use crate::common::{Daemon, Place, Said, finish, port_of_its_own, wait_until};
use rustix::process::{Resource, Rlimit, Signal};
use serde_json::Value;
use venice_testkit::etcd::Etcd;
use venice_testkit::process::ChildGuard;

/// Starts a Monitor Node on a free port and returns its address.
fn monitor(place: &Place) -> (Daemon, String) {
    let ready = place.file("monitor-ready.json");
    let state = place.file("state");
    place.venice(&["init", "--state-dir", state.to_str().unwrap()]).expect(0);
    let words = ["monitor", "--listen", "127.0.0.1:0", "--state-dir", state.to_str().unwrap()];
    let words = [&words[..], &["--ready-file", ready.to_str().unwrap()]].concat();
    let daemon = Daemon::start(place, &words);
    wait_until("the Monitor Node is ready", || ready.exists());
    let text = fs::read_to_string(&ready).unwrap();
    let said: Value = serde_json::from_str(&text).unwrap();
    (daemon, said["addr"].as_str().unwrap().to_string())
}

fn nodes(place: &Place, addr: &str) -> Vec<Value> {
    let said = place.venice(&["nodes", "--json", "--monitor", addr]).expect(0);
    said.json().as_array().unwrap().clone()
}

fn run_to_end(place: &Place, words: &[&str], variables: &[(&str, &str)]) -> Said {
    let mut command = place.command(words);
    command.envs(variables.iter().copied());
    finish(command, words)
}

#[test]
fn agent_registers_and_deregisters() {
    let place = Place::new();
    let (mut monitor, addr) = monitor(&place);
    let file = place.file("agent.toml");
    let identity = place.join("donor", &addr);
    let text = format!(
        "name = \"donor\"\nlend = \"32MiB\"\nmonitor = \"{addr}\"\nidentity = \"{identity}\"\n"
    );
    fs::write(&file, text).unwrap();
    let mut agent = Daemon::start(&place, &["agent", "--config", file.to_str().unwrap()]);
    wait_until("the agent is registered", || nodes(&place, &addr).len() == 1);
    let row = &nodes(&place, &addr)[0];
    assert_eq!((row["name"].as_str(), row["state"].as_str()), (Some("donor"), Some("up")));
    assert_eq!(row["lent_bytes"], 32 << 20);
    assert!(heap_is_locked(agent.0.id()), "an agent that root starts is not swapped out");
    assert_eq!(agent.stop(Signal::TERM), Some(0));
    // The agent has deregistered: nobody waits for missed heartbeats.
    let row = &nodes(&place, &addr)[0];
    assert_eq!((row["state"].as_str(), row["free_bytes"].as_u64()), (Some("stopped"), Some(0)));
    let table = place.venice(&["nodes", "--monitor", &addr]).expect(0).out;
    assert!(table.lines().any(|line| line.starts_with("donor  stopped")), "{table}");
    assert_eq!(monitor.stop(Signal::INT), Some(0));
}

#[test]
fn rack_commands_spare_daemons() {
    let place = Place::new();
    let (mut monitor, addr) = monitor(&place);
    let identity = place.join("donor", &addr);
    let words = ["agent", "--lend", "16MiB", "--identity", &identity, "--monitor", &addr];
    let mut agent = Daemon::start(&place, &words);
    wait_until("the agent is registered", || nodes(&place, &addr).len() == 1);
    let down = place.venice(&["down"]).expect(0);
    assert!(down.out.contains("No rack") && down.out.contains("goes on"), "{}", down.out);
    let refused = || place.venice(&["up", "--nodes", "1", "--lend", "16MiB"]).expect(1);
    assert!(refused().complaint().contains("has not started"), "{}", refused().err);
    place.venice(&["nodes"]).expect(0);
    monitor.stop(Signal::KILL);
    let status = place.venice(&["status"]).expect(1);
    assert!(status.complaint().contains("does not answer"), "{}", status.err);
    assert!(refused().complaint().contains("has not started"), "{}", refused().err);
    assert_eq!(agent.stop(Signal::TERM), Some(0));
}

/// Checks `VmFlags` of proc(5) for `lo`.
fn heap_is_locked(pid: u32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let heap = maps.lines().skip_while(|line| !line.ends_with("[heap]"));
    let flags = heap.skip(1).find_map(|line| line.strip_prefix("VmFlags:"));
    flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "lo"))
}

#[test]
fn init_stores_token_in_etcd() {
    let (etcd, place) = (Etcd::start(1), Place::new());
    let (state, other) = (place.file("state"), place.file("other"));
    let (state, other) = (state.to_str().unwrap(), other.to_str().unwrap());
    let store = format!("etcd://{}/rack", etcd.addresses());
    let addr = format!("127.0.0.1:{}", port_of_its_own());
    let found = ["init", "--address", &addr, "--store", &store, "--json", "--state-dir"];
    let made = place.venice(&[&found[..], &[state]].concat()).expect(0).json();
    assert_eq!(made["store"], store.as_str());
    let said = place.venice(&[&found[..], &[other]].concat()).expect(1);
    assert!(said.complaint().contains("has the tables of a rack already"), "{}", said.err);
    let wrong = ["init", "--store", "rack.redb", "--state-dir", other];
    assert!(place.venice(&wrong).expect(2).complaint().contains("./rack.redb"));

    let ready = place.file("monitor-ready.json");
    let words = ["monitor", "--listen", &addr, "--state-dir", state, "--ready-file"];
    let _monitor = Daemon::start(&place, &[&words[..], &[ready.to_str().unwrap()]].concat());
    wait_until("the Monitor Node is ready", || ready.exists());
    let identity = place.file("identity").display().to_string();
    let token = made["token"].as_str().unwrap();
    place.venice(&["join", "--name", "node1", "--identity", &identity, token]).expect(0);
    assert!(!std::path::Path::new(state).join("rack.redb").exists(), "the tables are in etcd");
}

#[test]
fn pool_node_programs_are_refused() {
    // The second place is the pool node's machine: its programs use its agent's socket.
    let (place, own) = (Place::new(), Place::new());
    let (_monitor, addr) = monitor(&place);
    let identity = place.join("pool1", &addr);
    let words = ["agent", "--name", "pool1", "--pool", "--lend", "32MiB", "--monitor", &addr];
    let _agent = Daemon::start(&own, &[&words[..], &["--identity", &identity]].concat());
    wait_until("the agent is registered", || nodes(&place, &addr).len() == 1);
    let run = ["run", "--local", "16MiB", "--remote", "16MiB", "--", "true"];
    for words in [
        &["get", "memory=16MiB", "--", "true"][..],
        &["get", "accelerator", "--", "true"],
        &["place", "16MiB"],
        &run,
    ] {
        let code = if words[0] == "place" { 1 } else { 125 };
        let said = own.venice(&[&["--monitor", &addr], words].concat()).expect(code);
        assert!(said.complaint().contains("pool1 is a pool node"), "{words:?}: {}", said.err);
    }
    place.venice(&[&["--monitor", &addr], &run[..]].concat()).expect(0);
}

#[test]
fn duplicate_agent_name_is_refused() {
    let place = Place::new();
    let (_monitor, addr) = monitor(&place);
    let identity = place.join("twin", &addr);
    let words = ["agent", "--name", "twin", "--lend", "16MiB", "--monitor", &addr];
    let words = [&words[..], &["--identity", &identity, "--local-socket", "none"]].concat();
    let _first = Daemon::start(&place, &words);
    wait_until("the first is registered", || nodes(&place, &addr).len() == 1);
    let said = place.venice(&words).expect(1);
    assert!(said.complaint().contains("twin"), "{}", said.err);
    assert_eq!(nodes(&place, &addr).len(), 1);
}

#[test]
fn flags_override_environment_and_file() {
    let place = Place::new();
    let (_monitor, addr) = monitor(&place);
    let file = place.file("agent.toml");
    fs::write(&file, "name = \"from-file\"\nlend = \"64MiB\"\n").unwrap();
    let words = ["agent", "--config", file.to_str().unwrap(), "--lend", "16MiB"];
    let mut command = place.command(&words);
    command.env("VENICE_IDENTITY", place.join("from-environment", &addr));
    command.env("VENICE_MONITOR", &addr).env("VENICE_NODE_NAME", "from-environment");
    command.env("VENICE_LEND", "32MiB").stdin(Stdio::null()).stderr(Stdio::null());
    let _agent = Daemon(ChildGuard(command.spawn().unwrap()));
    wait_until("the agent is registered", || nodes(&place, &addr).len() == 1);
    let row = &nodes(&place, &addr)[0];
    assert_eq!(row["name"], "from-environment");
    assert_eq!(row["lent_bytes"], 16 << 20);
}

#[test]
fn bad_configuration_is_usage_error() {
    let place = Place::new();
    let file = place.file("bad.toml");
    let path = file.to_str().unwrap();
    for (daemon, text, named) in [
        ("monitor", "listn = \"127.0.0.1:0\"", "listn"),
        ("monitor", "lease_s = \"long\"", "lease_s"),
        ("monitor", "lease_s = -1", "lease_s"),
        ("monitor", "not toml at all", "line 1"),
        ("agent", "name = \"a\"\nlend = \"16MiB\"\ncolour = 1", "colour"),
        ("agent", "name = \"a\"\nlend = \"lots\"", "lots"),
        ("agent", "name = \"a\"", "--lend"),
    ] {
        fs::write(&file, text).unwrap();
        let state = place.file("state");
        let variables = [("VENICE_STATE_DIR", state.to_str().unwrap())];
        let said = run_to_end(&place, &[daemon, "--config", path], &variables).expect(2);
        assert!(said.complaint().contains(named), "{text}: {}", said.err);
    }
    let said = run_to_end(&place, &["monitor", "--config", "/nonexistent.toml"], &[]).expect(2);
    assert!(said.complaint().contains("/nonexistent.toml"), "{}", said.err);
    let said = run_to_end(&place, &["agent"], &[("VENICE_LEND", "lots")]).expect(2);
    assert!(said.complaint().contains("lots"), "{}", said.err);
}

#[test]
fn taken_address_is_named() {
    let place = Place::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let state = place.file("state");
    let words = ["monitor", "--listen", &addr, "--state-dir", state.to_str().unwrap()];
    let said = place.venice(&words).expect(1);
    assert!(said.complaint().contains(&addr), "{}", said.err);
}

#[test]
fn crashed_daemons_leave_no_core() {
    let place = Place::new();
    let (monitor, addr) = monitor(&place);
    let identity = place.join("donor", &addr);
    let words = ["agent", "--name", "donor", "--monitor", &addr, "--identity", &identity];
    let agent = Daemon::start(&place, &[&words[..], &["--lend", "16MiB"]].concat());
    wait_until("the agent is registered", || nodes(&place, &addr).len() == 1);
    for mut daemon in [agent, monitor] {
        let pid = rustix::process::Pid::from_child(&daemon.0);
        let unlimited = Rlimit { current: None, maximum: None };
        rustix::process::prlimit(Some(pid), Resource::Core, unlimited).unwrap();
        rustix::process::kill_process(pid, Signal::ABORT).unwrap();
        let status = daemon.0.wait().unwrap();
        assert_eq!((status.signal(), status.core_dumped()), (Some(6), false), "{status}");
    }
}
