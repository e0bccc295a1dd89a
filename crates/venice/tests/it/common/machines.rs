//! Machines of a test, each a network namespace, with `venice` on them.

use std::fs::File;
use std::process::{Command, Stdio};

use venice_testkit::network::{Namespaces, node_address};
use venice_testkit::process::ChildGuard;

use crate::common::{Daemon, Place, Said, finish};

/// Machines on one switch.
pub struct Machines {
    pub network: Namespaces,
    pub place: Place,
}

impl Machines {
    /// Creates `count` machines; requires root.
    pub fn new(count: u16) -> Self {
        Self { network: Namespaces::new(count).unwrap(), place: Place::new() }
    }

    /// Returns the command `venice WORDS` on one of the machines.
    pub fn command(&self, machine: u16, words: &[&str]) -> Command {
        let venice = self.place.command(&[]);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.network.node(machine)]).arg(venice.get_program());
        for (key, value) in venice.get_envs() {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        command.args(words);
        command
    }

    pub fn venice(&self, machine: u16, words: &[&str]) -> Said {
        finish(self.command(machine, words), words)
    }

    pub fn start(&self, machine: u16, name: &str, words: &[&str]) -> Daemon {
        let log = File::create(self.place.file(&format!("{name}.log"))).unwrap();
        let mut command = self.command(machine, words);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Daemon(ChildGuard(command.spawn().unwrap()))
    }

    pub fn file(&self, name: &str, what: &str) -> String {
        self.place.file(&format!("{name}-{what}")).display().to_string()
    }

    /// Starts an agent `donorN` that lends 96 MiB, on a machine that joins with `token`.
    pub fn start_agent(&self, machine: u16, token: &str, monitors: &str, more: &[&str]) -> Daemon {
        let name = format!("donor{machine}");
        let identity = self.file(&name, "identity");
        let words = ["join", "--name", &name, "--identity", &identity, token];
        self.venice(machine, &words).expect(0);
        let listen = format!("{}:7471", node_address(machine));
        let words = ["agent", "--name", &name, "--lend", "96MiB", "--monitor", monitors];
        let words = [&words[..], &["--listen", &listen, "--identity", &identity]].concat();
        self.start(machine, &name, &[&words[..], more].concat())
    }
}
