//! Membership: registers with the rack, reports to the Monitor Nodes, and survives their absence.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use venice_control::client::MonitorClient;
use venice_control::{
    ControlError, DoorReport, FlowPeer, FlowReport, HeartbeatReport, Peer, PeerList, RackError,
    Registered, Revocation,
};
use venice_ports::monotonic_ns;
use venice_rack::agent_member::{AgentMember, Output, ReportCall, ReportResult};

use crate::AgentError;
use crate::deregister;
use crate::identity::NodeIdentity;
use crate::lender::Lender;
use crate::link_test::{LinkTests, Round};
use crate::observed::Observed;
use crate::ports::FramePorts;
use crate::reporter::{Answer, Call, LoggedErrors, Reporter};

/// Queue length of answers from Monitor Nodes.
const ANSWERS: usize = 16;
/// Queue length of calls to a Monitor Node: the present one, and those of earlier registrations.
const CALLS: usize = 4;

/// One agent's membership in the rack.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) identity: NodeIdentity,
    pub(crate) state: AgentMember,
    pub(crate) lender: Arc<Lender>,
    pub(crate) frames: FramePorts,
    /// Traffic of programs that use this node's memory at the last report, in megabits a second.
    pub(crate) busy_mbps: f64,
    pub(crate) observed: Arc<Observed>,
}

/// The tasks that call Monitor Nodes.
struct Calls {
    registering: JoinSet<Result<Registered, ControlError>>,
    reporters: Vec<mpsc::Sender<(ReportCall, Call)>>,
    /// Errors of registrations.
    logged: LoggedErrors,
    /// The newest report.
    report: Option<HeartbeatReport>,
    /// Revocations in force here that a Monitor Node lacks, by its index.
    besides: Vec<Vec<Revocation>>,
    links: LinkTests,
}

impl Member {
    /// Registers and reports until dropped; returns only the error that prevents that.
    pub(crate) async fn run(&mut self) -> AgentError {
        let mut tasks = JoinSet::new();
        let (sender, mut answers) = mpsc::channel(ANSWERS);
        let mut reporters = Vec::new();
        for identity in self.identity.at_each() {
            let (calls, received) = mpsc::channel(CALLS);
            reporters.push(calls);
            tasks.spawn(Reporter { identity, calls: received, answers: sender.clone() }.run());
        }
        let mut calls = Calls {
            registering: JoinSet::new(),
            besides: vec![Vec::new(); reporters.len()],
            reporters,
            logged: LoggedErrors::default(),
            report: None,
            links: LinkTests::start(),
        };
        let lender = Arc::clone(&self.lender);
        let mut changed = std::pin::pin!(lender.changed());
        let mut near = Arc::default();
        loop {
            while let Some(output) = self.state.poll_output() {
                self.perform(output, &mut calls, &near);
            }
            let due_ns = self.state.poll_timeout();
            let wait_ns = due_ns.map(|due_ns| due_ns.saturating_sub(monotonic_ns()));
            tokio::select! {
                Some(registered) = calls.registering.join_next() => {
                    let registered = registered.expect("no task panics with a registration");
                    if let Err(error) = self.handle_registered(registered, &mut calls) {
                        return error;
                    }
                }
                Some((call, answer)) = answers.recv() => {
                    if let Ok(Answer::Acknowledged(_, its)) = &answer {
                        near = Arc::clone(its);
                    }
                    self.handle_answer(call, answer, &mut calls.besides[call.at]);
                }
                () = &mut changed => {
                    changed.set(lender.changed());
                    self.state.handle_change(monotonic_ns());
                }
                () = sleep(Duration::from_nanos(wait_ns.unwrap_or(0))), if wait_ns.is_some() => {
                    self.state.handle_timeout(monotonic_ns());
                }
            }
        }
    }

    /// Leaves the rack if it was in it; call it after [`Self::run`] was dropped.
    pub(crate) async fn leave(&self) {
        if let Some(node) = self.state.identity() {
            let instance = self.state.registration().instance;
            deregister::deregister(&self.identity, node, instance).await;
        }
    }

