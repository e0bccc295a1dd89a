//! OpenCL devices move to other donors under a program that uses all that a device holds: no wrong
//! byte, whoever is killed meanwhile.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use venice_e2e::programs::{
    CProgram, Outcome, Port, Rack, Running, descendants, kill_now, wait_for,
};
use venice_testkit::random::SplitMix64;

const LIMIT: Duration = Duration::from_secs(120);
const SIZE: &str = "accelerator:opencl=256MiB";
/// Priority of the runs.
const PRIORITY: &str = "133";
/// Mode in which the devices of a context share contents.
const SHARED: &str = "shared";
/// Mode in which a command buffer is replayed.
const BUFFERS: &str = "buffers";
/// Pretends to be another machine, so that endpoints of this one are passed over.
const ELSEWHERE: &str =
    "mount --bind \"$1\" /proc/sys/kernel/random/boot_id && shift && exec \"$@\"";

/// A rack, and a program whose devices are to move.
struct Moving {
    rack: Rack,
    dir: tempfile::TempDir,
    running: Running,
    _compiled: Option<CProgram>,
}

impl Moving {
    /// Starts the program with so many devices, and waits until it works; `None`, with a remark:
    /// it cannot run here.
    fn start(mode: &str, port: Port, devices: usize, donors: usize) -> Option<Self> {
        let moving = Self::launch(mode, port, devices, donors)?;
        wait_for("the program to work", LIMIT, || moving.file("ready").exists().then_some(()));
        Some(moving)
    }

    /// Starts the program.
    fn launch(mode: &str, port: Port, devices: usize, donors: usize) -> Option<Self> {
        let driver = Command::new("/usr/bin/python3").args(["-c", "import pyopencl"]).output();
        if !driver.is_ok_and(|it| it.status.success()) || !Path::new("/etc/OpenCL/vendors").exists()
        {
            eprintln!("SKIPPED: opencl_moves {mode}: PyOpenCL and PoCL are not installed");
            return None;
        }
        let names = (1..=donors).map(|node| format!("node{node}/{SIZE}"));
        let offers: Vec<_> = names.flat_map(|offer| ["--offer".into(), offer]).collect();
        let mut options: Vec<_> = offers.iter().map(String::as_str).collect();
        if port == Port::Udp {
            options.push("--netns");
        }
        let rack = Rack::start_with(port, 32, &options);
        Some(Self::on(rack, mode, port, devices))
    }

    fn on(rack: Rack, mode: &str, port: Port, devices: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        let stop = dir.path().join("stop");
        let devices = devices.to_string();
        let run = ["run", "--accelerators", &devices, "--priority", PRIORITY, "--"];
        let mut command = rack.command(&run);
        let compiled = (mode == BUFFERS)
            .then(|| CProgram::compile_with("opencl_command_buffer", &["-lOpenCL"]));
        let python = ["/usr/bin/python3", "-W", "ignore"];
        match (mode, &compiled) {
            (_, Some(it)) => command.arg(it.command(&[]).get_program()).arg("steady"),
            (SHARED, _) => command.args(python).arg(data.join("opencl_shared.py")),
            (mode, _) => command.args(python).arg(data.join("opencl_moves.py")).arg(mode),
        };
        command.arg(&stop);
        let running = Running::spawn(over(port, command, dir.path()), false);
        Self { rack, dir, running, _compiled: compiled }
    }

    fn file(&self, suffix: &str) -> PathBuf {
        self.dir.path().join(format!("stop.{suffix}"))
    }

    fn tell(&self, suffix: &str) {
        std::fs::write(self.file(suffix), "").unwrap();
    }

    /// Returns the donors of its devices.
    fn donors(&self) -> Vec<String> {
        let rows = self.rack.json(&["grants"]);
        let rows = rows.as_array().unwrap().iter();
        let rows = rows.filter(|row| row["kind"] == "accelerator" && row["state"] != "lost");
        rows.map(|row| row["donor"].as_str().unwrap().to_owned()).collect()
    }

    /// Returns the donor of its only device.
    fn donor(&self) -> String {
        let [donor] = &self.donors()[..] else { panic!("not one device") };
        donor.clone()
    }

