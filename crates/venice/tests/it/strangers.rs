//! Strangers at the ports of a rack's real processes: peers without a certificate, in any number.

use std::process::Command;

use crate::common::{Place, finish, is_root, pid, port_of_its_own, wait_until};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use tokio::task::JoinSet;
use venice_control::client::{Access, EnrolmentClient, Login};
use venice_control::identity::{Authority, Fingerprint};

/// Limit on descriptors of the rack's processes.
const DESCRIPTORS: u32 = 300;
/// More connections than that.
const CONNECTIONS: usize = 400;

/// A rack of one node whose processes have few descriptors.
struct Rack {
    place: Place,
    runtime: tokio::runtime::Runtime,
}

impl Rack {
    fn new() -> Rack {
        let place = Place::new();
        let port = port_of_its_own();
        let words = ["up", "--nodes", "1", "--lend", "32MiB", "--monitor-port", &port];
        let venice = place.command(&words);
        let mut limited = Command::new("sh");
        limited.args(["-c", &format!("ulimit -n {DESCRIPTORS}; exec \"$@\""), "sh"]);
        limited.arg(venice.get_program()).args(venice.get_args());
        for (key, value) in venice.get_envs() {
            match value {
                Some(value) => limited.env(key, value),
                None => limited.env_remove(key),
            };
        }
        finish(limited, &words).expect(0);
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        Rack { place, runtime }
    }

    fn fingerprint(&self) -> Fingerprint {
        let dir = self.place.run_dir().join("monitor/state/identity");
        Authority::open(&dir).unwrap().fingerprint()
    }

    /// Connects to `addr` without a certificate, more often than the process has descriptors.
    fn flood(&self, addr: &str) -> Vec<EnrolmentClient> {
        self.runtime.block_on(async {
            let mut connecting = JoinSet::new();
            for _ in 0..CONNECTIONS {
                let login = Login::nobody(self.fingerprint()).unwrap();
                let access = Access::new(addr, login);
                connecting.spawn(async move { EnrolmentClient::connect(&access).await });
            }
            connecting.join_all().await.into_iter().filter_map(Result::ok).collect()
        })
    }
}

#[test]
fn strangers_leave_descriptors_for_others() {
    let rack = Rack::new();
    let status = rack.place.status();
    let monitor = status["monitor"]["addr"].as_str().unwrap();
    let held = rack.flood(monitor);
    assert!(!held.is_empty(), "no connection was made");
    let nodes = rack.place.venice(&["nodes", "--json"]).expect(0).json();
    assert_eq!(nodes[0]["state"], "up", "{nodes}");
    wait_until("closed connections are counted", || {
        let shown = rack.place.venice(&["identity", "--json"]).expect(0).json();
        shown["refused"]["uncertified"].as_u64().unwrap() > 0
    });
    let said = rack.place.venice(&["status"]).expect(0);
    assert!(said.out.contains("closed for want of a certificate"), "{}", said.out);
    let log = std::fs::read_to_string(rack.place.run_dir().join("monitor/log")).unwrap();
    assert!(log.contains("closed for want of a certificate"), "{log}");
    drop(held);

    // The same at an agent: it is not the Monitor Node, but closes them likewise.
    let agent = nodes[0]["control_addr"].as_str().unwrap();
    let held = rack.flood(agent);
    rack.place.venice(&["get", "memory=16MiB", "--", "true"]).expect(0);
    let log = std::fs::read_to_string(rack.place.run_dir().join("node1/log")).unwrap();
    assert!(!log.contains("memory pressure is not watched"), "{log}");
    drop(held);
}

#[test]
fn administrators_need_no_free_descriptor() {
    let place = Place::new();
    place.up(1);
    let monitor = pid(&place.status()["monitor"]);
    let open = std::fs::read_dir(format!("/proc/{monitor}/fd")).unwrap();
    let names = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok());
    let limit = names.max().unwrap() + 1;
    let monitor = Pid::from_raw(i32::try_from(monitor).unwrap());
    let few = Rlimit { current: Some(limit), ..getrlimit(Resource::Nofile) };
    let had = prlimit(monitor, Resource::Nofile, few).unwrap();
    let said = place.venice(&["nodes"]);
    assert!(!said.err.contains("kill"), "{}", said.err);
    // The name of another user is looked up in a file.
    if is_root() {
        said.expect(0);
    }
    prlimit(monitor, Resource::Nofile, had).unwrap();
    place.venice(&["nodes"]).expect(0);
}
