//! Bandwidth of links, measured by the agents of separate machines (namespaces), one of which has a
//! slow link; and requests that reserve bandwidth.

use std::process::Command;

use crate::common::machines::Machines;
use crate::common::{Daemon, exists, is_root, skipped, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use venice_testkit::network::node_address;

const MACHINES: u16 = 3;
/// The machine with the slow link, and the link's rate.
const SLOW: u16 = 2;
const SLOW_MBPS: f64 = 100.0;
/// Most that a burst may measure on it.
const MOST_MBPS: f64 = 130.0;

/// Limits the rate of datagrams to a machine.
fn slow_down(machines: &Machines, machine: u16) {
    let rate = format!("{SLOW_MBPS}mbit");
    let status = Command::new("ip")
        .args(["netns", "exec", &machines.network.hub(), "tc", "qdisc", "add", "dev"])
        .args([&format!("p{machine}"), "root", "tbf", "rate", &rate])
        .args(["burst", "64kb", "latency", "50ms"])
        .status();
    assert!(status.unwrap().success(), "tc cannot shape a link");
}

/// Starts a Monitor Node on the first machine and a donor on each.
fn start(machines: &Machines) -> (Vec<Daemon>, String) {
    let monitor = format!("{}:7470", node_address(0));
    let (state, ready) = (machines.file("monitor", "state"), machines.file("monitor", "ready"));
    let words = ["init", "--state-dir", &state, "--address", &monitor];
    machines.venice(0, &words).expect(0);
    let words = ["monitor", "--listen", &monitor, "--state-dir", &state, "--ready-file", &ready];
    let mut daemons = vec![machines.start(0, "monitor", &words)];
    wait_until("the Monitor Node serves", || exists(ready.as_ref()));
    for machine in 0..MACHINES {
        let new = ["token", "new", "--monitor", &monitor];
        let token = machines.venice(0, &new).expect(0).out;
        let no_socket = ["--local-socket", "none"];
        daemons.push(machines.start_agent(machine, token.trim(), &monitor, &no_socket));
    }
    (daemons, monitor)
}

#[test]
fn slow_link_limits_its_grants() {
    let name = "slow_link_limits_its_grants";
    if !is_root() {
        return skipped(name, "needs root");
    }
    let machines = Machines::new(MACHINES);
    slow_down(&machines, SLOW);
    let (mut daemons, monitor) = start(&machines);
    let said =
        |words: &[&str]| machines.venice(0, &[words, &["--json", "--monitor", &monitor]].concat());
    // The highest measured rate, by far end.
    let mbps = |to: u16| {
        let rows = said(&["links"]);
        if rows.code() != 0 {
            return None;
        }
        let rows = rows.json();
        let rows = rows.as_array().unwrap().iter().filter(|row| row["to"] == format!("donor{to}"));
        rows.filter_map(|row| row["bandwidth_mbps"].as_f64()).max_by(f64::total_cmp)
    };
    wait_until("every link is measured", || (0..MACHINES).all(|to| mbps(to).is_some()));
    let slow = mbps(SLOW).unwrap();
    println!("shaped to {SLOW_MBPS} Mb/s: measured {slow:.0}; not shaped: {:.0}", mbps(1).unwrap());
    // A loaded machine lowers the measured rate. It rises by the burst that the shaper accumulates
    // while a sender waits for a processor: 64 KiB in the 25 ms that count.
    assert!(slow <= MOST_MBPS, "{slow} Mb/s");
    wait_until("the others are known to be faster", || {
        [0, 1].into_iter().all(|to| mbps(to).is_some_and(|fast| fast > 2.0 * MOST_MBPS))
    });

    // Four slabs of 80 Mb/s each: one of them may be placed there.
    let need = "320Mbps";
    let words = ["place", "64MiB", "--copies", "1", "--placement", "spread", "--bandwidth", need];
    let plan = said(&words).expect(0).json();
    let row = |plan: &Value, name: &str| {
        let rows = plan["memory"]["nodes"].as_array().unwrap();
        rows.iter().find(|row| row["node"] == name).unwrap().clone()
    };
    let of_slow = row(&plan, &format!("donor{SLOW}"));
    assert!(of_slow["slabs"].as_u64().unwrap() <= 1, "{plan}");
    assert!(of_slow["link_left_bps"].as_f64().unwrap() <= MOST_MBPS * 1e6, "{plan}");
    assert_eq!(plan["refusal"], "", "{plan}");

    // A request to the slow donor alone is refused, with its available bandwidth.
    let alone = [&words[..], &["--donor", "donor2"]].concat();
    let refused = said(&alone).expect(1).json();
    let why = refused["refusal"].as_str().unwrap();
    assert!(why.contains("their links do not carry") && why.contains("to donor2"), "{why}");
    let nonsense = machines.venice(0, &["place", "64MiB", "--bandwidth", "5GB/s"]);
    assert_eq!(nonsense.code(), 2, "{}", nonsense.err);

    // A running program keeps its granted reservation.
    let run = ["run", "--monitor", &monitor, "--local", "16MiB", "--remote", "32MiB", "--port"];
    let run = [&run[..], &["udp", "--copies", "1", "--bandwidth", "20Mbps", "--", "true"]].concat();
    machines.venice(0, &run).expect(0);
    let get = ["get", "memory=32MiB", "--bandwidth", "20Mbps", "--donor", "donor1", "--monitor"];
    let grants = format!("{} grants --json --monitor {monitor}", env!("CARGO_BIN_EXE_venice"));
    let get = [&get[..], &[&monitor, "--", "sh", "-c", &grants]].concat();
    let held = machines.venice(0, &get).expect(0).out;
    assert!(held.contains("\"bandwidth_bps\": 20000000"), "{held}");
    for daemon in daemons.iter_mut().rev() {
        assert_eq!(daemon.stop(Signal::TERM), Some(0));
    }
}