    fn drain(&self, node: &str, words: &[&str]) {
        let drained = self.rack.venice(&[&["drain", node], words].concat());
        assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stdout));
    }

    /// Ends the program in order.
    fn stop(self) -> Outcome {
        std::fs::write(self.dir.path().join("stop"), "").unwrap();
        self.running.finish(LIMIT)
    }

    /// Kills the host process of a node's device, if there is one.
    fn kill_host(&self, node: &str) {
        // Launcher, init, host. Below it a driver may have a linker.
        if let Some(pid) = descendants(self.rack.agent_pid(node)).get(2) {
            kill_now(*pid);
        }
    }
}

/// Returns the command as it runs on a machine that reaches the rack by that port.
fn over(port: Port, command: Command, dir: &Path) -> Command {
    if port != Port::Udp {
        return command;
    }
    let id = dir.join("boot_id");
    std::fs::write(&id, "6ba7b810-9dad-11d1-80b4-00c04fd430c8\n").unwrap();
    let mut other = Command::new("unshare");
    other.args(["--mount", "sh", "-c", ELSEWHERE, "sh"]).arg(id);
    other.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => other.env(name, value),
            None => other.env_remove(name),
        };
    }
    other
}

fn expect_right(outcome: &Outcome) {
    outcome.expect_code(0);
    let said = String::from_utf8_lossy(&outcome.stdout);
    assert!(said.starts_with("right "), "{said}");
}

fn devices_move(port: Port) {
    let Some(moving) = Moving::start("steady", port, 2, 4) else { return };
    for node in ["node1", "node2"] {
        moving.drain(node, &["--wait-s", "60"]);
        assert!(!moving.donors().contains(&node.to_owned()));
        // A drained node may end for maintenance without effect.
        kill_now(moving.rack.agent_pid(node));
    }
    expect_right(&moving.stop());
}

#[test]
fn devices_move_in_use_over_shm() {
    devices_move(Port::Shm);
}

#[test]
fn devices_move_in_use_over_udp() {
    devices_move(Port::Udp);
}

fn command_buffers_move(port: Port) {
    let Some(moving) = Moving::start(BUFFERS, port, 1, 2) else { return };
    let from = moving.donor();
    moving.drain(&from, &["--wait-s", "60"]);
    assert_ne!(moving.donor(), from);
    kill_now(moving.rack.agent_pid(&from));
    // Some more replays at the other donor.
    std::thread::sleep(Duration::from_secs(1));
    expect_right(&moving.stop());
}

#[test]
fn command_buffers_move_over_shm() {
    command_buffers_move(Port::Shm);
}

#[test]
fn command_buffers_move_over_udp() {
    command_buffers_move(Port::Udp);
}

fn devices_share_contents(port: Port) {
    let Some(moving) = Moving::start(SHARED, port, 3, 4) else { return };
    moving.drain("node1", &["--wait-s", "60"]);
    expect_right(&moving.stop());
}

#[test]
fn devices_share_contents_over_shm() {
    devices_share_contents(Port::Shm);
}

#[test]
fn devices_share_contents_over_udp() {
    devices_share_contents(Port::Udp);
}

fn others_go_on(port: Port) {
    let Some(mut moving) = Moving::start("steady", port, 2, 2) else { return };
    // On the program's first device two threads work.
    moving.kill_host(&moving.donors()[1]);
    wait_for("the loss to be told", LIMIT, || {
        tells_loss(&moving.running.stderr_so_far()).then_some(())
    });
    assert!(moving.running.is_running());
    let outcome = moving.stop();
    assert_eq!(
        (outcome.code(), &outcome.stdout[..]),
        (4, &b"failed 1\n"[..]),
        "{}",
        outcome.stderr
    );
}

#[test]
fn others_go_on_over_shm() {
    others_go_on(Port::Shm);
}

#[test]
fn others_go_on_over_udp() {
    others_go_on(Port::Udp);
}

#[test]
fn mapped_buffer_delays_move() {
    let Some(moving) = Moving::start("mapped", Port::Shm, 1, 2) else { return };
    let donor = moving.donor();
    moving.drain(&donor, &["--no-wait"]);
    let said = || moving.running.stderr_so_far().contains("stays where it is: a buffer is mapped");
    wait_for("the reason", LIMIT, || said().then_some(()));
    moving.tell("unmap");
    moving.drain(&donor, &["--wait-s", "60"]);
    expect_right(&moving.stop());
}

