//! Membership: registers with the rack, reports to the Monitor Nodes, and survives their absence.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};
use venice_control::client::MonitorClient;
use venice_control::{
    ControlError, DoorReport, FlowPeer, FlowReport, HeartbeatReport, NodeRegistration, Peer,
    PeerList, RackError, Registered,
};

use crate::AgentError;
use crate::deregister;
use crate::identity::NodeIdentity;
use crate::lender::Lender;
use crate::link_test::{LinkTests, Round};
use crate::observed::Observed;
use crate::ports::FramePorts;
use crate::reporter::{Answer, LoggedErrors, Outgoing, Reporter};

/// First and longest pause between two registration attempts.
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Queue length of answers from Monitor Nodes.
const ANSWERS: usize = 16;

/// One agent's membership in the rack.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) identity: NodeIdentity,
    pub(crate) registration: NodeRegistration,
    pub(crate) lender: Arc<Lender>,
    pub(crate) frames: FramePorts,
    /// Traffic of programs that use this node's memory at the last report, in megabits a second.
    pub(crate) busy_mbps: f64,
    pub(crate) observed: Arc<Observed>,
}

/// The reporting tasks: reports go out, answers come in.
struct Reporters {
    outgoing: watch::Sender<Option<Arc<Outgoing>>>,
    answers: mpsc::Receiver<(usize, Answer)>,
    reporters: JoinSet<()>,
}

impl Member {
    /// Registers and reports until dropped; returns only the error that prevents that.
    pub(crate) async fn run(&mut self) -> AgentError {
        let links = LinkTests::start();
        loop {
            self.observed.note_registered(None);
            let (client, registered) = match self.join().await {
                Ok(joined) => joined,
                Err(error) => return error,
            };
            self.report(client, registered, &links).await;
        }
    }

    /// Leaves the rack if it was in it; call it after [`Self::run`] was dropped.
    pub(crate) async fn leave(&self) {
        if let Some(node) = self.registration.previous {
            deregister::deregister(&self.identity, node, self.registration.instance).await;
        }
    }

    /// Registers, however long the Monitor Node stays away.
    async fn join(&mut self) -> Result<(MonitorClient, Registered), AgentError> {
        let mut pause = MIN_PAUSE;
        let mut logged = LoggedErrors::default();
        loop {
            let error = match self.register().await {
                Ok((client, registered)) => {
                    self.admit(&registered)?;
                    return Ok((client, registered));
                }
                Err(error) => error,
            };
            let said = error.to_string();
            if logged.is_new(&said) {
                tracing::warn!(error = said, "not registered");
            }
            self.observed.note_error(said);
            if matches!(error, ControlError::NotAdmitted { .. } | ControlError::WrongPeer { .. }) {
                self.identity.reload();
            }
            self.fail_if_hopeless(error)?;
            sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    async fn register(&self) -> Result<(MonitorClient, Registered), ControlError> {
        let mut client = MonitorClient::connect(&self.identity.access).await?;
        let registered = client.register(self.registration.clone()).await?;
        Ok((client, registered))
    }

    /// Adopts the identity assigned by the Monitor Node.
    fn admit(&mut self, registered: &Registered) -> Result<(), AgentError> {
        let identity = registered.identity;
        let (node, number) = (&self.registration.name, identity.node.0);
        tracing::info!(node, number, epoch = identity.epoch, "registered");
        self.lender.set_epoch(identity.epoch);
        self.frames.udp().serve_as(identity.node, registered.secret)?;
        self.registration.previous = Some(identity);
        self.registration.secret = registered.secret;
        Ok(())
    }

    /// Fails if the agent was never registered and is refused. A registered agent continues:
    /// recipients may use its memory.
    fn fail_if_hopeless(&self, error: ControlError) -> Result<(), AgentError> {
        if self.registration.previous.is_some() {
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

    /// Sends heartbeats to every Monitor Node until one requires a new registration. State of the
    /// rack is taken from the first Monitor Node that answers, so that they need not agree at every
    /// moment; revocations are taken from all.
    async fn report(&mut self, client: MonitorClient, registered: Registered, links: &LinkTests) {
        let period = Duration::from_millis(registered.heartbeat_interval_ms.max(1));
        self.observed.note_registered(Some(period));
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let Reporters { outgoing, mut answers, reporters } =
            self.start_reporters(client, registered);
        let count = reporters.len();
        let (mut answering, mut besides) = (vec![true; count], vec![Vec::new(); count]);
        let mut called_back = vec![Vec::new(); count];
        let lender = Arc::clone(&self.lender);
        // Freed memory is reported at once: a queued request may wait for it.
        let mut freed = std::pin::pin!(lender.freed());
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = &mut freed => {}
                Some((at, answer)) = answers.recv() => {
                    answering[at] = matches!(answer, Answer::Ack(..));
                    if answering[at] {
                        self.observed.note_acknowledged();
                    }
                    called_back[at] = match &answer {
                        Answer::Ack(ack, _) => ack.called_back.clone(),
                        Answer::None(_) | Answer::Other => Vec::new(),
                    };
                    self.lender.set_called_back(&called_back.concat());
                    match answer {
                        Answer::Ack(mut ack, near) => {
                            self.identity.note_trust(ack.trust_version);
                            let news = ack.revoked.take();
                            besides[at] = news
                                .map_or_else(Vec::new, |news| self.identity.revoked_nodes.learn(news));
                            let is_first = !answering[..at].contains(&true);
                            if is_first {
                                self.lender.set_draining(ack.is_draining);
                                self.schedule_link_tests(&near, &registered, links);
                            }
                        }
                        Answer::None(why) => self.observed.note_error(why),
                        Answer::Other => return,
                    }
                    continue;
                }
            }
            freed.set(lender.freed());
            let report = self.heartbeat(&registered, links);
            self.observed.note_report(&report);
            outgoing.send_replace(Some(Arc::new(Outgoing { report, besides: besides.clone() })));
        }
    }

    /// Starts a reporting task for each Monitor Node; they end when dropped.
    fn start_reporters(&self, client: MonitorClient, registered: Registered) -> Reporters {
        let (outgoing, newest) = watch::channel(None);
        let (sender, answers) = mpsc::channel(ANSWERS);
        let mut reporters = JoinSet::new();
        let each = self.identity.at_each();
        // With several addresses, that connection may be to any of them.
        let mut client = Some(client).filter(|_| each.len() == 1);
        for (at, identity) in each.into_iter().enumerate() {
            let reporter = Reporter {
                at,
                identity,
                registration: self.registration.clone(),
                registered,
                outgoing: newest.clone(),
                answers: sender.clone(),
            };
            reporters.spawn(reporter.run(client.take()));
        }
        Reporters { outgoing, answers, reporters }
    }

    /// Schedules link tests. In a network of relays the hop links measure themselves, except for
    /// bandwidth; elsewhere every node is tested.
    fn schedule_link_tests(&mut self, near: &PeerList, registered: &Registered, links: &LinkTests) {
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
            instance: self.registration.instance,
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
