//! `venice swap` and `venice run --mode swap`: the kernel's own paging on borrowed memory.

pub mod anchored;
pub mod bodies;
pub mod by_helper;
mod go_program;
mod moved_home;
pub mod programs;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use crate::common::{self, Place, finish, is_root, kill, pid, runs, wait, wait_until};
use programs::{ended, ended_right, filled, grants, list, pages};
use serde_json::Value;
use signal_hook::consts::SIGBUS;
use venice_swap::cgroup::Hierarchy;

/// Exclusive use of the machine's swap, which all programs share.
pub struct Alone {
    _lock: fs::File,
}

impl Alone {
    fn wait() -> Alone {
        let path = std::env::temp_dir().join("venice-swap-tests.lock");
        let lock = fs::File::options().create(true).truncate(false).write(true).open(path).unwrap();
        lock.lock().unwrap();
        Alone { _lock: lock }
    }
}

/// Checks the requirements beyond a rack; reports why a test is skipped.
pub fn can_swap(test: &str) -> Option<Alone> {
    let lacks = if !is_root() {
        "root"
    } else if Hierarchy::find().is_none() {
        "memory-cgroup"
    } else if !Path::new("/dev/fuse").exists() {
        "fuse"
    } else if !Path::new("/dev/loop-control").exists() {
        "loop"
    } else {
        return Some(Alone::wait());
    };
    println!("SKIPPED: {test}: no {lacks}");
    None
}

#[test]
fn device_attaches_lists_detaches() {
    let Some(_alone) = can_swap("device_attaches_lists_detaches") else { return };
    let place = Place::new();
    place.up(2);
    let said = place.venice(&["swap", "attach", "48MiB"]).expect(0);
    assert!(said.out.starts_with("swap0: 48MiB from "), "{}", said.out);
    let words = ["swap", "attach", "1MiB", "--name", "small", "--port", "udp", "--queues", "1"];
    place.venice(&words).expect(0);

    let rows = list(&place);
    assert_eq!(rows.len(), 2);
    let (small, large) = (&rows[0], &rows[1]);
    assert_eq!((&small["name"], &large["name"]), (&"small".into(), &"swap0".into()));
    assert_eq!(
        (&small["size_bytes"], &large["size_bytes"]),
        (&(1 << 20).into(), &(48 << 20).into())
    );
    assert_eq!((&small["port"], &small["queues"]), (&"udp".into(), &1.into()));
    assert_eq!(large["donors"].as_array().unwrap().len(), 2);
    assert_eq!(large["state"], "up");
    assert!(large["device"].as_str().unwrap().starts_with("/dev/"));
    assert!(runs(pid(large)) && large["request_p50_us"].as_f64().unwrap() > 0.0);
    let table = place.venice(&["swap", "list"]).expect(0).out;
    assert!(table.contains("48MiB") && table.contains("small"), "{table}");

    let again = place.venice(&["swap", "attach", "1MiB", "--name", "small"]).expect(1);
    assert!(again.complaint().contains("already"), "{again:?}");
    let unknown = place.venice(&["swap", "detach", "swap7"]).expect(1);
    assert!(unknown.complaint().contains("no swap device swap7"), "{unknown:?}");
    let room = place.venice(&["swap", "attach", "1GiB"]).expect(1);
    assert!(room.complaint().contains("no room for 1GiB"), "{room:?}");
    assert_eq!(list(&place).len(), 2, "a device that failed left something");

    place.venice(&["swap", "detach", "small"]).expect(0);
    assert_eq!(grants(&place), 2);
    // The rest is detached with the rack.
    let down = place.venice(&["down"]).expect(0);
    assert!(down.out.contains("swap0 is detached"), "{down:?}");
    assert!(!place.run_dir().exists(), "the run directory is left");
}

#[test]
fn invalid_arguments_are_refused() {
    let place = Place::new();
    for words in [
        &["swap", "attach", "4096"][..],
        &["swap", "attach", "1MiB", "--name", "a/b"],
        &["swap", "attach", "1MiB", "--queues", "0"],
        &["swap", "attach", "1MiB", "--copies", "4"],
        &["swap", "attach", "1MiB", "--device", "floppy"],
        &["swap", "detach"],
        &["run", "--mode", "swap", "--read-ahead", "3", "--", "true"],
    ] {
        let code = if words[0] == "run" { 125 } else { 2 };
        place.venice(words).expect(code).complaint();
    }
    let alone = place.venice(&["swap", "attach", "1MiB"]).expect(1);
    let wanted = if is_root() { "no Monitor Node" } else { "need root" };
    assert!(alone.complaint().contains(wanted), "{alone:?}");
    assert_eq!(list(&place), Vec::<Value>::new());
}

#[test]
fn static_program_runs_on_swap() {
    let Some(_alone) = can_swap("static_program_runs_on_swap") else {
        return;
    };
    bodies::a_static_program_runs(None, &["shm", "udp"]);
}

#[test]
fn detach_reads_back_or_refuses() {
    let Some(_alone) = can_swap("detach_reads_back_or_refuses") else { return };
    bodies::comes_home_or_stays();
}