#[test]
fn own_event_delays_move() {
    let Some(moving) = Moving::start("waiting", Port::Shm, 1, 2) else { return };
    let donor = moving.donor();
    moving.drain(&donor, &["--no-wait"]);
    let said = || moving.running.stderr_so_far().contains("wait for an event of the program");
    wait_for("the reason", LIMIT, || said().then_some(()));
    moving.tell("set");
    moving.drain(&donor, &["--wait-s", "60"]);
    expect_right(&moving.stop());
}

#[test]
fn unused_event_delays_nothing() {
    let Some(moving) = Moving::start("unused", Port::Shm, 1, 2) else { return };
    let donor = moving.donor();
    moving.drain(&donor, &["--wait-s", "60"]);
    assert_ne!(moving.donor(), donor);
    expect_right(&moving.stop());
}

#[test]
fn moved_grant_keeps_priority() {
    let Some(moving) = Moving::start("steady", Port::Shm, 1, 2) else { return };
    let priorities = || {
        let rows = moving.rack.json(&["grants"]);
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| (row["donor"].clone(), row["priority"].clone())).collect::<Vec<_>>()
    };
    let donor = moving.donor();
    let priority: u8 = PRIORITY.parse().unwrap();
    assert_eq!(priorities(), [(donor.clone().into(), priority.into())]);
    moving.drain(&donor, &["--wait-s", "60"]);
    assert_eq!(priorities(), [(moving.donor().into(), priority.into())]);
    assert_ne!(moving.donor(), donor);
    expect_right(&moving.stop());
}

#[test]
fn wanted_target_is_given_back() {
    let Some(moving) = Moving::start("mapped", Port::Shm, 1, 3) else { return };
    let from = moving.donor();
    let others = |donors: Vec<String>| donors.into_iter().filter(|it| *it != from).collect();
    let targets = || -> Vec<String> { others(moving.donors()) };
    moving.drain(&from, &["--no-wait"]);
    wait_for("a target", LIMIT, || (targets().len() == 1).then_some(()));
    // While the program holds its device by a mapped buffer, the target is wanted back too.
    let [first] = &targets()[..] else { panic!("not one target") };
    moving.drain(first, &["--no-wait"]);
    wait_for("another target", LIMIT, || {
        let targets = targets();
        (targets.len() == 1 && targets[0] != *first).then_some(())
    });
    let second = targets()[0].clone();
    moving.tell("unmap");
    moving.drain(&from, &["--wait-s", "60"]);
    moving.drain(first, &["--wait-s", "60"]);
    assert_eq!(moving.donors(), [second]);
    let Moving { rack, dir, running, .. } = moving;
    std::fs::write(dir.path().join("stop"), "").unwrap();
    expect_right(&running.finish(LIMIT));
    assert_eq!(rack.json(&["grants"]), Value::Array(Vec::new()), "no grant is left");
}

#[test]
fn finish_fails_on_lost_device() {
    let Some(moving) = Moving::start("lost", Port::Shm, 1, 1) else { return };
    moving.kill_host("node1");
    wait_for("the loss to be told", LIMIT, || {
        tells_loss(&moving.running.stderr_so_far()).then_some(())
    });
    moving.tell("lost");
    expect_right(&moving.stop());
}

#[test]
fn programs_of_all_sorts_move() {
    let Some(moving) = Moving::start("programs", Port::Shm, 1, 2) else { return };
    for _ in 0..3 {
        let donor = moving.donor();
        moving.drain(&donor, &["--wait-s", "60"]);
        moving.drain(&donor, &["--undo"]);
    }
    expect_right(&moving.stop());
}

#[test]
fn preempted_device_moves() {
    let Some(moving) = Moving::start("steady", Port::Shm, 1, 2) else { return };
    let donor = moving.donor();
    let get = ["get", "accelerator:opencl", "--wait", "60s", "--priority", "200", "--preempt"];
    let mut command = moving.rack.command(&get);
    command.args(["--donor", &donor, "--", "true"]);
    Running::spawn(command, false).finish(LIMIT).expect_code(0);
    assert_ne!(moving.donor(), donor);
    expect_right(&moving.stop());
}

