//! Programs whose donors are several hops away, and relays that die under them.

use std::fs::File;
use std::time::Duration;

use rustix::process::geteuid;
use venice_e2e::programs::{
    CProgram, Rack, Running, kill_now, paged_mode_is_missing, redis, wait_for,
};

const LEND_MIB: u64 = 96;
/// Options from one corner of the cube to the opposite one: over node2, node4, node8.
const FAR: [&str; 8] =
    ["--local", "8MiB", "--remote", "80MiB", "--node", "node1", "--donor", "node8"];
const KEYS: u64 = 12_000;
const LIMIT: Duration = Duration::from_secs(120);
const SIGBUS_CODE: i32 = 128 + 7;

/// Waits until every hop link, or every one but those of `dead`, is up.
fn await_links(rack: &Rack, links: usize, dead: Option<&str>) {
    wait_for("the hop links to be as they should", Duration::from_secs(60), || {
        let rows = rack.json(&["links"]);
        let rows = rows.as_array().expect("a list");
        let is_of = |row: &serde_json::Value, name| row["from"] == name || row["to"] == name;
        let hops = rows.iter().filter(|row| row["port"] == "hop");
        let alive = hops.filter(|row| dead.is_none_or(|dead| !is_of(row, dead)));
        (alive.filter(|row| row["state"] == "up").count() == links).then_some(())
    });
}

/// Checks that the tables show the distance of the donor, and the route of the program's memory.
fn check_distance_and_route(rack: &Rack) {
    let grants = rack.json(&["grants"]);
    assert_eq!((&grants[0]["home"], &grants[0]["hops"]), (&"node1".into(), &3.into()));
    let recipient = &grants[0]["recipient"];
    wait_for("the donor to report the program's traffic", LIMIT, || {
        let rows = rack.json(&["links"]);
        let row = rows.as_array().expect("a list").iter().find(|row| row["from"] == *recipient)?;
        assert_eq!(row["via"], serde_json::json!(["node1", "node2", "node4"]));
        assert_eq!((&row["hops"], &row["reported_by"]), (&3.into(), &"node8".into()));
        Some(())
    });
}

fn redis_round_a_dead_relay(options: &[&str]) {
    let rack = Rack::wired("mesh:2x2x2", LEND_MIB, options);
    await_links(&rack, 24, None);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let server = rack.run(&FAR, &redis::server(dir.path()));
    let mut client = redis::Client::connect(&redis::socket(dir.path()));
    let keys: Vec<u64> = (0..KEYS).collect();
    client.set_all(&keys, 1);
    client.check_all(&keys, |_| 1);

    check_distance_and_route(&rack);

    kill_now(rack.agent_pid("node2"));
    client.check_all(&keys, |_| 1);
    client.set_all(&keys[..2000], 2);
    client.check_all(&keys, |key| if key < 2000 { 2 } else { 1 });
    await_links(&rack, 18, Some("node2"));

    let up = rack.venice(&["up"]);
    assert!(up.status.success(), "venice up: {}", String::from_utf8_lossy(&up.stderr));
    await_links(&rack, 24, None);
    client.check_all(&keys, |key| if key < 2000 { 2 } else { 1 });
    client.shut_down();
    server.finish(LIMIT).expect_code(0);
}

#[test]
fn redis_survives_a_dead_relay() {
    if !paged_mode_is_missing("redis_survives_a_dead_relay") {
        redis_round_a_dead_relay(&[]);
    }
}

#[test]
fn redis_survives_a_dead_relay_between_namespaces() {
    let test = "redis_survives_a_dead_relay_between_namespaces";
    if paged_mode_is_missing(test) {
        return;
    }
    if !geteuid().is_root() {
        println!("SKIPPED: {test}: needs root");
        return;
    }
    redis_round_a_dead_relay(&["--netns"]);
}

/// Starts a program that uses its memory until told to stop, with all of it behind a relay.
fn busy(rack: &Rack, options: &[&str]) -> (CProgram, Running) {
    let program = CProgram::compile("keep_busy");
    let mut running = rack.run(options, &program.command(&["32", "ready", "stop"]));
    wait_for("the program to use its memory", LIMIT, || {
        (!running.is_running() || program.dir().join("ready").exists()).then_some(())
    });
    (program, running)
}

#[test]
fn missing_route_ends_the_program() {
    if paged_mode_is_missing("missing_route_ends_the_program") {
        return;
    }
    let rack = Rack::wired("mesh:3", LEND_MIB, &[]);
    await_links(&rack, 4, None);
    let options = ["--local", "8MiB", "--remote", "48MiB", "--donor", "node3"];
    let (_, running) = busy(&rack, &options);
    kill_now(rack.agent_pid("node2"));
    let outcome = running.finish(LIMIT);
    outcome.expect_code(SIGBUS_CODE);
    let names = |line: &str| line.contains("node3") && line.contains("region");
    assert!(outcome.stderr.lines().any(names), "it names the donor:\n{}", outcome.stderr);
}

#[test]
fn star_and_ring_carry_programs() {
    if paged_mode_is_missing("star_and_ring_carry_programs") {
        return;
    }
    for (topology, options, links) in
        [("router", ["--nodes", "3"].as_slice(), 6), ("torus:5", &[], 10)]
    {
        let rack = Rack::wired(topology, LEND_MIB, options);
        await_links(&rack, links, None);
        let far = ["--local", "8MiB", "--remote", "48MiB", "--donor", "node3", "--node", "node1"];
        let (program, running) = busy(&rack, &far);
        File::create(program.dir().join("stop")).expect("a file");
        let outcome = running.finish(LIMIT);
        outcome.expect_code(0);
        assert_eq!(String::from_utf8_lossy(&outcome.stdout), "every byte right\n", "{topology}");
    }
}
