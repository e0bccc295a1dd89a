//! An agent: the membership and the donor's logic of `venice-agent`, without its memory.

use venice_rack::agent_member::{AgentMember, Output, ReportCall, ReportResult};
use venice_rack::donor::{DonorAction, DonorCore, DonorSettings, Prepared};
use venice_rack::monitor::CallError;
use venice_rack::monitor_node::{Call, DonorAnswer, DonorCall};
use venice_rack::types::{
    DonorStatus, HeartbeatAck, HeartbeatReport, Identity, LinkPort, LinkProtection, LinkReport,
    LinkState, NodeRegistration, Pong, PrepareRequest, RackError, Refusal, Registered, RelayPlace,
    ResourceKind, ResourceSpec,
};
use venice_wire::{GrantId, NodeId, SLAB_BYTES};

use crate::config::Config;
use crate::messages::{Message, Purpose};

/// An effect of an agent.
#[derive(Debug)]
pub enum Effect {
    /// A message to the Monitor Node.
    Send(Message),
    /// A grant's slabs are to be wiped.
    Wipe(GrantId, u32),
}

/// A link to a neighbour, as the agent sees it.
#[derive(Clone, Copy, Debug)]
pub struct LinkView {
    /// The neighbour.
    pub to: NodeId,
    /// Bytes over it so far, in both directions.
    pub bytes: u64,
}

/// An agent's process.
#[derive(Debug)]
pub struct Agent {
    name: String,
    member: AgentMember,
    core: DonorCore,
    report: Option<Box<HeartbeatReport>>,
    /// The report that has no answer yet.
    awaited: Option<ReportCall>,
    peers_version: u64,
    /// Releases of the Monitor Node whose memory is not wiped yet.
    releases: Vec<(u64, Vec<GrantId>)>,
    /// Round trip over an idle link, in microseconds.
    link_us: f64,
    /// When links were last reported, and the bytes that they had carried.
    links_ns: u64,
    links: Vec<LinkView>,
    effects: Vec<Effect>,
}

/// Returns the name of a node, which is its address too.
pub fn name_of(node: u32) -> String {
    format!("n{node}")
}

/// Returns the node of a name.
pub fn node_of(name: &str) -> Option<u32> {
    name.strip_prefix('n')?.parse().ok()
}

/// Returns the number of a node in the rack.
pub fn number_of(node: u32) -> NodeId {
    NodeId(node + 1)
}

/// Returns what a node registers with.
pub fn registration(config: &Config, node: u32) -> NodeRegistration {
    let memory = ResourceSpec {
        kind: ResourceKind::Memory,
        address: String::new(),
        bytes: u64::from(config.hosts.slabs) * SLAB_BYTES,
        slab_bytes: SLAB_BYTES,
        capabilities: Vec::new(),
    };
    let topology = config.fabric.topology(config.nodes);
    let relay = RelayPlace { topology: topology.with_size(), position: node, addr: name_of(node) };
    NodeRegistration {
        name: name_of(node),
        instance: u64::from(node) + 1,
        pid: None,
        control_addr: name_of(node),
        udp_addr: name_of(node),
        shm_socket: String::new(),
        resources: vec![memory],
        previous: Some(Identity { node: number_of(node), epoch: 1 }),
        secret: None,
        is_plain: true,
        relay: topology.coordinates(venice_fabric::Position(node)).map(|_| relay),
        link: String::new(),
        is_pool: false,
    }
}

impl Agent {
    /// Makes an agent that is registered, and reports at once.
    pub fn new(config: &Config, node: u32, now_ns: u64) -> Self {
        let mut member = AgentMember::new(registration(config, node), 1);
        let first = member.poll_output();
        assert_eq!(first, Some(Output::Register), "an agent begins with it");
        let mut core = DonorCore::new(DonorSettings {
            total_slabs: config.hosts.slabs,
            prepare_timeout_ns: config.hosts.prepare_timeout.0 / 1000,
        });
        let identity = Identity { node: number_of(node), epoch: 1 };
        core.set_epoch(identity.epoch);
        let registered = Registered {
            identity,
            heartbeat_interval_ms: config.monitor.heartbeat_interval.0 / 1_000_000_000,
            lease_ms: config.monitor.lease.0 / 1_000_000_000,
            secret: None,
        };
        member.handle_registered(now_ns, Some(registered));
        Self {
            name: name_of(node),
            member,
            core,
            report: None,
            awaited: None,
            // That of the Monitor Node, which had each node registered once.
            peers_version: u64::from(config.nodes),
            releases: Vec::new(),
            link_us: 2.0 * config.fabric.latency.0 as f64 / 1e6,
            links_ns: now_ns,
            links: Vec::new(),
            effects: Vec::new(),
        }
    }