/// Kills a host at a moment of a move that a seed chooses: the program is right, or learns that its
/// device is lost.
#[test]
fn kill_during_move_is_told() {
    let Some(mut moving) = Moving::start("steady", Port::Shm, 1, 3) else { return };
    let mut random = random();
    for round in 0..12_u64 {
        let donors = moving.donors();
        let former = donors.first().expect("it has a device").clone();
        moving.drain(&former, &["--no-wait"]);
        std::thread::sleep(Duration::from_millis(random.below(1500)));
        let victim = match round % 3 {
            0 => former.clone(),
            _ => moving.donors().into_iter().find(|it| *it != former).unwrap_or(former.clone()),
        };
        moving.kill_host(&victim);
        std::thread::sleep(Duration::from_millis(500));
        moving.drain(&former, &["--undo"]);
        if !moving.running.is_running() || moving.donors().is_empty() {
            break;
        }
    }
    let Moving { rack, dir, running, .. } = moving;
    std::fs::write(dir.path().join("stop"), "").unwrap();
    let outcome = running.finish(LIMIT);
    let (code, said) = (outcome.code(), &outcome.stderr);
    assert!(code == 0 || (code == 4 && tells_loss(said)), "{code}: {said}");
    wait_for("all grants to end", LIMIT, || {
        (rack.json(&["grants"]) == Value::Array(Vec::new())).then_some(())
    });
}

/// Victims of the rounds of [`grants_end_whoever_dies`].
const VICTIMS: [&str; 6] = ["host", "agent", "stopped agent", "monitor", "run", "program"];

/// Kills one of all that take part at a moment that a seed chooses, from the start of the program on:
/// its grants end, and its devices can be granted again.
#[test]
fn grants_end_whoever_dies() {
    let mut random = random();
    let Some(mut moving) = Moving::launch("steady", Port::Shm, 2, 2) else { return };
    for victim in VICTIMS.iter().chain(&VICTIMS) {
        std::thread::sleep(Duration::from_millis(random.below(4000)));
        strike(&moving, victim);
        std::thread::sleep(Duration::from_millis(random.below(1000)));
        let Moving { rack, dir, running, .. } = moving;
        std::fs::write(dir.path().join("stop"), "").unwrap();
        let outcome = running.finish(LIMIT);
        assert!(outcome.status.code() != Some(3), "{victim}: {}", outcome.stderr);
        // What was killed starts anew.
        let up = rack.venice(&["up"]);
        assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
        wait_for("all grants to end", LIMIT, || {
            (rack.json(&["grants"]) == Value::Array(Vec::new())).then_some(())
        });
        let get = ["get", "accelerator:opencl=2", "--", "true"];
        wait_for("all devices to be free", LIMIT, || {
            rack.venice(&get).status.success().then_some(())
        });
        moving = Moving::on(rack, "steady", Port::Shm, 2);
    }
    moving.running.signal(Signal::KILL);
    moving.running.finish(LIMIT);
}

fn strike(moving: &Moving, victim: &str) {
    match victim {
        "host" => moving.kill_host("node2"),
        "agent" => kill_now(moving.rack.agent_pid("node2")),
        "stopped agent" => {
            let pid = moving.rack.agent_pid("node2");
            send(pid, Signal::STOP);
            std::thread::sleep(Duration::from_secs(3));
            send(pid, Signal::CONT);
        }
        "monitor" => kill_now(moving.rack.monitor_pid()),
        "run" => moving.running.signal(Signal::KILL),
        "program" => moving.running.descendants().first().iter().for_each(|pid| {
            send(**pid, Signal::KILL);
        }),
        other => panic!("no victim {other}"),
    }
}

/// Sends a signal; a process that is gone takes none.
fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid as i32).expect("a process id");
    let _ = kill_process(pid, signal);
}

/// Returns numbers of the seed of this run.
fn random() -> SplitMix64 {
    let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|it| it.parse().ok()).unwrap_or(7);
    SplitMix64(seed)
}

/// True if the run has told that a device is lost.
fn tells_loss(said: &str) -> bool {
    said.contains("its service has ended") || said.contains("lost:")
}
