//! Runs a scenario: the parent of all processes, with the Monitor Node's part and the faults.

mod faults;
mod grants;
mod node;
mod report;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use venice_ports::monotonic_ns;
use venice_sim::checkers::Checker;
use venice_sim::rack::Sabotage;
use venice_sim::scenario::Scenario;

use self::faults::Faults;
use self::grants::Grants;
use self::node::Node;
pub use self::report::Outcome;
use crate::racks::judge::{Judgement, PATIENCE_NS, judge};
use crate::racks::notes::{Note, Notebook, Role, Source, What, read};
use crate::racks::orders::{Order, Reply};
use crate::racks::plan::{Plan, Port};
use crate::racks::process::{Process, Said};
use venice_testkit::network::Namespaces;

/// Arguments of a run.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// The scenario ([`crate::racks::fit`]).
    pub scenario: Scenario,
    /// The port.
    pub port: Port,
    /// This crate's binary, which all processes execute.
    pub program: &'a Path,
    /// Bug to inject.
    pub sabotage: Option<Sabotage>,
    /// Checkers to ignore.
    pub ignored: &'a [Checker],
}

/// Runs it to its end.
///
/// # Errors
/// When processes or namespaces cannot be made, or a process ends early.
pub fn run(run: &Run<'_>) -> Result<Outcome> {
    let began_ns = monotonic_ns();
    let folder = tempfile::Builder::new().prefix("venice-rack-").tempdir()?;
    let mut rack = Rack::start(run, folder.path().to_path_buf())?;
    rack.play()?;
    let judgement = rack.judge(true)?;
    drop(rack);
    let took_ns = monotonic_ns() - began_ns;
    let outcome = Outcome::new(run, judgement, took_ns);
    if outcome.is_ok() {
        return Ok(outcome);
    }
    // The notes show the cause.
    Ok(Outcome { notes: Some(folder.keep()), ..outcome })
}

/// Sender of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    /// The forwarder or the external router.
    Network,
    Process(Source),
}

/// A running rack. Processes end before their namespaces.
struct Rack<'a> {
    run: &'a Run<'a>,
    plan: Plan,
    notebook: Notebook,
    began_ns: u64,
    nodes: Vec<Node>,
    /// All processes so far.
    sources: Vec<Source>,
    grants: Grants,
    faults: Faults,
    forwarder: Option<Process>,
    router: Option<Process>,
    replies: Receiver<Said<Name>>,
    to_replies: Sender<Said<Name>>,
    namespaces: Option<Namespaces>,
}

/// The parent's own notes.
const RACK: Source = Source { role: Role::Rack, node: 0, life: 0 };
/// Longest sleep.
const NAP: Duration = Duration::from_millis(5);

impl<'a> Rack<'a> {
    fn start(run: &'a Run<'a>, folder: PathBuf) -> Result<Self> {
        run.scenario.check()?;
        let plan = Plan { scenario: run.scenario.clone(), port: run.port, folder };
        plan.write()?;
        let (nodes, places) = (plan.scenario.nodes, plan.places());
        ensure!(run.port == Port::Udp || places == nodes, "nodes relay only over udp");
        let namespaces = run.port.is_datagrams().then(|| Namespaces::new(places)).transpose()?;
        let (to_replies, replies) = channel();
        let mut rack = Self {
            run,
            notebook: Notebook::create(&plan.folder, RACK)?,
            began_ns: 0,
            nodes: (0..nodes).map(|_| Node::new(plan.scenario.workload.accesses)).collect(),
            sources: vec![RACK],
            grants: Grants::new(plan.scenario.seed),
            faults: Faults::of(&plan.scenario),
            forwarder: None,
            router: None,
            replies,
            to_replies,
            namespaces,
            plan,
        };
        rack.start_network()?;
        for node in 0..nodes {
            rack.start_donor(node)?;
        }
        rack.wait_until("every donor is ready", |rack| {
            rack.nodes.iter().all(|node| node.is_lending)
        })?;
        for node in 0..nodes {
            rack.start_program(node)?;
        }
        // Earlier faults would find no program.
        rack.wait_until("every program was given memory", Self::has_given_all)?;
        rack.began_ns = monotonic_ns();
        Ok(rack)
    }

    /// Runs from the first access until, after the last fault, all is quiet.
    fn play(&mut self) -> Result<()> {
        let calm = |rack: &Self| rack.faults.are_over() && rack.nodes.iter().all(Node::is_content);
        let is_done =
            self.wait_until("every access is over and every node has its memory", calm)?;
        if !is_done {
            return Ok(());
        }
        self.nodes.iter_mut().for_each(|node| node.order_program(Order::Probe));
        let probed = |rack: &Self| rack.nodes.iter().all(|node| node.is_probed);
        if !self.wait_until("every region was read once more", probed)? || !self.settle()? {
            return Ok(());
        }
        // Long enough for any late datagram to arrive.
        let late_ns = 2 * self.plan.scenario.longest_jitter_ns() + 20_000_000;
        std::thread::sleep(Duration::from_nanos(late_ns));
        for node in &mut self.nodes {
            node.order_program(Order::Report);
            node.order_donor(Order::Report);
        }
        self.wait_until("all is noted", |rack| rack.nodes.iter().all(|node| node.reports == 2))?;
        Ok(())
    }

    /// Waits until every pending message and byte has come.
    fn settle(&mut self) -> Result<bool> {
        let give_up_ns = monotonic_ns() + PATIENCE_NS;
        loop {
            let oracle = self.judge(false)?.oracle;
            if oracle.findings.any() {
                return Ok(false);
            }
            let settled = oracle.conversations.check_settled();
            let Err(what) = settled.and_then(|()| oracle.streams.check_settled()) else {
                return Ok(true);
            };
            if monotonic_ns() > give_up_ns {
                self.notebook.note(What::Stuck { why: what });
                return Ok(false);
            }
            self.listen(Duration::from_millis(50))?;
        }
    }

