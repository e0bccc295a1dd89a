//! Measures what the logic of the Monitor Node takes for each input, by the nodes of the rack: the source
//! of the defaults of `monitor.cost`.
//!
//! `cargo test --release -p venice-scale -- --ignored --nocapture logic_costs`

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use venice_rack::caller::Owner;
use venice_rack::monitor::{CallError, Token};
use venice_rack::monitor_node::{Call, DonorAnswer, DonorCall, MonitorNode, Now, Output, Written};
use venice_rack::placement::Policy;
use venice_rack::types::{Grant, Identity, Pong};
use venice_wire::GrantId;

use crate::agent::{Agent, Effect, LinkView, name_of, number_of};
use crate::config::{Config, Fabric as FabricConfig, Shape};
use crate::fabric::Fabric;
use crate::messages::Message;
use crate::monitor::logic;
use crate::recipient::request;

/// A Monitor Node's logic with agents around it, without time between them.
struct Bench {
    config: Config,
    node: MonitorNode,
    agents: Vec<Agent>,
    links: Vec<Vec<LinkView>>,
    calls: VecDeque<(Identity, DonorCall)>,
    grants: BTreeMap<u128, Vec<Grant>>,
    now_ns: u64,
    tokens: u64,
    /// True if requests ask for `spread`.
    spreads: bool,
    /// Time in the logic.
    spent: Duration,
}

impl Bench {
    fn new(config: &Config) -> Self {
        let fabric = Fabric::new(config);
        let links_of = |node: u32| {
            let view = |(_, other): (u16, u32)| LinkView { to: number_of(other), bytes: 0 };
            fabric.neighbours(node).map(view).collect()
        };
        Self {
            config: config.clone(),
            node: logic(config),
            agents: (0..config.nodes).map(|node| Agent::new(config, node, 0)).collect(),
            links: (0..config.nodes).map(links_of).collect(),
            calls: VecDeque::new(),
            grants: BTreeMap::new(),
            now_ns: 1_000_000_000,
            tokens: 0,
            spreads: false,
            spent: Duration::ZERO,
        }
    }

    fn now(&self) -> Now {
        let wall_ms = self.now_ns / 1_000_000;
        Now { clock_ns: self.now_ns, wall_ms, signed_until_ms: wall_ms }
    }

    fn perform(&mut self) {
        while let Some(output) = self.node.poll_output() {
            match output {
                Output::Write { .. } => {
                    let now = self.now();
                    self.node.handle_written(now, Written::Made { revision: 0 });
                }
                Output::Call { donor, call, .. } => self.calls.push_back((donor, call)),
                Output::Granted(request, grants) => {
                    drop(self.grants.insert(request.request.client_id, grants));
                }
                Output::Reply(..) | Output::Note(_) | Output::Revoked => {}
            }
        }
    }

    /// A node reports.
    fn report(&mut self, node: u32) {
        let links = self.links[node as usize].clone();
        let report = self.agents[node as usize].written(self.now_ns, links);
        let report = *report.expect("it is registered");
        let now = self.now();
        let started = Instant::now();
        let acknowledged = self.node.handle_report(now, &name_of(node), report);
        self.perform();
        self.spent += started.elapsed();
        acknowledged.expect("it is registered");
    }

    /// A program of a node asks.
    fn request(&mut self, number: u32, node: u32) {
        let (owner, mut request): (Owner, _) =
            request(node, number, self.config.recipients.slabs, !self.links[0].is_empty());
        request.placement = self.spreads.then_some(Policy::Spread);
        self.call(Call::Request(owner, request));
    }

    /// A program gives back what request it was granted.
    fn release(&mut self, number: u32) {
        let id = u128::from(number % self.config.nodes) << 64 | u128::from(number);
        let grants: Vec<(GrantId, _)> = self.grants[&id].iter().map(|it| (it.id, it.key)).collect();
        self.call(Call::Release(grants));
    }

    fn call(&mut self, call: Call) {
        self.tokens += 1;
        let (now, started) = (self.now(), Instant::now());
        self.node.handle_call(now, Token(self.tokens), call);
        self.perform();
        self.spent += started.elapsed();
    }

