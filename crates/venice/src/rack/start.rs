//! Starts the processes that a rack lacks: all, or only those that died.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use venice_control::Caller;
use venice_control::identity::Authority;

use super::network::{INTERFACE, Network};
use super::process::{self, Identity, Lives};
use super::record::{AgentRecord, PortKind, Record};
use super::run_dir::{RunDir, remove_file};
use super::standing::{Register, Standing};
use super::{log, process::spawn};
use crate::daemon::Ready;
use crate::registry;
use venice_cli::terminal;

/// Timeout for a daemon to bind its addresses; a donor first locks and zeros the memory it lends.
const READY_PATIENCE: Duration = Duration::from_secs(60);
const REGISTERED_PATIENCE: Duration = Duration::from_secs(30);
/// Timeout for a running agent to report, for example to a Monitor Node that has just started.
const REPORT_PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(25);

/// A daemon that has not reported its addresses yet.
enum Starting {
    /// A child of this process.
    Child(Child),
    /// Started by an earlier `venice up` that was killed before it recorded the addresses.
    Earlier(Identity),
}

impl Starting {
    /// Returns how the daemon ended, if it did.
    fn end(&mut self, dir: &RunDir) -> anyhow::Result<Option<String>> {
        match self {
            Starting::Child(child) => {
                Ok(child.try_wait()?.map(|status| format!("it ended: {status}")))
            }
            Starting::Earlier(process) => {
                Ok((!process.is_alive(dir)).then(|| "it ended".to_string()))
            }
        }
    }
}

/// Starts the processes of one rack.
pub struct Starter<'a> {
    /// Its run directory.
    pub dir: &'a RunDir,
    /// Its record; completed during the start.
    pub record: &'a mut Record,
    /// True if the Monitor Node may take another port than the record's if that one is taken.
    pub any_monitor_port: bool,
    /// Its namespaces, if any.
    pub network: Option<Network>,
    /// Processes started, for `undo`.
    pub started: Vec<Identity>,
}