    fn perform(&mut self, output: Output, calls: &mut Calls, near: &PeerList) {
        match output {
            Output::Register => {
                let (access, node) =
                    (self.identity.access.clone(), self.state.registration().clone());
                calls.registering.spawn(async move {
                    MonitorClient::connect(&access).await?.register(node).await
                });
            }
            Output::Write => {
                let Some(registered) = self.state.registered() else { return };
                let report = self.heartbeat(&registered, &calls.links);
                self.observed.note_report(&report);
                calls.report = Some(report);
            }
            Output::Report(call) => {
                let Some(mut report) = calls.report.clone() else { return };
                report.door.revoked_besides = calls.besides[call.at].clone();
                self.send(calls, call, Call::Report(Box::new(report)));
            }
            Output::RegisterAt(call) => {
                let node = self.state.registration().clone();
                self.send(calls, call, Call::Register(Box::new(node)));
            }
            Output::CalledBack(grants) => self.lender.set_called_back(&grants),
            Output::Follow(ack) => {
                self.lender.set_draining(ack.is_draining);
                self.schedule_link_tests(near, &calls.links);
            }
        }
    }

    /// Passes a call on. A Monitor Node that has not answered the ones before does not answer.
    fn send(&mut self, calls: &Calls, call: ReportCall, what: Call) {
        if calls.reporters[call.at].try_send((call, what)).is_err() {
            self.state.handle_report_result(monotonic_ns(), call, ReportResult::None);
        }
    }

    fn handle_registered(
        &mut self,
        registered: Result<Registered, ControlError>,
        calls: &mut Calls,
    ) -> Result<(), AgentError> {
        let registered = match registered {
            Ok(registered) => {
                self.admit(&registered)?;
                calls.logged.clear();
                calls.besides.iter_mut().for_each(Vec::clear);
                Some(registered)
            }
            Err(error) => {
                self.note_not_registered(error, &mut calls.logged)?;
                None
            }
        };
        self.state.handle_registered(monotonic_ns(), registered);
        Ok(())
    }

    fn note_not_registered(
        &self,
        error: ControlError,
        logged: &mut LoggedErrors,
    ) -> Result<(), AgentError> {
        let said = error.to_string();
        if logged.is_new(&said) {
            tracing::warn!(error = said, "not registered");
        }
        self.observed.note_error(said);
        if matches!(error, ControlError::NotAdmitted { .. } | ControlError::WrongPeer { .. }) {
            self.identity.reload();
        }
        self.fail_if_hopeless(error)
    }

    /// Adopts the identity assigned by the Monitor Node.
    fn admit(&self, registered: &Registered) -> Result<(), AgentError> {
        let identity = registered.identity;
        let (node, number) = (&self.state.registration().name, identity.node.0);
        tracing::info!(node, number, epoch = identity.epoch, "registered");
        self.lender.set_epoch(identity.epoch);
        self.frames.udp().serve_as(identity.node, registered.secret)?;
        let period = Duration::from_millis(registered.heartbeat_interval_ms.max(1));
        self.observed.note_registered(Some(period));
        Ok(())
    }

    /// Handles a Monitor Node's answer. Revocations are taken from all.
    fn handle_answer(
        &mut self,
        call: ReportCall,
        answer: Result<Answer, String>,
        besides: &mut Vec<Revocation>,
    ) {
        let now_ns = monotonic_ns();
        let result = match answer {
            Ok(Answer::Registered(registered)) => {
                self.state.handle_known_again(call, registered);
                if self.state.registered().is_none() {
                    self.observed.note_registered(None);
                }
                return;
            }
            Ok(Answer::Acknowledged(mut ack, _)) => {
                self.observed.note_acknowledged();
                self.identity.note_trust(ack.trust_version);
                let news = ack.revoked.take();
                *besides =
                    news.map_or_else(Vec::new, |news| self.identity.revoked_nodes.learn(news));
                ReportResult::Acknowledged(ack)
            }
            Ok(Answer::NotRegistered) => ReportResult::NotRegistered,
            Err(why) => {
                self.observed.note_error(why);
                ReportResult::None
            }
        };
        self.state.handle_report_result(now_ns, call, result);
    }

