//! Service hosts of granted devices, over real processes: they answer, and end with their grant,
//! whoever dies.

use std::fs::{self, File};
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use venice_control::ServiceAccess;
use venice_service::{ServiceClient, echo};

use crate::common::{Place, is_root, kill, pid, runs, signal, skipped, wait, wait_until};

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

/// A rack of two nodes with an emulated accelerator each.
fn rack() -> Place {
    let place = Place::new();
    let first = ["--offer", "node1/accelerator:emulated0,echo"];
    let second = ["--offer", "node2/accelerator:emulated,echo,fast"];
    let words = ["up", "--nodes", "2", "--lend", "32MiB"];
    place.venice(&[&words[..], &first, &second].concat()).expect(0);
    place
}

/// A command that holds an accelerator of a node, and the way to its service.
struct Holder {
    child: Child,
    access: ServiceAccess,
    said: std::path::PathBuf,
}

impl Holder {
    fn on(place: &Place, node: &str) -> Self {
        Self::by(place, node, &["get", "accelerator:echo", "--donor", node])
    }

    /// Holds what the command gets.
    fn by(place: &Place, node: &str, get: &[&str]) -> Self {
        let (file, said) =
            (place.file(&format!("{node}.json")), place.file(&format!("{node}.err")));
        let _ = fs::remove_file(&file);
        let path = file.display();
        let tell = format!(
            "printf '%s\n' \"$VENICE_GRANT_ENDPOINTS\" > {path}.new; mv {path}.new {path}; exec sleep 600"
        );
        let mut command = place.command(&[get, &["--", "sh", "-c", &tell]].concat());
        command.stdout(Stdio::null()).stderr(File::create(&said).unwrap());
        let mut child = command.spawn().unwrap();
        wait_until("the command runs", || {
            let ended = child.try_wait().unwrap();
            assert_eq!(ended, None, "{}", fs::read_to_string(&said).unwrap());
            file.exists()
        });
        let text = fs::read_to_string(&file).unwrap();
        let [access] = <[ServiceAccess; 1]>::try_from(
            serde_json::from_str::<Vec<ServiceAccess>>(&text).unwrap(),
        )
        .unwrap();
        Self { child, access, said }
    }

    fn client(&self) -> ServiceClient {
        ServiceClient::open(&self.access, LIMIT).unwrap()
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap()
    }
}

fn agent_pid(place: &Place, node: &str) -> u64 {
    let status = place.status();
    let mut agents = status["agents"].as_array().unwrap().iter();
    pid(agents.find(|row| row["name"] == node).unwrap())
}

/// Returns the processes below another one, the deepest last.
fn below(parent: u64) -> Vec<u64> {
    let mut all = vec![parent];
    let mut next = 0;
    while let Some(&parent) = all.get(next) {
        let tasks = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u64>().ok()));
        }
        next += 1;
    }
    all.split_off(1)
}

/// Returns the processes of the only host of a node: launcher, init, host.
pub fn host_pids(place: &Place, node: &str) -> Vec<u64> {
    let pids = below(agent_pid(place, node));
    assert_eq!(pids.len(), 3, "{pids:?}");
    pids
}

fn accelerators(place: &Place) -> Vec<Value> {
    let rows = place.venice(&["resources", "--json"]).expect(0).json();
    let rows = rows.as_array().unwrap().iter();
    rows.filter(|row| row["kind"] == "accelerator").cloned().collect()
}

fn all_free(place: &Place) -> bool {
    accelerators(place).iter().all(|row| row["available"] == true)
}

