//! Membership: joining the rack, reporting to the Monitor Node, and living through its absence.

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
use crate::correspondent::{Answer, Correspondent, Letter};
use crate::farewell;
use crate::identity::NodeIdentity;
use crate::lender::Lender;
use crate::link_test::{LinkTests, Round};
use crate::ports::FramePorts;

/// First and longest pause between two attempts to reach the Monitor Node.
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Answers of Monitor Nodes that wait to be looked at.
const ANSWERS: usize = 16;

/// One agent's membership in the rack.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) identity: NodeIdentity,
    pub(crate) registration: NodeRegistration,
    pub(crate) lender: Arc<Lender>,
    pub(crate) frames: FramePorts,
    /// What the programs that use this node's memory moved when it last reported, in megabits a second.
    pub(crate) busy_mbps: f64,
}

/// Reports go out to the Monitor Nodes, and answers come.
struct Post {
    letters: watch::Sender<Option<Arc<Letter>>>,
    answers: mpsc::Receiver<(usize, Answer)>,
    correspondents: JoinSet<()>,
}

impl Member {
    /// Joins the rack and reports until dropped; returns only with the reason why that cannot go
    /// on.
    pub(crate) async fn run(&mut self) -> AgentError {
        let links = LinkTests::start();
        loop {
            let (client, registered) = match self.join().await {
                Ok(joined) => joined,
                Err(error) => return error,
            };
            self.report(client, registered, &links).await;
        }
    }

    /// Leaves the rack, if it ever was in it; to be called when [`Self::run`] was dropped.
    pub(crate) async fn leave(&self) {
        if let Some(node) = self.registration.previous {
            farewell::say(&self.identity, node, self.registration.instance).await;
        }
    }

    /// Registers, however long the Monitor Node stays away.
    async fn join(&mut self) -> Result<(MonitorClient, Registered), AgentError> {
        let mut pause = MIN_PAUSE;
        let mut told = false;
        loop {
            let error = match self.register().await {
                Ok((client, registered)) => {
                    self.admit(&registered)?;
                    return Ok((client, registered));
                }
                Err(error) => error,
            };
            if !told {
                tracing::warn!(%error, "not in the rack");
                told = true;
            }
            if matches!(error, ControlError::NotAdmitted { .. } | ControlError::Stranger { .. }) {
                self.identity.take_up();
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

    /// Takes on the identity the Monitor Node gave.
    fn admit(&mut self, registered: &Registered) -> Result<(), AgentError> {
        let identity = registered.identity;
        tracing::info!(node = %identity.node, epoch = identity.epoch, "in the rack");
        self.lender.set_epoch(identity.epoch);
        self.frames.udp().serve_as(identity.node, registered.secret)?;
        self.registration.previous = Some(identity);
        self.registration.secret = registered.secret;
        Ok(())
    }

    /// An agent that never was in the rack gives up when it is told no. One that was goes on: it
    /// may hold memory that recipients use.
    fn fail_if_hopeless(&self, error: ControlError) -> Result<(), AgentError> {
        if self.registration.previous.is_some() {
            return Ok(());
        }
        match error {
            // Of its machine, not of this one: it is waited for.
            ControlError::Rack(RackError::StoreFull(_)) => Ok(()),
            ControlError::Rack(RackError::NameTaken { name, control_addr }) => {
                Err(AgentError::NameTaken { name, control_addr })
            }
            ControlError::Rack(reason) => Err(AgentError::Refused {
                monitor: self.identity.access.monitor.clone(),
                source: reason,
            }),
            ControlError::BadAddress { .. }
            | ControlError::Stranger { .. }
            | ControlError::NotAdmitted { .. }
            | ControlError::Forbidden(_) => Err(AgentError::Control(error)),
            _ => Ok(()),
        }
    }

    /// Sends heartbeats to every Monitor Node, until one of them wants a new registration. What they
    /// say of the rack is taken from the first of them that answers, so that they need not be of one mind
    /// at every moment; whom they have turned out, from all.
    async fn report(&mut self, client: MonitorClient, registered: Registered, links: &LinkTests) {
        let period = Duration::from_millis(registered.heartbeat_interval_ms.max(1));
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let Post { letters, mut answers, correspondents } = self.correspond(client, registered);
        let count = correspondents.len();
        let (mut answering, mut besides) = (vec![true; count], vec![Vec::new(); count]);
        let mut called_back = vec![Vec::new(); count];
        let lender = Arc::clone(&self.lender);
        // Of memory that is free again the Monitor Nodes hear at once: somebody may wait.
        let mut freed = std::pin::pin!(lender.freed());
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = &mut freed => {}
                Some((at, answer)) = answers.recv() => {
                    answering[at] = matches!(answer, Answer::Ack(..));
                    called_back[at] = match &answer {
                        Answer::Ack(ack, _) => ack.called_back.clone(),
                        Answer::None | Answer::Other => Vec::new(),
                    };
                    self.lender.set_called_back(&called_back.concat());
                    match answer {
                        Answer::Ack(mut ack, near) => {
                            let news = ack.revoked.take();
                            besides[at] = news
                                .map_or_else(Vec::new, |news| self.identity.turned_out.learn(news));
                            let is_first = !answering[..at].contains(&true);
                            if is_first {
                                self.lender.set_draining(ack.is_draining);
                                self.look_around(&near, &registered, links);
                            }
                        }
                        Answer::None => {}
                        Answer::Other => return,
                    }
                    continue;
                }
            }
            freed.set(lender.freed());
            let report = self.heartbeat(&registered, links);
            letters.send_replace(Some(Arc::new(Letter { report, besides: besides.clone() })));
        }
    }

    /// Somebody for each Monitor Node, until all are dropped.
    fn correspond(&self, client: MonitorClient, registered: Registered) -> Post {
        let (letters, newest) = watch::channel(None);
        let (sender, answers) = mpsc::channel(ANSWERS);
        let mut correspondents = JoinSet::new();
        let each = self.identity.at_each();
        // With several it is not known which of them that connection is to.
        let mut client = Some(client).filter(|_| each.len() == 1);
        for (at, identity) in each.into_iter().enumerate() {
            let correspondent = Correspondent {
                at,
                identity,
                registration: self.registration.clone(),
                registered,
                letters: newest.clone(),
                answers: sender.clone(),
            };
            correspondents.spawn(correspondent.run(client.take()));
        }
        Post { letters, answers, correspondents }
    }

    /// In a network of relays the hop links measure themselves, but for how much they carry; elsewhere
    /// every node is tested.
    fn look_around(&mut self, near: &PeerList, registered: &Registered, links: &LinkTests) {
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
                tracing::warn!(%error, "cannot do as the Monitor Node says");
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
            self.identity.door.refuse_accesses(grant.0, count);
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
                refused: self.identity.door.refused(),
                certificate_expires_s: self.identity.expires_s(),
                revoked_version: self.identity.door.revoked_version(),
                revoked_besides: Vec::new(),
            },
            // Each Monitor Node has its own.
            peers_version: 0,
        }
    }
}

/// What is not other nodes' tests.
fn busy_mbps(flows: &[FlowReport]) -> f64 {
    let programs = flows.iter().filter(|flow| !matches!(flow.with, FlowPeer::Node(_)));
    programs.map(|flow| flow.bytes_per_s * 8.0 / 1e6).sum()
}