    /// A donor answers the oldest call.
    fn answer_one(&mut self) {
        let Some((donor, call)) = self.calls.pop_front() else { return };
        let result = self.answer_of(donor, &call);
        let (now, started) = (self.now(), Instant::now());
        self.node.handle_returned(now, donor, call, result);
        self.perform();
        self.spent += started.elapsed();
    }

    fn answer_of(&mut self, donor: Identity, call: &DonorCall) -> Result<DonorAnswer, CallError> {
        let node = donor.node.0 - 1;
        if matches!(call, DonorCall::Ping) {
            let pong = Pong { name: name_of(node), instance: u64::from(node) + 1 };
            return Ok(DonorAnswer::Pong(pong));
        }
        let agent = &mut self.agents[node as usize];
        agent.handle_call(self.now_ns, 0, call.clone());
        let mut answer = Err(CallError::NoAnswer);
        for effect in agent.take_effects() {
            match effect {
                Effect::Send(Message::Result(_, result)) => answer = result,
                Effect::Wipe(grant, _) => agent.handle_wiped(self.now_ns, grant),
                Effect::Send(_) => {}
            }
        }
        for effect in agent.take_effects() {
            if let Effect::Send(Message::Result(_, result)) = effect {
                answer = result;
            }
        }
        answer
    }

    /// All donors answer all calls.
    fn answer_all(&mut self) {
        while !self.calls.is_empty() {
            self.answer_one();
        }
    }

    /// The regular look for silent nodes.
    fn look(&mut self) {
        self.now_ns += self.config.monitor.heartbeat_interval.0 / 1000 / 4 + 1;
        let (now, started) = (self.now(), Instant::now());
        self.node.handle_tick(now);
        self.node.handle_timeout(now);
        self.perform();
        self.spent += started.elapsed();
    }
}

impl Bench {
    /// Does something so often, and returns the mean time in the logic in microseconds.
    fn time(&mut self, count: u32, mut step: impl FnMut(&mut Self, u32)) -> f64 {
        self.spent = Duration::ZERO;
        (0..count).for_each(|number| step(self, number));
        self.spent.as_secs_f64() * 1e6 / f64::from(count)
    }
}

fn measure(shape: Shape, nodes: u32) {
    let fabric = FabricConfig { shape, ..FabricConfig::default() };
    let mut bench = Bench::new(&Config { nodes, fabric, ..Config::default() });
    // All nodes can be reached and have reported their links, as in a rack that is up.
    for node in 0..nodes {
        bench.report(node);
        bench.answer_all();
    }
    let report = bench.time(4 * nodes, |bench, number| bench.report(number % nodes));
    // As after a restart of the Monitor Node under another version.
    for agent in &mut bench.agents {
        agent.forget_peers();
    }
    let lists = nodes.min(50);
    let list = bench.time(lists, |bench, number| bench.report(number));
    let requests = nodes.min(200);
    let request = bench.time(requests, |bench, number| bench.request(number, number));
    let result = bench.time(requests, |bench, _| bench.answer_one());
    bench.answer_all();
    let release = bench.time(requests, |bench, number| bench.release(number));
    bench.answer_all();
    // Spread looks at the path to every donor.
    bench.spreads = true;
    let first = requests;
    let spread = bench.time(requests.min(20), |bench, at| bench.request(first + at, at));
    bench.answer_all();
    let look = bench.time(8, |bench, _| bench.look());
    for node in 1..nodes {
        bench.report(node);
    }
    let death = bench.time(6, |bench, _| bench.look());
    let after = bench.time(nodes - 1, |bench, node| bench.report(node + 1));
    println!(
        "{shape:?} {nodes:7} {report:8.2} {list:8.1} {request:9.1} {spread:9.1} {result:8.2} \
         {release:8.2} {look:8.1} {death:8.1} {after:8.2}"
    );
}

#[test]
#[ignore = "prints times, for the defaults"]
fn logic_costs() {
    println!(
        "us each   nodes   report     list   request    spread   result  release     look    death    after"
    );
    for shape in [Shape::Mesh, Shape::Router] {
        for nodes in [10, 100, 1000, 3000, 10_000] {
            measure(shape, nodes);
        }
    }
}
