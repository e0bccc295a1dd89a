//! Real memory blocks: an agent takes one from this machine's kernel and returns it, however the
//! agent ends.

#[path = "it/common/mod.rs"]
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{Place, signal, wait, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use venice_memory::hotplug::MemoryBlocks;

const BLOCKS: &str = "/sys/devices/system/memory";

/// Serialises the tests: they share the machine's blocks.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports a test as skipped on a machine whose kernel cannot take a block offline.
fn is_skipped(test: &str) -> bool {
    let can = rustix::process::geteuid().is_root() && some_block_goes();
    if !can {
        println!("SKIPPED: {test}: no memory-blocks");
    }
    !can
}

/// True if some block of this machine can go offline; it is online again afterwards.
fn some_block_goes() -> bool {
    let blocks = MemoryBlocks::default();
    let all = blocks.list().unwrap_or_default();
    all.iter().rev().filter(|block| block.is_online && block.is_removable).any(|block| {
        let went = blocks.take_offline(block.number).is_ok();
        if went {
            blocks.bring_online(block.number, block.is_movable).unwrap();
        }
        went
    })
}

fn is_online(state: &Path) -> bool {
    fs::read_to_string(state).is_ok_and(|text| text.trim() == "online")
}

/// A rack with only a Monitor Node, and an agent that lends one block. On drop the block comes
/// online, whatever the test's outcome.
struct Lending<'a> {
    place: &'a Place,
    state_dir: PathBuf,
    monitor: String,
    identity: String,
    agent: Child,
}

impl<'a> Lending<'a> {
    fn start(place: &'a Place) -> Lending<'a> {
        place.up(1);
        let monitor = place.status()["monitor"]["addr"].as_str().unwrap().to_string();
        let state_dir = place.file("agent");
        let identity = place.join("blocks", &monitor);
        let agent = start_agent(place, &state_dir, &monitor, &identity);
        Lending { place, state_dir, monitor, identity, agent }
    }

    /// The agent's row in the Resource Registration Table, once it is there.
    fn resource(&self) -> Value {
        let find = || {
            let rows = self.place.venice(&["resources", "--json"]).expect(0).json();
            rows.as_array().unwrap().iter().find(|row| row["node"] == "blocks").cloned()
        };
        wait_until("the blocks are registered", || find().is_some());
        find().unwrap()
    }

    fn recorded(&self) -> Vec<PathBuf> {
        recorded(&self.state_dir)
    }
}

impl Drop for Lending<'_> {
    fn drop(&mut self) {
        let _ = self.agent.kill();
        let _ = self.agent.wait();
        for state in self.recorded() {
            let _ = fs::write(state, "online");
        }
    }
}

fn start_agent(place: &Place, state_dir: &Path, monitor: &str, identity: &str) -> Child {
    let log = fs::File::create(place.file("agent.log")).unwrap();
    let words = ["agent", "--name", "blocks", "--lend-blocks", "1MiB", "--state-dir"];
    let mut command = place.command(&words);
    command.arg(state_dir).args(["--monitor", monitor, "--identity", identity]);
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command.spawn().unwrap()
}

/// State files of the blocks in the agent's record.
fn recorded(state_dir: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(state_dir.join("offline-blocks")).unwrap_or_default();
    let numbers = text.lines().skip(1).filter_map(|line| line.split(' ').next());
    numbers.map(|number| Path::new(BLOCKS).join(format!("memory{number}/state"))).collect()
}

/// Recorded blocks that are offline: the agent records more than it gets.
fn taken(lending: &Lending) -> Vec<PathBuf> {
    lending.recorded().into_iter().filter(|state| !is_online(state)).collect()
}

#[test]
fn agent_returns_its_memory_block() {
    let _turn = turn();
    if is_skipped("agent_returns_its_memory_block") {
        return;
    }
    let place = Place::new();
    let mut lending = Lending::start(&place);
    let row = lending.resource();
    assert_eq!((row["kind"].as_str(), &row["bytes"]), (Some("window"), &row["slab_bytes"]));
    let states = taken(&lending);
    assert_eq!(states.len(), 1, "a whole block, and no more");
    let number: u64 = states[0].parent().unwrap().file_name().unwrap().to_str().unwrap()
        ["memory".len()..]
        .parse()
        .unwrap();
    let start = number * row["bytes"].as_u64().unwrap();
    let address = row["address"].as_str().unwrap();
    assert!(address.starts_with(&format!("phys:{start:#x}-")), "{address}: block {number}");
    // It lends no slabs, so nobody can borrow from it.
    let text = place.venice(&["resources"]).expect(0).out;
    assert!(text.contains("hotplug"), "{text}");

    let words = ["agent", "--return-blocks", "--state-dir", lending.state_dir.to_str().unwrap()];
    let said = place.venice(&words).expect(1);
    assert!(said.complaint().contains("in use"), "{}", said.err);

    signal(lending.agent.id().into(), Signal::TERM);
    assert_eq!(wait(&mut lending.agent, &["agent"]).code(), Some(0));
    assert!(is_online(&states[0]), "the agent kept a block");
    assert!(lending.recorded().is_empty(), "the record is left");
}

#[test]
fn killed_agents_block_comes_online() {
    let _turn = turn();
    if is_skipped("killed_agents_block_comes_online") {
        return;
    }
    let place = Place::new();
    let mut lending = Lending::start(&place);
    lending.resource();
    let states = taken(&lending);
    assert_eq!(states.len(), 1);
    lending.agent.kill().unwrap();
    lending.agent.wait().unwrap();
    assert!(!is_online(&states[0]), "nobody is there to bring it back");

    // The next agent brings it online before it takes its own block, which may be the same.
    lending.agent = start_agent(&place, &lending.state_dir, &lending.monitor, &lending.identity);
    let log = place.file("agent.log");
    wait_until("the next agent has its block", || {
        fs::read_to_string(&log).is_ok_and(|text| text.contains("taken offline"))
    });
    assert_eq!(taken(&lending).len(), 1);
    let states: Vec<_> = states.into_iter().chain(taken(&lending)).collect();
    lending.agent.kill().unwrap();
    lending.agent.wait().unwrap();

    let words = ["agent", "--return-blocks", "--state-dir", lending.state_dir.to_str().unwrap()];
    let said = place.venice(&words).expect(0);
    assert!(said.out.contains("1 memory block is online again"), "{}", said.out);
    assert!(states.iter().all(|state| is_online(state)));
    let said = place.venice(&words).expect(0);
    assert!(said.out.contains("No memory block"), "{}", said.out);
}

#[test]
fn excess_memory_blocks_are_refused() {
    let place = Place::new();
    place.up(1);
    let monitor = place.status()["monitor"]["addr"].as_str().unwrap().to_string();
    let (state_dir, identity) = (place.file("agent"), place.join("n", &monitor));
    let words = ["agent", "--name", "n", "--lend-blocks", "1000TiB", "--identity", &identity];
    let words = [&words[..], &["--state-dir", state_dir.to_str().unwrap()]].concat();
    let words = [&words[..], &["--monitor", &monitor]].concat();
    let said = place.venice(&words).expect(1);
    let complaint = said.complaint();
    assert!(
        complaint.contains("--keep-free") || complaint.contains("no memory blocks"),
        "{complaint}"
    );
}
