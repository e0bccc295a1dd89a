//! Daemons and commands of this release and the last one together, as during an upgrade.
//! `scripts/last-release.sh` builds the last one; its path is in `VENICE_LAST_RELEASE`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Daemon, Place, Said, exists, finish, is_root, skipped, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use venice_testkit::process::ChildGuard;

/// Which `venice` a process runs.
#[derive(Clone, Copy)]
enum Release {
    Last,
    This,
}

struct Rack {
    place: Place,
    last: PathBuf,
    addr: String,
    monitor: Option<Daemon>,
    /// The release of the Monitor Node.
    release: Release,
}

impl Rack {
    /// Founds a rack; `None` without the last release.
    fn found(test: &str, release: Release) -> Option<Rack> {
        let last = std::env::var_os("VENICE_LAST_RELEASE").filter(|path| !path.is_empty());
        let Some(last) = last else {
            skipped(test, "VENICE_LAST_RELEASE is not set (scripts/last-release.sh)");
            return None;
        };
        let (place, addr) = (Place::new(), String::new());
        let mut rack = Rack { place, last: last.into(), addr, monitor: None, release };
        rack.venice(release, &["init", "--state-dir", &rack.file("state")]).expect(0);
        rack.start_monitor(release, "127.0.0.1:0");
        Some(rack)
    }

    fn file(&self, name: &str) -> String {
        self.place.file(name).display().to_string()
    }

    fn command(&self, release: Release, words: &[&str]) -> Command {
        let ours = self.place.command(words);
        match release {
            Release::This => ours,
            Release::Last => {
                let mut command = Command::new(&self.last);
                command.args(words);
                for (name, value) in ours.get_envs() {
                    match value {
                        Some(value) => command.env(name, value),
                        None => command.env_remove(name),
                    };
                }
                command
            }
        }
    }

    fn venice(&self, release: Release, words: &[&str]) -> Said {
        finish(self.command(release, words), words)
    }

    /// Runs a command at this rack's Monitor Node.
    fn ask(&self, release: Release, words: &[&str]) -> Said {
        self.venice(release, &[&["--monitor", &self.addr], words].concat())
    }

    fn start(&self, release: Release, name: &str, words: &[&str]) -> Daemon {
        let log = fs::File::create(self.place.file(&format!("{name}.log"))).unwrap();
        let mut command = self.command(release, words);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Daemon(ChildGuard(command.spawn().unwrap()))
    }

    fn start_monitor(&mut self, release: Release, listen: &str) {
        let (state, ready) = (self.file("state"), self.file("ready.json"));
        let _ = fs::remove_file(&ready);
        let words = ["monitor", "--listen", listen, "--state-dir", &state, "--ready-file", &ready];
        let mut monitor = self.start(release, "monitor", &words);
        wait_until("the Monitor Node is ready", || {
            let ended = monitor.0.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", self.log("monitor"));
            exists(Path::new(&ready))
        });
        self.monitor = Some(monitor);
        self.release = release;
        let said: Value = serde_json::from_str(&fs::read_to_string(&ready).unwrap()).unwrap();
        self.addr = said["addr"].as_str().unwrap().to_owned();
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.place.file(&format!("{name}.log"))).unwrap()
    }

    fn stop_monitor(&mut self) {
        let mut monitor = self.monitor.take().unwrap();
        assert_eq!(monitor.stop(Signal::TERM), Some(0));
    }

    /// Starts an agent that lends memory and an accelerator.
    fn start_agent(&self, release: Release) -> Daemon {
        let identity = self.place.join("donor", &self.addr);
        let words = ["agent", "--name", "donor", "--lend", "64MiB", "--monitor", &self.addr];
        let offer = ["--identity", &identity, "--offer", "accelerator:/dev/zero,fft"];
        let agent = self.start(release, "agent", &[&words[..], &offer].concat());
        wait_until("the agent is registered", || {
            let rows = self.ask(self.release, &["resources", "--json"]);
            rows.code() == 0 && rows.json().as_array().unwrap().len() == 2
        });
        agent
    }

    fn grants(&self) -> Vec<Value> {
        let said = self.ask(self.release, &["grants", "--json"]).expect(0);
        said.json().as_array().unwrap().clone()
    }
}

