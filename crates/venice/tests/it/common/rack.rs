//! A rack of processes of the test's own: Monitor Nodes and agents that can be killed, stopped and
//! restarted one by one.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;
use venice_control::ControlError;
use venice_control::client::Access;
use venice_testkit::process::ChildGuard;
use venice_testkit::tables::Tables;

use crate::common::{Place, exists, port_of_its_own, signal, wait, wait_until};

/// Number of log lines shown of a failed process.
const LAST_WORDS: usize = 40;

/// A Monitor Node or an agent.
pub struct Member {
    pub name: String,
    /// Address to listen on; port 0 takes any.
    pub addr: String,
    words: Vec<String>,
    ready: PathBuf,
    process: Option<ChildGuard>,
}

/// Monitor Nodes with one authority, and agents that report to all of them.
pub struct Rack {
    pub place: Place,
    pub monitors: Vec<Member>,
    pub agents: Vec<Member>,
}

impl Rack {
    /// Starts Monitor Nodes with these additional arguments, and waits until they serve.
    pub fn start(monitors: usize, words: &[&str]) -> Rack {
        let mut rack = Rack { place: Place::new(), monitors: Vec::new(), agents: Vec::new() };
        for number in 0..monitors {
            let monitor = rack.monitor(number, words);
            rack.monitors.push(monitor);
            rack.monitors[number].start(&rack.place);
        }
        rack.monitors.iter().for_each(Member::wait_until_ready);
        rack
    }

    fn monitor(&self, number: usize, words: &[&str]) -> Member {
        let name = format!("monitor{number}");
        let state = self.place.file(&format!("{name}-state"));
        venice_testkit::identity::install(&state);
        let addr = format!("127.0.0.1:{}", port_of_its_own());
        let state = state.display().to_string();
        let own = ["monitor", "--listen", &addr, "--state-dir", &state];
        // This machine's programs use the first one's socket, and an agent's.
        let socket = if number == 0 { &[][..] } else { &["--local-socket", "none"] };
        let words = [&own[..], socket, words].concat();
        Member::new(&self.place, name, addr.clone(), &words)
    }

    /// Starts an agent that reports to all Monitor Nodes, and waits until it has registered.
    pub fn add_agent(&mut self, name: &str, words: &[&str]) {
        let identities = self.place.file("identities");
        fs::create_dir_all(&identities).unwrap();
        let identity = venice_testkit::identity::node(&identities, name).display().to_string();
        let (all, addr) = (self.all(), "127.0.0.1:0".to_owned());
        let own = ["agent", "--name", name, "--monitor", &all, "--identity", &identity];
        let socket = if self.agents.is_empty() { &[][..] } else { &["--local-socket", "none"] };
        let words = [&own[..], socket, words].concat();
        let mut agent = Member::new(&self.place, name.to_owned(), addr, &words);
        agent.start(&self.place);
        agent.wait_until_ready();
        self.agents.push(agent);
    }

    /// Returns the addresses of all Monitor Nodes, for callers.
    pub fn all(&self) -> String {
        let addrs: Vec<&str> = self.monitors.iter().map(|it| it.addr.as_str()).collect();
        addrs.join(",")
    }

    /// Returns an administrator's access to one of them.
    pub fn access(&self, monitor: usize) -> Access {
        venice_testkit::identity::access(&self.monitors[monitor].addr)
    }

    /// Returns the tables of one of them.
    pub async fn tables(&self, monitor: usize) -> Result<Tables, ControlError> {
        Tables::of(&self.access(monitor)).await
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for member in self.monitors.iter().chain(&self.agents) {
                let log = fs::read_to_string(self.place.file(&format!("{}.log", member.name)));
                let log = log.unwrap_or_default();
                let lines: Vec<_> = log.lines().collect();
                let last = &lines[lines.len().saturating_sub(LAST_WORDS)..];
                eprintln!("--- {}:\n{}", member.name, last.join("\n"));
            }
        }
    }
}

impl Member {
    fn new(place: &Place, name: String, addr: String, words: &[&str]) -> Member {
        let ready = place.file(&format!("{name}-ready"));
        let mut words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        words.extend(["--ready-file".to_owned(), ready.display().to_string()]);
        Member { name, addr, words, ready, process: None }
    }

    /// Starts it, without waiting until it is ready.
    pub fn start(&mut self, place: &Place) {
        assert!(self.process.is_none(), "{} runs", self.name);
        let _ = fs::remove_file(&self.ready);
        let log = place.file(&format!("{}.log", self.name));
        let log = OpenOptions::new().create(true).append(true).open(log).unwrap();
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let mut command = place.command(&words);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.process = Some(ChildGuard(command.spawn().unwrap()));
    }

    pub fn wait_until_ready(&self) {
        wait_until(&format!("{} is ready", self.name), || exists(&self.ready));
    }

    /// Returns the address of its metrics (`--metrics`).
    pub fn metrics_addr(&self) -> String {
        let ready: Value = serde_json::from_slice(&fs::read(&self.ready).unwrap()).unwrap();
        ready["metrics_addr"].as_str().expect("it has --metrics").to_owned()
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("it runs");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Stops it, like a hanging machine.
    pub fn stall(&mut self) {
        signal(self.pid(), Signal::STOP);
    }

    /// Resumes it.
    pub fn go_on(&mut self) {
        signal(self.pid(), Signal::CONT);
    }

    /// True if it was started, was not killed, and has ended.
    pub fn has_ended(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| process.try_wait().unwrap().is_some())
    }

    /// Stops it in an orderly way; returns its exit code.
    pub fn end(&mut self) -> Option<i32> {
        signal(self.pid(), Signal::TERM);
        wait(self.process.as_mut().expect("it runs"), &["daemon"]).code()
    }

    pub fn pid(&self) -> u64 {
        self.process.as_ref().expect("it runs").id().into()
    }
}