fn nothing_left(place: &Place, node: &str) -> bool {
    let dir = place.run_dir().join(node).join("hosts/hosts");
    fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn service_lives_with_its_grant() {
    let place = rack();
    let rows = accelerators(&place);
    let of = |node: &str| rows.iter().find(|row| row["node"] == node).unwrap();
    assert_eq!(of("node1")["capabilities"], serde_json::json!(["emulated", "echo"]));
    assert_eq!(of("node2")["address"], "emulated");

    let (mut first, mut second) = (Holder::on(&place, "node1"), Holder::on(&place, "node2"));
    for holder in [&first, &second] {
        let answer = holder.client().call(1, echo::ECHO, b"far away").unwrap();
        assert_eq!(answer.1, b"far away");
    }
    let swapped = ServiceAccess { secret: second.access.secret, ..first.access.clone() };
    assert!(ServiceClient::open(&swapped, LIMIT).is_err(), "another grant's secret");
    if is_root() {
        let status = |node: &str| {
            let pid = *host_pids(&place, node).last().unwrap();
            let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            text.lines().find(|line| line.starts_with("Uid:")).unwrap().to_owned()
        };
        assert_ne!(status("node1"), status("node2"), "two agents share a range of ids");
        assert!(!status("node1").contains("\t0\t"), "{}", status("node1"));
    }
    let table = place.venice(&["grants"]).expect(0);
    assert!(table.out.contains("emulated0"), "{table:?}");

    let mut client = first.client();
    signal(first.child.id().into(), Signal::TERM);
    wait(&mut first.child, &["get"]);
    wait_until("the host ends", || client.call(2, echo::ECHO, b"x").is_err());
    wait_until("nothing is left", || nothing_left(&place, "node1"));
    assert_eq!(second.client().call(3, echo::COUNT, b"four").unwrap().1, 4u64.to_le_bytes());
    signal(second.child.id().into(), Signal::TERM);
    wait(&mut second.child, &["get"]);
    wait_until("the devices are free", || all_free(&place));
}

#[test]
fn dead_host_ends_grant() {
    let place = rack();
    let mut holder = Holder::on(&place, "node1");
    let mut client = holder.client();
    client.call(1, echo::ECHO, b"x").unwrap();
    let pids = host_pids(&place, "node1");
    kill(pids[2]);
    assert_eq!(wait(&mut holder.child, &["get"]).code(), Some(125));
    let said = holder.said();
    // A renewal would not tell the reason.
    assert!(said.contains("emulated0 of node1: its service has ended: "), "{said}");
    assert!(said.contains(": the grant is over"), "{said}");
    assert!(client.call(2, echo::ECHO, b"x").is_err());
    wait_until("the device is free", || all_free(&place));
    assert!(nothing_left(&place, "node1") && below(agent_pid(&place, "node1")).is_empty());
    let again = Holder::on(&place, "node1");
    again.client().call(1, echo::ECHO, b"again").unwrap();
    drop(venice_testkit::process::ChildGuard(again.child));
}

#[test]
fn transferred_service_starts_anew() {
    if !is_root() {
        return skipped("transferred_service_starts_anew", "needs root");
    }
    let place = rack();
    let mut old = Holder::on(&place, "node1");
    let mut client = old.client();
    client.call(1, echo::ECHO, b"x").unwrap();
    let transfer = |id: u64, to: &str| {
        let said = place.venice(&["grants", "transfer", &id.to_string(), "--to", to, "--json"]);
        said.expect(0).json()["grants"][0]["to"].as_u64().unwrap()
    };
    // The second one may come before the first one's host has begun.
    let to_nobody = transfer(old.access.grant.0, "nobody");
    let to_root = transfer(to_nobody, "root");
    assert_eq!(wait(&mut old.child, &["get"]).code(), Some(125));
    assert!(old.said().contains("it was transferred to nobody@"), "{}", old.said());
    wait_until("the old host is gone", || client.call(2, echo::ECHO, b"x").is_err());

    let new = Holder::by(&place, "node1", &["grants", "claim"]);
    assert_eq!(new.access.grant.0, to_root);
    assert_eq!(new.client().call(1, echo::COUNT, b"four").unwrap().1, 4u64.to_le_bytes());
    let stale = ServiceAccess { secret: old.access.secret, ..new.access.clone() };
    assert!(ServiceClient::open(&stale, LIMIT).is_err(), "the old owner's secret");
    drop(venice_testkit::process::ChildGuard(new.child));
    wait_until("the device is free", || all_free(&place));
    assert!(nothing_left(&place, "node1"));
}

#[test]
fn dead_agent_leaves_no_host() {
    let place = rack();
    let mut holder = Holder::on(&place, "node1");
    let mut client = holder.client();
    client.call(1, echo::ECHO, b"x").unwrap();
    let pids = host_pids(&place, "node1");
    kill(agent_pid(&place, "node1"));
    wait_until("the host dies with its agent", || pids.iter().all(|pid| !runs(*pid)));
    assert_eq!(wait(&mut holder.child, &["get"]).code(), Some(125));
    assert!(holder.said().contains("its agent is gone"), "{}", holder.said());
    assert!(client.call(2, echo::ECHO, b"x").is_err());
    assert!(!nothing_left(&place, "node1"), "nobody could sweep");
    place.venice(&["up"]).expect(0);
    assert!(nothing_left(&place, "node1"), "the restarted agent sweeps");
    wait_until("the devices are free", || all_free(&place));
}

#[test]
fn dead_holder_loses_its_host() {
    let place = rack();
    let mut holder = Holder::on(&place, "node1");
    let mut client = holder.client();
    client.call(1, echo::ECHO, b"x").unwrap();
    signal(holder.child.id().into(), Signal::KILL);
    wait(&mut holder.child, &["get"]);
    client.call(2, echo::ECHO, b"until the lease ends").unwrap();
    wait_until("the lease ends", || client.call(3, echo::ECHO, b"x").is_err());
    wait_until("the device is free", || all_free(&place));
    assert!(nothing_left(&place, "node1"));
}

#[test]
fn emulated_accelerator_needs_service() {
    let place = Place::new();
    let words = ["up", "--lend", "32MiB", "--offer", "accelerator:emulated0"];
    let said = place.venice(&words).expect(2);
    assert!(said.complaint().contains("or ,echo"), "{said:?}");
}