#[test]
fn old_agent_serves_new_monitor() {
    let Some(rack) = Rack::found("old_agent_serves_new_monitor", Release::This) else { return };
    let _agent = rack.start_agent(Release::Last);
    let kind = ["sh", "-c", "echo $VENICE_GRANT_KIND"];
    let get = ["get", "accelerator:fft", "memory=16MiB", "--"];
    let said = rack.ask(Release::This, &[&get[..], &kind].concat()).expect(0);
    assert!(said.out.ends_with("memory,accelerator\n"), "{said:?}");
    // Programs of the last release borrow memory; their requests for devices are refused.
    rack.ask(Release::Last, &["get", "memory", "16MiB", "--", "true"]).expect(0);
    let refused = rack.ask(Release::Last, &["get", "accelerator", "--", "true"]).expect(1);
    assert!(!refused.complaint().is_empty());
    wait_until("all is given back", || rack.grants().is_empty());
}

#[test]
fn new_agent_serves_old_monitor() {
    let Some(rack) = Rack::found("new_agent_serves_old_monitor", Release::Last) else { return };
    let _agent = rack.start_agent(Release::This);
    rack.ask(Release::Last, &["get", "memory", "32MiB", "--", "true"]).expect(0);
    rack.ask(Release::Last, &["get", "accelerator", "--", "true"]).expect(0);
    let refused = rack.ask(Release::This, &["get", "memory=16MiB", "--", "true"]).expect(125);
    assert!(!refused.complaint().is_empty());
    let unknown = rack.ask(Release::This, &["events"]).expect(1);
    assert!(unknown.complaint().contains("an earlier release, which has no events"), "{unknown:?}");
    let shown = rack.ask(Release::This, &["top", "--once"]).expect(0).out;
    assert!(shown.contains("donor") && !shown.contains("EVENTS"), "{shown}");
}

#[test]
fn upgrade_keeps_grants_and_quotas() {
    let test = "upgrade_keeps_grants_and_quotas";
    let Some(mut rack) = Rack::found(test, Release::Last) else { return };
    let _agent = rack.start_agent(Release::Last);
    let addr = rack.addr.clone();
    let get = ["--monitor", &addr, "get", "memory", "16MiB"];
    let mut memory = rack.start(Release::Last, "memory", &get);
    let get = ["--monitor", &addr, "get", "accelerator"];
    let mut device = rack.start(Release::Last, "device", &get);
    wait_until("both are granted", || {
        rack.grants().iter().filter(|row| row["state"] == "committed").count() == 2
    });
    let quota = ["quota", "set", "ada", "1GiB", "--accelerators", "2"];
    let admin = rack.ask(Release::Last, &quota);
    rack.stop_monitor();

    rack.start_monitor(Release::This, &addr);
    let mut kinds: Vec<_> = rack.grants().iter().map(|row| row["kind"].to_string()).collect();
    kinds.sort();
    assert_eq!(kinds, ["\"accelerator\"", "\"memory\""]);
    let quotas = rack.ask(Release::This, &["quota", "list", "--json"]).expect(0).json();
    if admin.code() == 0 {
        let quota = serde_json::json!({ "memory": 1 << 30, "accelerator": 2 });
        assert_eq!(quotas["users"][0]["quota"], quota, "{quotas}");
    }
    // Their holders go on, and give them back to the new Monitor Node.
    assert_eq!(memory.stop(Signal::INT), Some(0));
    assert_eq!(device.stop(Signal::INT), Some(0));
    wait_until("both are given back", || rack.grants().is_empty());
    rack.stop_monitor();

    // There is no way back: the old one says so, and leaves the store alone.
    let words = ["monitor", "--listen", "127.0.0.1:0", "--state-dir", &rack.file("state")];
    let refused = rack.venice(Release::Last, &words).expect(1);
    assert!(refused.complaint().contains("the store's record format"), "{refused:?}");
    rack.start_monitor(Release::This, "127.0.0.1:0");
    let again = rack.ask(Release::This, &["quota", "list", "--json"]).expect(0).json();
    assert_eq!(again["users"][0], quotas["users"][0], "the quota of ada");
}