impl Starter<'_> {
    /// Starts every process of the record that is not running and waits until every node is
    /// registered with the Monitor Node. Returns the names of the started processes.
    pub async fn start_missing(&mut self) -> anyhow::Result<Vec<String>> {
        // Starting a process and registering a node are one step each.
        let steps = 1 + 2 * self.record.agents.len() as u64;
        let bar = terminal::progress(steps, "starting the rack");
        let result = self.start_with(&bar).await;
        bar.finish_and_clear();
        result
    }

    async fn start_with(&mut self, bar: &ProgressBar) -> anyhow::Result<Vec<String>> {
        let mut names = Vec::new();
        bar.set_message("Monitor Node");
        match self.record.monitor.process.filter(|process| process.is_alive(self.dir)) {
            None => {
                self.start_monitor().await?;
                names.push("monitor".to_string());
            }
            Some(process) if !self.record.monitor.has_port() => {
                self.wait_monitor(Starting::Earlier(process)).await?;
            }
            Some(_) => {}
        }
        bar.inc(1);
        let mut starting = Vec::new();
        for index in 0..self.record.agents.len() {
            let agent = &self.record.agents[index];
            match agent.process.filter(|process| process.is_alive(self.dir)) {
                None => {
                    names.push(agent.name.clone());
                    starting.push((index, Starting::Child(self.spawn_agent(index)?)));
                }
                Some(process) if agent.control_addr.is_empty() => {
                    starting.push((index, Starting::Earlier(process)));
                }
                Some(_) => {}
            }
        }
        for (index, process) in starting {
            let name = self.record.agents[index].name.clone();
            bar.set_message(name.clone());
            let ready = self
                .wait_ready(&name, process)
                .await
                .inspect_err(|_| log::show_tail(self.dir, &name))?;
            let agent = &mut self.record.agents[index];
            agent.control_addr = ready.control_addr.unwrap_or_default();
            agent.udp_addr = ready.udp_addr.unwrap_or_default();
            agent.relay_addr = ready.relay_addr.unwrap_or_default();
            agent.metrics_addr = ready.metrics_addr.unwrap_or_default();
            self.record.save(self.dir)?;
            bar.inc(1);
        }
        bar.set_message("waiting for the nodes to register");
        self.wait_registered(bar).await?;
        Ok(names)
    }

    fn lives(&self, process: Option<Identity>) -> bool {
        process.is_some_and(|process| process.is_alive(self.dir))
    }

    async fn start_monitor(&mut self) -> anyhow::Result<()> {
        match self.try_monitor().await {
            // The port was free a moment ago, and another process took it.
            Err(_) if self.any_monitor_port && self.monitor_port_is_taken() => {
                let ip = self.record.monitor.addr.parse::<SocketAddr>()?.ip();
                self.record.monitor.addr = SocketAddr::new(ip, 0).to_string();
                self.try_monitor().await
            }
            outcome => outcome,
        }
        .inspect_err(|_| log::show_tail(self.dir, "monitor"))
    }

    fn monitor_port_is_taken(&self) -> bool {
        let address = self.record.monitor.addr.parse::<SocketAddr>();
        address.is_ok_and(|address| TcpListener::bind(address).is_err())
    }

    /// Returns the rack's authority; the first start creates it.
    fn authority(&self) -> anyhow::Result<Authority> {
        let dir = self.dir.monitor_state_dir().join(venice_monitor::IDENTITY_DIR);
        if Authority::exists(&dir) {
            return Ok(Authority::open(&dir)?);
        }
        Ok(Authority::create(&dir)?)
    }

    /// Issues a certificate for a node, replacing an earlier one.
    fn certify(&self, name: &str) -> anyhow::Result<PathBuf> {
        let dir = self.dir.identity_dir(name);
        self.authority()?.credential(&Caller::Node(name.to_string()))?.save(&dir)?;
        Ok(dir)
    }

    /// Returns the group that may use the rack besides its owner.
    fn group(&self) -> Option<String> {
        let of_root = || {
            let group = || venice_monitor::MonitorConfig::default().socket_group;
            rustix::process::geteuid().is_root().then(group)
        };
        self.record.socket_group.clone().or_else(of_root)
    }

    fn group_arguments(&self) -> impl Iterator<Item = String> {
        let given = self.record.socket_group.clone();
        given.into_iter().flat_map(|group| ["--socket-group".to_string(), group])
    }

    async fn try_monitor(&mut self) -> anyhow::Result<()> {
        self.dir.create_process_dir("monitor")?;
        if let Some(group) = self.group() {
            self.dir.admit(&group)?;
        }
        self.authority()?;
        let mut arguments = vec![
            "monitor".to_string(),
            "--listen".to_string(),
            self.record.monitor.addr.clone(),
            "--state-dir".to_string(),
            self.dir.monitor_state_dir().display().to_string(),
            "--local-socket".to_string(),
            self.dir.monitor_socket_path().display().to_string(),
        ];
        arguments.extend(self.group_arguments());
        if self.record.plain {
            arguments.push("--plain".to_string());
        }
        if let Some(placement) = self.record.placement {
            arguments.extend(["--placement".to_string(), placement.to_string()]);
        }
        if self.record.metrics {
            let ip = self.record.monitor.addr.parse::<SocketAddr>()?.ip();
            let listen = self.again_or_any(ip, &self.record.monitor.metrics_addr);
            arguments.extend(["--metrics".to_string(), listen]);
        }
        arguments.extend(self.record.monitor.settings.arguments());
        let child = self.launch("monitor", &arguments)?;
        self.record.monitor.process = Identity::of(child.id());
        self.record.save(self.dir)?;
        self.wait_monitor(Starting::Child(child)).await
    }

    /// Records the Monitor Node's address once it has one.
    async fn wait_monitor(&mut self, process: Starting) -> anyhow::Result<()> {
        let ready = self.wait_ready("monitor", process).await?;
        self.record.monitor.addr = ready.addr.context("the Monitor Node gave no address")?;
        self.record.monitor.metrics_addr = ready.metrics_addr.unwrap_or_default();
        self.record.save(self.dir)
    }

    fn spawn_agent(&mut self, index: usize) -> anyhow::Result<Child> {
        let mut namespace_flags = Vec::new();
        let mut ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        if let Some(network) = &self.network {
            let (namespace, address) = network.ensure_node(index)?;
            namespace_flags = vec!["--enter-netns".to_string(), namespace.clone()];
            ip = IpAddr::V4(address);
            self.record.agents[index].netns = Some(namespace);
        }
        let agent = &self.record.agents[index];
        self.dir.create_process_dir(&agent.name)?;
        if let Some(group) = self.group() {
            self.dir.admit_to_process(&agent.name, &group)?;
        }
        let socket = self.dir.shm_socket_path(&agent.name);
        // Users of this machine page, and run programs on swap, by the first node's agent.
        let of_first = |path: PathBuf| match index {
            0 => path.display().to_string(),
            _ => "none".to_string(),
        };
        remove_file(&socket)?;
        let mut arguments: Vec<String> = [
            ("--name", agent.name.clone()),
            ("--monitor", self.record.monitor.addr.clone()),
            ("--listen", self.again_or_any(ip, &agent.control_addr)),
            ("--udp-listen", self.again_or_any_udp(ip, &agent.udp_addr)),
            ("--shm-socket", socket.display().to_string()),
            ("--identity", self.certify(&agent.name)?.display().to_string()),
            ("--local-socket", "none".to_string()),
            ("--helper-socket", of_first(self.dir.helper_socket_path())),
            ("--swap-helper-socket", of_first(self.dir.swap_helper_socket_path())),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_string(), value])
        .chain(self.group_arguments())
        .collect();
        if agent.is_router() {
            arguments.insert(0, "router".to_string());
        } else {
            arguments.insert(0, "agent".to_string());
            if agent.lend_dax.is_empty() {
                arguments.extend(["--lend".to_string(), agent.lend_bytes.to_string()]);
            }
            for device in &agent.lend_dax {
                arguments.extend(["--lend-dax".to_string(), device.clone()]);
            }
            if agent.pool {
                arguments.push("--pool".to_string());
            }
            for offer in &agent.offer {
                arguments.extend(["--offer".to_string(), offer.clone()]);
            }
            let hosts = self.dir.hosts_dir(&agent.name).display().to_string();
            arguments.extend(["--hosts-dir".to_string(), hosts]);
            let builds = self.dir.builds_dir(&agent.name).display().to_string();
            arguments.extend(["--build-cache-dir".to_string(), builds]);
            if let Some(size) = self.record.build_cache {
                arguments.extend(["--build-cache".to_string(), size.0.to_string()]);
            }
        }
        if let Some(link) = &self.record.link {
            arguments.extend(["--link".to_string(), link.to_string()]);
        }
        if let Some(topology) = &self.record.topology {
            arguments.extend(["--topology".to_string(), topology.clone()]);
            arguments.extend(["--position".to_string(), index.to_string()]);
            let listen = self.again_or_any_udp(ip, &agent.relay_addr);
            arguments.extend(["--relay-listen".to_string(), listen]);
            if self.record.source_routes {
                arguments.push("--source-routes".to_string());
            }
        }
        arguments.extend(namespace_flags);
        if self.record.metrics {
            let listen = self.again_or_any(ip, &agent.metrics_addr);
            arguments.extend(["--metrics".to_string(), listen]);
        }
        if self.record.plain {
            arguments.push("--plain".to_string());
        }
        if self.record.xdp {
            arguments.extend(["--xdp".to_string(), INTERFACE.to_string()]);
        }
        if self.record.port == PortKind::Verbs {
            arguments.extend(["--verbs".to_string(), "auto".to_string()]);
        }
        let name = agent.name.clone();
        let child = self.launch(&name, &arguments)?;
        self.record.agents[index].process = Identity::of(child.id());
        self.record.save(self.dir)?;
        Ok(child)
    }

    /// Returns the address that a dead daemon had, if it is still free, else any port. In a
    /// namespace of its own no other process can have taken it.
    fn again_or_any(&self, ip: IpAddr, before: &str) -> String {
        let free = |addr: SocketAddr| self.network.is_some() || TcpListener::bind(addr).is_ok();
        before.parse().ok().filter(|a| free(*a)).unwrap_or(SocketAddr::new(ip, 0)).to_string()
    }

    fn again_or_any_udp(&self, ip: IpAddr, before: &str) -> String {
        let free = |addr: SocketAddr| self.network.is_some() || UdpSocket::bind(addr).is_ok();
        before.parse().ok().filter(|a| free(*a)).unwrap_or(SocketAddr::new(ip, 0)).to_string()
    }

    fn launch(&mut self, name: &str, arguments: &[String]) -> anyhow::Result<Child> {
        let ready = self.dir.ready_path(name);
        remove_file(&ready)?;
        let mut arguments = arguments.to_vec();
        arguments.extend([
            "--detach".to_string(),
            "--ready-file".to_string(),
            ready.display().to_string(),
        ]);
        let child = spawn(self.dir, name, &arguments)?;
        self.started.extend(Identity::of(child.id()));
        Ok(child)
    }

    async fn wait_ready(&self, name: &str, mut process: Starting) -> anyhow::Result<Ready> {
        let path = self.dir.ready_path(name);
        let deadline = Instant::now() + READY_PATIENCE;
        loop {
            if let Ok(text) = fs::read_to_string(&path) {
                return serde_json::from_str(&text)
                    .with_context(|| format!("reading {}", path.display()));
            }
            if let Some(how) = process.end(self.dir)? {
                let why = log::last_error(self.dir, name).unwrap_or(how);
                bail!("{name} did not start: {why}");
            }
            if Instant::now() > deadline {
                bail!(
                    "{name} was not ready within {} s: see its log {}, or run `venice down` and \
                     `venice up`",
                    READY_PATIENCE.as_secs(),
                    self.dir.log_path(name).display()
                );
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn wait_registered(&self, bar: &ProgressBar) -> anyhow::Result<()> {
        let begin = Instant::now();
        loop {
            let missing = self.unregistered().await?;
            let registered = self.record.agents.len() - missing.len();
            bar.set_position((1 + self.record.agents.len() + registered) as u64);
            let advice = |(agent, standing): &(&AgentRecord, Standing)| {
                let pid = agent.process.map_or(0, |process| process.pid);
                standing.advice(self.dir, &agent.name, pid)
            };
            // The rack works without nodes that were revoked.
            let (revoked, missing): (Vec<_>, Vec<_>) =
                missing.into_iter().partition(|(_, standing)| *standing == Standing::Revoked);
            let Some((first, _)) = missing.first() else {
                revoked.iter().filter_map(advice).for_each(terminal::remark);
                return Ok(());
            };
            if let Some(dead) = self.record.agents.iter().find(|a| !self.lives(a.process)) {
                log::show_tail(self.dir, &dead.name);
                let why = log::last_error(self.dir, &dead.name);
                bail!("{} ended: {}", dead.name, why.unwrap_or_else(|| "see its log".into()));
            }
            if begin.elapsed() >= REPORT_PATIENCE
                && let Some(advice) = missing.iter().find_map(advice)
            {
                bail!(advice);
            }
            if begin.elapsed() > REGISTERED_PATIENCE {
                terminal::remark(log::tail(self.dir, &first.name));
                let names: Vec<_> = missing.iter().map(|(agent, _)| &*agent.name).collect();
                bail!(
                    "{} did not register with the Monitor Node within {} s: see its log {}",
                    names.join(", "),
                    REGISTERED_PATIENCE.as_secs(),
                    self.dir.log_path(&first.name).display()
                );
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Returns the nodes whose present process is not up according to the Monitor Node.
    async fn unregistered(&self) -> anyhow::Result<Vec<(&AgentRecord, Standing)>> {
        let addr = &self.record.monitor.addr;
        let rows = registry::connect(addr).await?.nodes().await?;
        let revoked = match rows.iter().all(|row| row.state == "up") {
            true => Vec::new(),
            false => registry::gate(addr).await?.show().await.map_err(registry::told)?.revoked,
        };
        let register = Register::new(rows, revoked);
        let standing = |agent: &AgentRecord| {
            let process = agent.process?;
            Some(register.standing(self.dir, agent, process))
        };
        let agents = self.record.agents.iter();
        let agents = agents.map(|it| (it, standing(it).unwrap_or(Standing::Starting)));
        Ok(agents.filter(|(_, standing)| *standing != Standing::Up).collect())
    }

    /// Stops all processes started.
    pub fn undo(&self) -> anyhow::Result<()> {
        process::stop_all(&self.started, self.dir).map(drop)
    }
}
