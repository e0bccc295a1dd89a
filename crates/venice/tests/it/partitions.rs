//! Three machines (network namespaces) with a Monitor Node and a member of etcd each, two with
//! donors: each is cut off from the others in turn; memory is still lent, and never twice.

use std::fs;
use std::process::Command;
use std::time::Instant;

use crate::common::machines::Machines;
use crate::common::{Daemon, exists, is_root, skipped, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use venice_testkit::etcd::{Etcd, Namespace};
use venice_testkit::network::node_address;

const MONITORS: [&str; 3] = ["monitor0", "monitor1", "monitor2"];
/// The machine of the programs, which also lends.
const NEAR: u16 = 3;
/// A machine that only lends.
const FAR: u16 = 4;
const MACHINES: u16 = 5;

struct Rack(Machines);

impl Rack {
    fn machine(&self, number: u16) -> Namespace {
        Namespace { name: self.0.network.node(number), address: node_address(number).to_string() }
    }

    fn address(&self, monitor: u16) -> String {
        format!("{}:7470", node_address(monitor))
    }

    fn all(&self) -> String {
        (0..3).map(|monitor| self.address(monitor)).collect::<Vec<_>>().join(",")
    }

    fn start_monitor(&self, machine: u16, etcd: &str, socket: &[&str]) -> Daemon {
        let name = MONITORS[usize::from(machine)];
        let (state, ready) = (self.0.file(name, "state"), self.0.file(name, "ready"));
        let (listen, store) = (self.address(machine), format!("etcd://{etcd}"));
        let words = ["monitor", "--listen", &listen, "--state-dir", &state, "--store", &store];
        let _ = fs::remove_file(&ready);
        let words = [&words[..], &["--ready-file", &ready], socket].concat();
        let daemon = self.0.start(machine, name, &words);
        wait_until("a Monitor Node serves", || exists(ready.as_ref()));
        daemon
    }

    fn rows(&self, what: &str, monitor: &str) -> Option<Vec<Value>> {
        let said = self.0.venice(NEAR, &[what, "--json", "--monitor", monitor]);
        if said.code() != 0 {
            return None;
        }
        let mut rows = said.json().as_array().unwrap().clone();
        for row in &mut rows {
            row.as_object_mut().unwrap().retain(|key, _| !key.starts_with("age"));
        }
        Some(rows)
    }

    /// True if these Monitor Nodes agree on every grant and node, and the donors have lent exactly
    /// that.
    fn agrees(&self, monitors: &[u16]) -> bool {
        let said = |what: &str| -> Option<Vec<Vec<Value>>> {
            monitors.iter().map(|monitor| self.rows(what, &self.address(*monitor))).collect()
        };
        let (Some(grants), Some(nodes)) = (said("grants"), said("nodes")) else { return false };
        let are_same = grants.iter().all(|said| *said == grants[0]);
        let are_lent = grants[0].iter().all(|grant| grant["state"] == "committed");
        let granted = |donor: &Value| {
            let its = grants[0].iter().filter(|grant| grant["donor"] == donor["name"]);
            its.map(|grant| grant["bytes"].as_u64().unwrap()).sum::<u64>()
        };
        let is_true = |donor: &Value| {
            let bytes = |key: &str| donor[key].as_u64().unwrap();
            donor["state"] == "up" && bytes("lent_bytes") - bytes("free_bytes") == granted(donor)
        };
        are_same && are_lent && nodes.iter().all(|said| said.len() == 2 && said.iter().all(is_true))
    }

    /// Prints the time until a program has had memory, as evidence for the decision record.
    fn lends_again(&self, after: &str) {
        let (began, all) = (Instant::now(), self.all());
        let words = ["run", "--monitor", &all, "--local", "16MiB", "--remote", "16MiB"];
        let words = [&words[..], &["--copies", "1", "--port", "udp", "--", "true"]].concat();
        wait_until("memory is granted", || self.0.venice(NEAR, &words).code() == 0);
        println!("granted {:.1} s after {after}", began.elapsed().as_secs_f64());
    }

    fn cut(&self, machine: u16) {
        self.0.network.set_link(machine, false).unwrap();
    }

    fn mend(&self, machine: u16) {
        self.0.network.set_link(machine, true).unwrap();
    }
}

#[test]
fn lending_survives_each_partition() {
    if !is_root() {
        return skipped("lending_survives_each_partition", "needs root");
    }
    let rack = Rack(Machines::new(MACHINES));
    let etcd = Etcd::start_in(&[0, 1, 2].map(|machine| rack.machine(machine)));
    let first = rack.0.file(MONITORS[0], "state");
    let address = rack.address(0);
    rack.0.venice(0, &["init", "--state-dir", &first, "--address", &address]).expect(0);
    for other in &MONITORS[1..] {
        let copied = Command::new("cp").args(["-a", &first, &rack.0.file(other, "state")]).status();
        assert!(copied.unwrap().success());
    }
    let etcds = etcd.addresses();
    let mut founder = rack.start_monitor(0, &etcds, &[]);
    let new = ["token", "new", "--monitor", &address];
    let tokens = [NEAR, FAR].map(|machine| (machine, rack.0.venice(0, &new).expect(0).out));
    assert_eq!(founder.stop(Signal::TERM), Some(0));
    // From here on this machine's programs use their own agent's socket.
    let none = ["--local-socket", "none"];
    let mut monitors: Vec<Daemon> =
        (0..3).map(|machine| rack.start_monitor(machine, &etcds, &none)).collect();
    let _agents = tokens.map(|(machine, token)| {
        let socket = if machine == NEAR { &[][..] } else { &["--local-socket", "none"] };
        rack.0.start_agent(machine, token.trim(), &rack.all(), socket)
    });
    wait_until("all three hear both donors", || rack.agrees(&[0, 1, 2]));
    let all = rack.all();
    let words = ["run", "--monitor", &all, "--local", "16MiB", "--remote", "32MiB"];
    let words = [&words[..], &["--copies", "2", "--port", "udp", "--", "sleep", "600"]].concat();
    let mut program = rack.0.start(NEAR, "program", &words);
    let lent = || rack.rows("grants", &all).is_some_and(|grants| grants.len() == 2);
    wait_until("the program has its memory", lent);
    wait_until("all three know of it", || rack.agrees(&[0, 1, 2]));
    let before = rack.rows("grants", &all).unwrap();

    for cut in 0..3 {
        rack.cut(cut);
        rack.lends_again(&format!("{} was cut off with its etcd", MONITORS[usize::from(cut)]));
        let others: Vec<u16> = (0..3).filter(|other| *other != cut).collect();
        wait_until("the others know the same", || rack.agrees(&others));
        // The isolated Monitor Node receives nothing and closes its port.
        let own = ["nodes", "--monitor", &rack.address(cut)];
        wait_until("it serves nobody", || rack.0.venice(cut, &own).code() != 0);
        rack.mend(cut);
        wait_until("it knows what the others know", || rack.agrees(&[0, 1, 2]));
        assert_eq!(rack.rows("grants", &rack.address(cut)).as_ref(), Some(&before));
    }

    // A donor with a copy dies: the program continues with the other.
    rack.cut(FAR);
    let is_down = |node: &Value| node["name"] == format!("donor{FAR}") && node["state"] == "down";
    wait_until("it is known to be gone", || {
        rack.rows("nodes", &all).is_some_and(|nodes| nodes.iter().any(is_down))
    });
    rack.lends_again("a donor was cut off");
    rack.mend(FAR);
    wait_until("it is there again", || {
        rack.rows("nodes", &all).is_some_and(|nodes| nodes.iter().all(|node| node["state"] == "up"))
    });
    assert!(program.0.try_wait().unwrap().is_none(), "the program has ended");
    program.stop(Signal::TERM);
    wait_until("its memory is given back", || {
        rack.agrees(&[0, 1, 2]) && rack.rows("grants", &all).is_some_and(|it| it.is_empty())
    });
    for monitor in &mut monitors {
        assert_eq!(monitor.stop(Signal::TERM), Some(0));
    }
}