    /// Asks for the list of its peers again.
    #[cfg(test)]
    pub fn forget_peers(&mut self) {
        self.peers_version = 0;
    }

    /// Returns what it has to do since the last time.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Returns the time at which [`Self::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.member.poll_timeout().into_iter().chain(self.core.poll_timeout()).min()
    }

    /// True if its next report needs the state of its links.
    pub fn is_report_due(&self, now_ns: u64) -> bool {
        self.member.poll_timeout().is_some_and(|due_ns| due_ns <= now_ns)
    }

    /// Handles deadlines. `links` are its links, if a report is due.
    pub fn handle_timeout(&mut self, now_ns: u64, links: Vec<LinkView>) {
        if let Some(call) = self.awaited.filter(|call| call.until_ns <= now_ns) {
            self.awaited = None;
            self.member.handle_report_result(now_ns, call, ReportResult::None);
        }
        self.core.handle_timeout(now_ns);
        self.member.handle_timeout(now_ns);
        self.go_on(now_ns, links);
    }

    /// Handles the answer to a report.
    pub fn handle_acknowledged(
        &mut self,
        now_ns: u64,
        call: ReportCall,
        result: Result<Box<HeartbeatAck>, RackError>,
    ) {
        self.awaited = self.awaited.filter(|awaited| *awaited != call);
        let result = match result {
            Ok(mut ack) => {
                if let Some(peers) = ack.peers.take() {
                    self.peers_version = peers.version;
                }
                ReportResult::Acknowledged(ack)
            }
            Err(RackError::NotRegistered) => ReportResult::NotRegistered,
            Err(_) => ReportResult::None,
        };
        self.member.handle_report_result(now_ns, call, result);
        self.go_on(now_ns, Vec::new());
    }

    /// Handles the answer to a registration that a report called for.
    pub fn handle_registered(
        &mut self,
        now_ns: u64,
        call: ReportCall,
        registered: Option<Registered>,
    ) {
        match registered {
            Some(registered) => self.member.handle_known_again(call, registered),
            None => self.member.handle_report_result(now_ns, call, ReportResult::None),
        }
        self.go_on(now_ns, Vec::new());
    }

    /// Handles a call of the Monitor Node.
    pub fn handle_call(&mut self, now_ns: u64, number: u64, call: DonorCall) {
        let result = match call {
            DonorCall::Ping => {
                let instance = self.member.registration().instance;
                let pong = Pong { name: self.name.clone(), instance };
                Ok(DonorAnswer::Pong(pong))
            }
            DonorCall::Prepare(request) => status(self.prepare(now_ns, request)),
            DonorCall::Commit { grant, donor_epoch } => {
                status(self.core.handle_commit(now_ns, grant, donor_epoch))
            }
            DonorCall::Abort(grant) => status(Ok(self.core.handle_abort(now_ns, grant))),
            DonorCall::Release(grants) => {
                for grant in &grants {
                    self.core.handle_release(now_ns, *grant);
                }
                self.releases.push((number, grants));
                self.go_on(now_ns, Vec::new());
                return self.answer_releases();
            }
            DonorCall::PrepareTransfer(step) => {
                status(self.core.handle_prepare_transfer(now_ns, &step))
            }
            DonorCall::CommitTransfer(step) => {
                status(self.core.handle_transfer(now_ns, &step).map(|switched| switched.status()))
            }
            DonorCall::AbortTransfer { from, grant } => {
                status(Ok(self.core.handle_abort_transfer(now_ns, from, grant)))
            }
        };
        self.effects.push(Effect::Send(Message::Result(number, result)));
        self.go_on(now_ns, Vec::new());
    }

    fn prepare(&mut self, now_ns: u64, request: PrepareRequest) -> Result<DonorStatus, Refusal> {
        let at_once = request.at_once.then_some((request.grant, request.donor_epoch));
        let (Prepared::New(status) | Prepared::Repeated(status)) =
            self.core.handle_prepare(now_ns, request)?;
        match at_once {
            Some((grant, epoch)) => self.core.handle_commit(now_ns, grant, epoch),
            None => Ok(status),
        }
    }

    /// Returns the donor's grants.
    pub fn core(&mut self) -> &mut DonorCore {
        &mut self.core
    }

    /// Handles wiped slabs: they are reported at once, as a request may wait for them.
    pub fn handle_wiped(&mut self, now_ns: u64, grant: GrantId) {
        self.core.handle_freed(grant);
        self.answer_releases();
        self.member.handle_change(now_ns);
        self.go_on(now_ns, Vec::new());
    }

    fn answer_releases(&mut self) {
        let (core, effects) = (&self.core, &mut self.effects);
        self.releases.retain(|(number, grants)| {
            let is_left = grants.iter().any(|grant| core.is_freeing(*grant));
            if !is_left {
                let answer = Ok(DonorAnswer::Status(core.status()));
                effects.push(Effect::Send(Message::Result(*number, answer)));
            }
            is_left
        });
    }

    /// Performs the outputs of its logic.
    fn go_on(&mut self, now_ns: u64, links: Vec<LinkView>) {
        while let Some(DonorAction::FreeSlabs { grant, slabs, .. }) = self.core.poll_action() {
            self.effects.push(Effect::Wipe(grant, slabs));
        }
        let mut links = Some(links);
        while let Some(output) = self.member.poll_output() {
            match output {
                // It would have lost its registration, which no rack here takes away.
                Output::Register => {}
                Output::Write => {
                    let links = links.take().unwrap_or_default();
                    self.report = self.written(now_ns, links);
                }
                Output::Report(call) => {
                    let Some(report) = self.report.clone() else { continue };
                    self.awaited = Some(call);
                    self.effects.push(Effect::Send(Message::Report(call, report)));
                }
                Output::RegisterAt(call) => {
                    let call_of = Call::Register(self.member.registration().clone());
                    let message = Message::Call(Purpose::Register(call), Box::new(call_of));
                    self.effects.push(Effect::Send(message));
                }
                Output::CalledBack(grants) => self.core.handle_called_back(now_ns, &grants),
                Output::Follow(ack) => self.core.handle_draining(ack.is_draining),
            }
        }
    }

    /// Writes a report.
    pub fn written(&mut self, now_ns: u64, links: Vec<LinkView>) -> Option<Box<HeartbeatReport>> {
        let registered = self.member.registered()?;
        Some(Box::new(HeartbeatReport {
            identity: registered.identity,
            instance: self.member.registration().instance,
            memory: self.core.report(),
            links: self.tested(now_ns, links),
            port: Default::default(),
            pressure: Default::default(),
            door: Default::default(),
            usage: Vec::new(),
            peers_version: self.peers_version,
        }))
    }

    /// Returns the tests of its links, with their traffic since the last ones.
    fn tested(&mut self, now_ns: u64, links: Vec<LinkView>) -> Vec<LinkReport> {
        if links.is_empty() {
            return Vec::new();
        }
        let span_s = now_ns.saturating_sub(self.links_ns) as f64 / 1e9;
        let before = std::mem::replace(&mut self.links, links);
        self.links_ns = now_ns;
        let report = |(index, link): (usize, &LinkView)| LinkReport {
            to: link.to,
            port: LinkPort::Hop,
            state: LinkState::Up,
            latency_us: self.link_us,
            loss_ratio: 0.0,
            bandwidth_mbps: None,
            bytes_per_s: before
                .get(index)
                .filter(|_| span_s > 0.0)
                .map(|before| (link.bytes - before.bytes) as f64 / span_s),
            protection: LinkProtection::Plain,
        };
        self.links.iter().enumerate().map(report).collect()
    }
}

fn status(result: Result<DonorStatus, Refusal>) -> Result<DonorAnswer, CallError> {
    result.map(DonorAnswer::Status).map_err(CallError::Refused)
}