    fn judge(&self, is_over: bool) -> Result<Judgement> {
        let mut notes: Vec<(Source, Note)> = Vec::new();
        for &source in &self.sources {
            let read = read(&self.plan.folder, source)?;
            notes.extend(read.into_iter().map(|note| (source, note)));
        }
        Ok(judge(&self.plan.scenario, self.plan.port, notes, self.run.ignored, is_over))
    }

    /// Runs until the condition holds; returns false after a timeout.
    fn wait_until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> Result<bool> {
        let began_ns = monotonic_ns();
        while !is_so(self) {
            self.listen(NAP)?;
            if self.began_ns > 0 {
                self.do_faults()?;
            }
            self.give_grants();
            let calm_ns = began_ns.max(self.began_ns + self.plan.scenario.calm_ns());
            if monotonic_ns() > calm_ns + PATIENCE_NS {
                let waiting = self.nodes.iter().enumerate().filter(|(_, node)| !node.is_content());
                let waiting: Vec<_> =
                    waiting.map(|(n, node)| format!("node {n}: {node:?}")).collect();
                let why = format!("timeout before {what}: {}", waiting.join("; "));
                self.notebook.note(What::Stuck { why });
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Handles the processes' replies for a while.
    fn listen(&mut self, nap: Duration) -> Result<()> {
        let mut said = match self.replies.recv_timeout(nap) {
            Ok(said) => Some(said),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => unreachable!("this process holds one end"),
        };
        while let Some((name, reply)) = said {
            self.hear(name, reply)?;
            said = self.replies.try_recv().ok();
        }
        Ok(())
    }

    fn hear(&mut self, name: Name, reply: Option<Reply>) -> Result<()> {
        let Name::Process(source) = name else {
            return if reply.is_some() { Ok(()) } else { bail!("the network has ended") };
        };
        let node = &mut self.nodes[usize::from(source.node)];
        let (life, process) = match source.role {
            Role::Donor => (node.donor_life, &node.donor),
            _ => (node.program_life, &node.program),
        };
        if life != source.life || process.is_none() {
            // The reply is of an earlier life.
            return Ok(());
        }
        match (reply, source.role) {
            (None, _) => bail!("{source:?} has ended early: {}", self.plan.folder.display()),
            (Some(Reply::Ready), Role::Donor) => node.is_lending = true,
            (Some(Reply::Lent { grant }), _) => self.grants.lent(grant),
            (Some(Reply::Want { session }), _) => node.wants.push(session),
            (Some(Reply::Content { is_so }), _) => node.says_content = is_so,
            (Some(Reply::Probed), _) => node.is_probed = true,
            (Some(Reply::Reported), _) => node.reports += 1,
            (Some(Reply::Ready), _) => {}
        }
        Ok(())
    }

    fn start_network(&mut self) -> Result<()> {
        let Some(namespaces) = &self.namespaces else { return Ok(()) };
        let (nodes, places) = (self.plan.scenario.nodes, self.plan.places());
        let (hub, router) = (namespaces.hub(), namespaces.node(nodes));
        self.forwarder = Some(self.start_in("forwarder", &hub)?);
        if places > nodes {
            self.router = Some(self.start_in("router", &router)?);
        }
        Ok(())
    }

    /// Starts a process of the network, and waits until it works.
    fn start_in(&self, role: &str, namespace: &str) -> Result<Process> {
        let (program, replies) = (self.run.program, self.to_replies.clone());
        let (arguments, name) = (self.arguments(role), Name::Network);
        let process = Process::start(program, &arguments, Some(namespace), name, replies)?;
        let ready = self.replies.recv_timeout(Duration::from_secs(60));
        match ready.with_context(|| format!("the {role} does not reply"))? {
            (_, Some(Reply::Ready)) => Ok(process),
            said => bail!("the {role} cannot start: {said:?}"),
        }
    }

    fn start_donor(&mut self, node: u16) -> Result<()> {
        let life = self.nodes[usize::from(node)].donor_life;
        let source = Source { role: Role::Donor, node, life };
        let process = self.start_process(source, self.arguments("donor"))?;
        self.nodes[usize::from(node)].donor = Some(process);
        Ok(())
    }

    fn start_program(&mut self, node: u16) -> Result<()> {
        let Node { program_life: life, accesses, .. } = self.nodes[usize::from(node)];
        let source = Source { role: Role::Program, node, life };
        let mut arguments = self.arguments("program");
        arguments.extend(["--accesses".into(), accesses.to_string()]);
        let process = self.start_process(source, arguments)?;
        self.nodes[usize::from(node)].program = Some(process);
        Ok(())
    }

    fn start_process(&mut self, source: Source, mut arguments: Vec<String>) -> Result<Process> {
        let Source { node, life, .. } = source;
        arguments.extend(["--node".into(), node.to_string(), "--life".into(), life.to_string()]);
        if let Some(sabotage) = self.run.sabotage {
            arguments.extend(["--sabotage".into(), sabotage.name().into()]);
        }
        // Its notes are read even if it dies before the first one.
        Notebook::create(&self.plan.folder, source)?;
        self.sources.push(source);
        let namespace = self.namespaces.as_ref().map(|namespaces| namespaces.node(node));
        let (program, replies) = (self.run.program, self.to_replies.clone());
        Process::start(program, &arguments, namespace.as_deref(), Name::Process(source), replies)
    }

    fn arguments(&self, role: &str) -> Vec<String> {
        let folder = self.plan.folder.display().to_string();
        vec![role.into(), "--folder".into(), folder, "--port".into(), self.plan.port.name().into()]
    }
}