#[test]
fn dead_donor_raises_sigbus() {
    let Some(_alone) = can_swap("dead_donor_raises_sigbus") else { return };
    let place = Place::new();
    place.venice(&["up", "--nodes", "1", "--lend", "64MiB"]).expect(0);
    let program = pages().to_str().unwrap();
    let words = ["run", "--mode", "swap", "--local", "8MiB", "--remote", "48MiB", "--"];
    let child = filled(place.command(&[&words[..], &[program, "24", "wait"]].concat()));
    kill(pid(&place.status()["agents"][0]));
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.signal(), Some(SIGBUS), "{err}");
    assert!(err.contains("donors lost with the only copy of some pages: node1"), "{err}");
    assert_eq!(list(&place).len(), 0);
}

/// Kills the agent of `name`, and waits until the device has noticed and repaired its copies.
fn kill_a_donor(place: &Place, name: &str) {
    let agents = place.status()["agents"].clone();
    let agent = agents.as_array().unwrap().iter().find(|agent| agent["name"] == name).unwrap();
    kill(pid(agent));
    wait_until("lost copies are there again", || {
        let row = list(place).remove(0);
        assert_eq!(row["lost_slabs"], 0, "{row}");
        let names =
            |key: &str, name: &str| row[key].as_array().unwrap().iter().any(|named| named == name);
        // Its grant is released a moment after the last copy is repaired.
        names("lost_donors", name) && !names("donors", name) && row["short_slabs"] == 0
    });
}

fn copies_survive_donor_death(port: &str) {
    let place = Place::new();
    place.venice(&["up", "--nodes", "4", "--lend", "64MiB"]).expect(0);
    let program = pages().to_str().unwrap();
    let words = ["run", "--mode", "swap", "--local", "8MiB", "--remote", "48MiB", "--stats"];
    let words = [&words[..], &["--port", port, "--", program, "24", "wait"]].concat();
    let child = filled(place.command(&words));
    let row = list(&place).remove(0);
    assert_eq!((&row["copies"], &row["short_slabs"]), (&2.into(), &0.into()), "{row}");
    assert!(row["far_bytes"].as_u64().unwrap() > 1 << 20, "{row}");
    for gone in ["node1", "node2"] {
        kill_a_donor(&place, gone);
    }
    let row = list(&place).remove(0);
    assert!(row["rebuilt"].as_u64().unwrap() > 0, "{row}");
    let donors = row["donors"].as_array().unwrap();
    assert!(donors.iter().all(|name| name == "node3" || name == "node4"), "{row}");
    let table = place.venice(&["swap", "list"]).expect(0).out;
    assert!(table.contains("COPIES") && table.contains("node1,node2"), "{table}");
    let status = place.venice(&["status"]);
    assert!(status.out.contains("2 copies of 3 slabs, all there"), "{status:?}");
    let (code, out, err) = ended(child);
    assert_eq!((code, out.as_str()), (Some(0), "right\n"), "{err}");
    assert!(err.contains("donors lost, other copies remain: node1, node2"), "{err}");
    assert_eq!((list(&place).len(), grants(&place)), (0, 0));
}

#[test]
fn copies_survive_donor_death_shm() {
    let Some(_alone) = can_swap("copies_survive_donor_death_shm") else {
        return;
    };
    copies_survive_donor_death("shm");
}

#[test]
fn copies_survive_donor_death_udp() {
    let Some(_alone) = can_swap("copies_survive_donor_death_udp") else {
        return;
    };
    copies_survive_donor_death("udp");
}

fn drain_under_swap(port: &str) {
    let place = Place::new();
    place.venice(&["up", "--nodes", "3", "--lend", "64MiB"]).expect(0);
    let program = pages().to_str().unwrap();
    let words = ["run", "--mode", "swap", "--local", "8MiB", "--remote", "48MiB", "--copies", "1"];
    let words = [&words[..], &["--port", port, "--", program, "24", "wait"]].concat();
    let child = filled(place.command(&words));
    for name in ["node1", "node2"] {
        let moved = |row: &Value| row["written_bytes"].as_u64().unwrap();
        let before = moved(&list(&place)[0]);
        place.venice(&["drain", name, "--wait-s", "120"]).expect(0);
        wait_until("the program goes on swapping", || moved(&list(&place)[0]) > before);
        let row = list(&place).remove(0);
        let donors = row["donors"].as_array().unwrap();
        assert!(donors.iter().all(|donor| donor != name), "{row}");
        assert_eq!((&row["lost_slabs"], &row["state"]), (&0.into(), &"up".into()), "{row}");
    }
    ended_right(child);
    assert_eq!((list(&place).len(), grants(&place)), (0, 0));
}

#[test]
fn drain_under_swap_shm() {
    let Some(_alone) = can_swap("drain_under_swap_shm") else {
        return;
    };
    drain_under_swap("shm");
}

#[test]
fn drain_under_swap_udp() {
    let Some(_alone) = can_swap("drain_under_swap_udp") else {
        return;
    };
    drain_under_swap("udp");
}