/// Writes its memory, checks it until told to stop, and says so.
const PROGRAM: &str = "
import os, sys, time
data = bytearray(48 << 20)
pages = range(0, len(data), 4096)
for at in pages: data[at:at + 8] = at.to_bytes(8, 'little')
open(sys.argv[1] + '/ready', 'w').close()
while not os.path.exists(sys.argv[1] + '/stop'):
    for at in pages: assert data[at:at + 8] == at.to_bytes(8, 'little'), at
    time.sleep(0.1)
print('every byte right')
";

impl Rack {
    /// Starts the agent of a node of 128 MiB that has joined.
    fn start_node(&self, release: Release, name: &str, identity: &str) -> Daemon {
        let monitor = ["--monitor", &self.addr, "--identity", identity];
        let words = ["agent", "--name", name, "--lend", "128MiB", "--local-socket", "none"];
        let agent = self.start(release, name, &[&words[..], &monitor].concat());
        wait_until("the node is up", || {
            let said = self.ask(self.release, &["nodes", "--json"]);
            let is_up = |row: &Value| row["name"] == name && row["state"] == "up";
            said.code() == 0 && said.json().as_array().unwrap().iter().any(is_up)
        });
        agent
    }

    fn donors(&self) -> Vec<String> {
        let name = |row: &Value| row["donor"].as_str().unwrap().to_owned();
        self.grants().iter().filter(|row| row["state"] == "committed").map(name).collect()
    }
}

/// The order of the page Upgrade: the Monitor Node, each node, then programs.
#[test]
fn program_runs_through_upgrade() {
    let test = "program_runs_through_upgrade";
    if !is_root() {
        return skipped(test, "root");
    }
    let Some(mut rack) = Rack::found(test, Release::Last) else { return };
    let addr = rack.addr.clone();
    let names = ["one", "two"];
    let identities = names.map(|name| rack.place.join(name, &addr));
    let mut agents: Vec<Daemon> = Vec::new();
    for (name, identity) in names.iter().zip(&identities) {
        agents.push(rack.start_node(Release::Last, name, identity));
    }
    let folder = rack.file("");
    let run = ["--monitor", &addr, "run", "--local", "16MiB", "--remote", "64MiB"];
    let run = [&run[..], &["--port", "udp", "--mode", "paged", "--", "python3", "-c"]].concat();
    let mut program =
        rack.start(Release::Last, "program", &[&run[..], &[PROGRAM, &folder]].concat());
    let ready = rack.place.file("ready");
    let mut expect_running = |rack: &Rack| {
        let ended = program.0.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}: {}", rack.log("program"));
    };
    wait_until("the program uses its memory", || {
        expect_running(&rack);
        exists(&ready)
    });

    rack.stop_monitor();
    rack.start_monitor(Release::This, &addr);
    wait_until("the new Monitor Node knows the grants", || !rack.donors().is_empty());
    for (at, name) in names.into_iter().enumerate() {
        rack.ask(Release::This, &["drain", name]).expect(0);
        expect_running(&rack);
        assert!(!rack.donors().contains(&name.to_owned()), "{name} is drained");
        assert_eq!(agents[at].stop(Signal::TERM), Some(0));
        agents[at] = rack.start_node(Release::This, name, &identities[at]);
        rack.ask(Release::This, &["drain", "--undo", name]).expect(0);
        expect_running(&rack);
    }
    // A program of this release beside the one of the last.
    let get = ["get", "memory=16MiB", "--", "true"];
    rack.ask(Release::This, &get).expect(0);
    fs::write(rack.place.file("stop"), "").unwrap();
    wait_until("the program has ended", || program.0.try_wait().unwrap().is_some());
    assert!(rack.log("program").contains("every byte right"), "{}", rack.log("program"));
    wait_until("all is given back", || rack.grants().is_empty());
}