    /// Fails if the agent was never registered and is refused. A registered agent continues:
    /// recipients may use its memory.
    fn fail_if_hopeless(&self, error: ControlError) -> Result<(), AgentError> {
        if self.state.identity().is_some() {
            return Ok(());
        }
        match error {
            // The Monitor Node's disk is full, not this machine's: wait for it.
            ControlError::Rack(RackError::StoreFull(_)) => Ok(()),
            ControlError::Rack(RackError::NameTaken { name, control_addr }) => {
                Err(AgentError::NameTaken { name, control_addr })
            }
            ControlError::Rack(reason) => Err(AgentError::Refused {
                monitor: self.identity.access.monitor.clone(),
                source: reason,
            }),
            ControlError::BadAddress { .. }
            | ControlError::WrongPeer { .. }
            | ControlError::NotAdmitted { .. }
            | ControlError::Forbidden(_) => Err(AgentError::Control(error)),
            _ => Ok(()),
        }
    }

    /// Schedules link tests. In a network of relays the hop links measure themselves, except for
    /// bandwidth; elsewhere every node is tested.
    fn schedule_link_tests(&mut self, near: &PeerList, links: &LinkTests) {
        let Some(registered) = self.state.registered() else { return };
        let own = registered.identity.node;
        let busy_mbps = self.busy_mbps;
        let learnt = self.frames.with_relay(|relay| {
            relay.learn(own, registered.secret, near)?;
            Ok::<_, AgentError>(relay.neighbours())
        });
        let peers = near.peers.iter();
        let (peers, bandwidth_alone) = match learnt.transpose() {
            Ok(None) => (peers.cloned().collect(), false),
            Ok(Some(neighbours)) => {
                let is_neighbour = |peer: &&Peer| neighbours.contains(&peer.node);
                (peers.filter(is_neighbour).cloned().collect(), true)
            }
            Err(error) => {
                tracing::warn!(%error, "cannot apply the Monitor Node's relay state");
                return;
            }
        };
        links.test(Round { own, peers, busy_mbps, bandwidth_alone });
    }

    fn heartbeat(&mut self, registered: &Registered, links: &LinkTests) -> HeartbeatReport {
        let relayed = self.frames.with_relay(|relay| relay.traffic()).unwrap_or_default();
        let mut port = self.frames.udp().report(relayed);
        port.mapped = self.lender.mapped();
        self.busy_mbps = busy_mbps(&port.flows);
        if let Some(dropped) = self.frames.with_relay(|relay| relay.dropped()) {
            port.dropped.replayed += dropped.replayed;
            port.dropped.forged += dropped.forged;
            port.dropped.unsealed += dropped.unsealed;
            port.dropped.unknown_key += dropped.unknown_key;
        }
        for (grant, count) in self.lender.take_wrong_keys() {
            self.identity.tls.refuse_accesses(grant.0, count);
        }
        HeartbeatReport {
            identity: registered.identity,
            instance: self.state.registration().instance,
            memory: self.lender.report(),
            pressure: self.lender.pressure(),
            links: self
                .frames
                .with_relay(|relay| relay.reports(&links.bandwidths_mbps()))
                .unwrap_or_else(|| links.take()),
            port,
            door: DoorReport {
                refused: self.identity.tls.refused(),
                certificate_expires_s: self.identity.expires_s(),
                revoked_version: self.identity.tls.revoked_version(),
                revoked_besides: Vec::new(),
                trust_version: self.identity.trust_version(),
            },
            usage: self.lender.services.usage(),
            // Each Monitor Node's connection has its own version.
            peers_version: 0,
        }
    }
}

/// Returns the traffic in megabits a second, without other nodes' tests.
fn busy_mbps(flows: &[FlowReport]) -> f64 {
    let programs = flows.iter().filter(|flow| !matches!(flow.with, FlowPeer::Node(_)));
    programs.map(|flow| flow.bytes_per_s * 8.0 / 1e6).sum()
}