#[test]
fn swap_requests_use_fuse_rings() {
    let Some(_alone) = can_swap("swap_requests_use_fuse_rings") else { return };
    if let Err(error) = venice_swap::BlockKind::fuse_rings_serve() {
        return println!("SKIPPED: swap_requests_use_fuse_rings: {error}");
    }
    bodies::requests_come_by("fuse-ring");
}

#[test]
fn swap_requests_use_dev_fuse() {
    let Some(_alone) = can_swap("swap_requests_use_dev_fuse") else { return };
    bodies::requests_come_by("fuse");
}

#[test]
fn thrashing_program_is_not_killed() {
    let Some(_alone) = can_swap("thrashing_program_is_not_killed") else {
        return;
    };
    bodies::all_pages_at_once("20000");
}

#[test]
fn anchor_keeps_page_in_cgroup() {
    let test = "anchor_keeps_page_in_cgroup";
    let Some(_alone) = can_swap(test) else { return };
    anchored::groups_keep_a_page();
}

#[test]
fn device_reports_its_copies() {
    let Some(_alone) = can_swap("device_reports_its_copies") else { return };
    let place = Place::new();
    place.venice(&["up", "--nodes", "2", "--lend", "64MiB"]).expect(0);
    let two = place.venice(&["swap", "attach", "32MiB"]).expect(0);
    assert!(two.out.contains(", 2 copies") && !two.err.contains("copies"), "{two:?}");
    let refused = place.venice(&["swap", "attach", "48MiB", "--copies", "2"]).expect(1);
    assert!(refused.complaint().contains("for 2 copies on different nodes"), "{refused:?}");
    let short = place.venice(&["swap", "attach", "48MiB"]).expect(0);
    assert!(short.err.contains("no room for two copies"), "{short:?}");
    let one = place.venice(&["swap", "attach", "1MiB", "--copies", "1"]).expect(0);
    assert!(!one.err.contains("copies"), "{one:?}");
    let copies: Vec<u64> = list(&place).iter().map(|row| row["copies"].as_u64().unwrap()).collect();
    assert_eq!(copies, [2, 1, 1]);
    place.venice(&["swap", "detach", "--all"]).expect(0);
}

#[test]
fn limit_changes_swap_budget() {
    let Some(_alone) = can_swap("limit_changes_swap_budget") else { return };
    bodies::gets_another_budget();
}

#[test]
fn dead_servers_are_cleaned_up() {
    let Some(_alone) = can_swap("dead_servers_are_cleaned_up") else { return };
    let place = Place::new();
    place.venice(&["up", "--nodes", "1", "--lend", "96MiB"]).expect(0);
    // A stopped server is reported, not waited for.
    place.venice(&["swap", "attach", "16MiB"]).expect(0);
    let server = pid(&list(&place)[0]);
    common::signal(server, rustix::process::Signal::STOP);
    assert_eq!(list(&place)[0]["state"], "silent");
    let advice = format!("kill -CONT {server}");
    for words in [&["swap", "detach", "swap0"][..], &["down"]] {
        let said = place.venice(words).expect(1);
        assert!(said.complaint().contains(&advice), "{said:?}");
    }
    kill(server);
    assert_eq!(list(&place)[0]["state"], "dead");
    let said = place.venice(&["swap", "detach", "swap0"]).expect(0);
    assert!(said.out.contains("was dead and is removed"), "{said:?}");
    assert_eq!(list(&place).len(), 0);
    let group = Hierarchy::find().unwrap().mount().join("venice-swap");
    let members = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    assert!(!group.exists() || !members.is_empty(), "its cgroup is left, with nobody in it");
    // `venice run` is killed while its program works.
    let program = pages().to_str().unwrap();
    let words = ["run", "--mode", "swap", "--local", "8MiB", "--remote", "48MiB", "--"];
    let run = filled(place.command(&[&words[..], &[program, "24", "wait"]].concat()));
    let run_pid = u64::from(run.id());
    let children = fs::read_to_string(format!("/proc/{run_pid}/task/{run_pid}/children")).unwrap();
    let child: u64 = children.split_whitespace().map(|word| word.parse().unwrap()).max().unwrap();
    assert_eq!(list(&place).len(), 1);
    let mut run = run;
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(run_pid as i32).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    wait(&mut run, &["run"]);
    wait_until("its program is gone", || !runs(child));
    wait_until("its device is gone", || list(&place).is_empty());
    let group = Hierarchy::find().unwrap().mount().join(format!("venice-run-{run_pid}"));
    wait_until("its cgroup is gone", || !group.exists());
}

#[test]
fn sigterm_reads_everything_back() {
    let Some(_alone) = can_swap("sigterm_reads_everything_back") else { return };
    let place = Place::new();
    place.up(1);
    place.venice(&["swap", "attach", "16MiB"]).expect(0);
    let server = pid(&list(&place)[0]);
    common::signal(server, rustix::process::Signal::TERM);
    wait_until("the server has ended", || !runs(server));
    assert_eq!(grants(&place), 0);
    // Without a rack there is nothing to detach.
    let all = finish(place.command(&["swap", "detach", "--all"]), &["swap", "detach", "--all"]);
    all.expect(0);
}
