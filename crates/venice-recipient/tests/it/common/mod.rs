//! A Monitor Node and agents in one process.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::time::Duration;

use tokio::sync::oneshot;
use venice_agent::AgentConfig;
use venice_control::client::{Access, MonitorClient};
use venice_monitor::MonitorConfig;
use venice_wire::{ByteSize, SLAB_BYTES};

const PATIENCE: Duration = Duration::from_secs(60);

/// A rack whose daemons run on threads of this process.
pub struct Rack {
    runtime: tokio::runtime::Runtime,
    pub monitor: String,
    agents: Vec<Option<oneshot::Sender<()>>>,
    dir: tempfile::TempDir,
}

impl Rack {
    /// Starts `agents` agents, `node1` on, that lend this many slabs each.
    pub fn start(agents: usize, slabs: u64) -> Rack {
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (ready, listening) = oneshot::channel();
        let on_ready = venice_monitor::OnReady::new(move |at: venice_monitor::MonitorReady| {
            let _ = ready.send(at.addr.to_string());
        });
        venice_testkit::identity::install(&dir.path().join("monitor"));
        let config = MonitorConfig {
            listen: "127.0.0.1:0".into(),
            state_dir: dir.path().join("monitor"),
            heartbeat_interval_s: 0.1,
            // On a busy machine an agent may be late many times: it is not down for that.
            missed_heartbeats: 300,
            lease_s: 20.0,
            on_ready,
            ..MonitorConfig::default()
        };
        runtime.spawn(venice_monitor::run(config, std::future::pending()));
        let monitor = within(&runtime, "a Monitor Node", listening).unwrap();
        let mut rack = Rack { runtime, monitor, agents: Vec::new(), dir };
        for index in 1..=agents {
            rack.add_agent(&format!("node{index}"), slabs);
        }
        rack
    }

    /// Returns access to the rack.
    pub fn access(&self) -> Access {
        venice_testkit::identity::access(&self.monitor)
    }

    /// Sets the available memory of a node's machine, in MiB; an agent keeps a GiB free.
    pub fn set_available(&self, name: &str, mib: u64) {
        let (dir, text) = (self.dir.path().join(name), format!("MemAvailable: {} kB\n", mib << 10));
        // A reader sees the old text or the new one.
        std::fs::write(dir.join("new"), text).unwrap();
        std::fs::rename(dir.join("new"), dir.join("meminfo")).unwrap();
    }

    /// Starts or ends the drain of a node.
    pub fn drain(&self, name: &str, drains: bool) {
        within(&self.runtime, "an answer", async {
            let mut client = MonitorClient::connect(&self.access()).await.unwrap();
            client.drain(name, !drains).await.unwrap();
        });
    }

    /// Returns the granted bytes of a node.
    pub fn granted_bytes(&self, name: &str) -> u64 {
        within(&self.runtime, "an answer", async {
            let mut client = MonitorClient::connect(&self.access()).await.unwrap();
            let rows = client.nodes().await.unwrap();
            rows.iter().find(|row| row.name == name).unwrap().granted_bytes
        })
    }

    pub fn add_agent(&mut self, name: &str, slabs: u64) {
        self.add_agent_with(name, slabs, &[]);
    }

    /// Starts an agent that lends these devices too.
    pub fn add_agent_with(&mut self, name: &str, slabs: u64, offers: &[&str]) {
        let (ready, listening) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        std::fs::create_dir(self.dir.path().join(name)).unwrap();
        self.set_available(name, 8 << 10);
        let config = AgentConfig {
            name: name.into(),
            keep_free: Some(ByteSize::mib(1024)),
            proc_dir: self.dir.path().join(name),
            monitor: self.monitor.clone(),
            identity: venice_testkit::identity::node(self.dir.path(), name),
            lend: ByteSize(slabs * SLAB_BYTES),
            offer: offers.iter().map(ToString::to_string).collect(),
            shm_socket: Some(self.dir.path().join(format!("{name}.sock"))),
            on_ready: venice_agent::OnReady::new(move |_| {
                let _ = ready.send(());
            }),
            ..AgentConfig::default()
        };
        self.runtime.spawn(venice_agent::run(config, async {
            let _ = stopped.await;
        }));
        within(&self.runtime, name, listening).unwrap();
        self.agents.push(Some(stop));
        self.wait_until_up(self.agents.len());
    }

    fn wait_until_up(&self, count: usize) {
        within(&self.runtime, "all nodes up", async {
            loop {
                if let Ok(mut client) = MonitorClient::connect(&self.access()).await
                    && let Ok(rows) = client.nodes().await
                    && rows.iter().filter(|row| row.state == "up").count() == count
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }

    /// Stops the agent with this index; it takes its memory back.
    pub fn stop(&mut self, index: usize) {
        let _ = self.agents[index].take().unwrap().send(());
    }

    /// Returns the free bytes of all nodes.
    pub fn free_bytes(&self) -> u64 {
        within(&self.runtime, "an answer", async {
            let mut client = MonitorClient::connect(&self.access()).await.unwrap();
            client.nodes().await.unwrap().iter().map(|row| row.free_bytes).sum()
        })
    }
}

fn within<T>(runtime: &tokio::runtime::Runtime, what: &str, wait: impl Future<Output = T>) -> T {
    let bounded = async { tokio::time::timeout(PATIENCE, wait).await };
    runtime.block_on(bounded).unwrap_or_else(|_| panic!("in vain: {what}"))
}

/// Polls until `found` returns true.
pub fn eventually(what: &str, found: impl FnMut() -> bool) {
    venice_testkit::wait::wait_until(what, PATIENCE, found);
}
