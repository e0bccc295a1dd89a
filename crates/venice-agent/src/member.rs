//! Membership: joining the rack, reporting to the Monitor Node, and living through its absence.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use venice_control::client::MonitorClient;
use venice_control::{
    ControlError, DoorReport, HeartbeatAck, HeartbeatReport, NodeRegistration, RackError,
    Registered, Revocation,
};

use crate::AgentError;
use crate::identity::NodeIdentity;
use crate::lender::Lender;
use crate::link_test::LinkTests;
use crate::ports::FramePorts;
use crate::relay_host::RelayHost;

/// First and longest pause between two attempts to reach the Monitor Node.
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// A heartbeat whose answer takes longer than this has failed.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(5);

/// One agent's membership in the rack.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) identity: NodeIdentity,
    pub(crate) registration: NodeRegistration,
    pub(crate) lender: Arc<Lender>,
    pub(crate) frames: FramePorts,
    /// Whom its door does not let in and the Monitor Node does not know.
    pub(crate) besides: Vec<Revocation>,
}

impl Member {
    /// Joins the rack and reports until dropped; returns only with the reason why that cannot go
    /// on.
    pub(crate) async fn run(mut self) -> AgentError {
        let links = LinkTests::start();
        loop {
            let (client, registered) = match self.join().await {
                Ok(joined) => joined,
                Err(error) => return error,
            };
            self.report(client, registered, &links).await;
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

    /// Sends heartbeats until the Monitor Node wants a new registration.
    async fn report(
        &mut self,
        mut client: MonitorClient,
        registered: Registered,
        links: &LinkTests,
    ) {
        let period = Duration::from_millis(registered.heartbeat_interval_ms.max(1));
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first comes at once.
        ticks.tick().await;
        let mut away = false;
        loop {
            // Of memory that is free again the Monitor Node hears at once: somebody may wait.
            let lender = Arc::clone(&self.lender);
            let freed = lender.freed();
            let heartbeat = self.heartbeat(&mut client, &registered, links);
            let error = match timeout(HEARTBEAT_TIMEOUT, heartbeat).await {
                Ok(Ok(ack)) => {
                    if away {
                        tracing::info!("the Monitor Node is back");
                        away = false;
                    }
                    self.take_news(ack, &registered, links).err().map(|error| error.to_string())
                }
                Ok(Err(ControlError::Rack(RackError::NotRegistered))) => return,
                // What it showed is worth nothing there, which may be the connection's: its
                // certificate is the one of when it was made.
                Ok(Err(
                    error @ (ControlError::NotAdmitted { .. } | ControlError::Stranger { .. }),
                )) => {
                    tracing::warn!(%error, "heartbeat refused; coming in anew");
                    return;
                }
                Ok(Err(error)) => Some(error.to_string()),
                Err(late) => Some(late.to_string()),
            };
            if let Some(error) = error.filter(|_| !away) {
                tracing::warn!(error, "heartbeat failed; what is lent stays lent");
                away = true;
            }
            tokio::select! {
                _ = ticks.tick() => {}
                () = freed => {}
            }
        }
    }

    /// In a network of relays the hop links measure themselves; elsewhere every node is tested.
    fn take_news(
        &mut self,
        ack: HeartbeatAck,
        registered: &Registered,
        links: &LinkTests,
    ) -> Result<(), AgentError> {
        self.lender.set_draining(ack.is_draining);
        self.lender.set_called_back(&ack.called_back);
        let news = ack.revoked.clone();
        self.besides = news.map_or_else(Vec::new, |news| self.identity.turned_out.learn(news));
        let own = registered.identity.node;
        match self.frames.with_relay(|relay| relay.learn(own, registered.secret, &ack)) {
            Some(learnt) => learnt,
            None => {
                links.test(own, ack.peers);
                Ok(())
            }
        }
    }

    async fn heartbeat(
        &mut self,
        client: &mut MonitorClient,
        registered: &Registered,
        links: &LinkTests,
    ) -> Result<HeartbeatAck, ControlError> {
        let relayed = self.frames.with_relay(|relay| relay.traffic()).unwrap_or_default();
        let mut port = self.frames.udp().report(relayed);
        port.mapped = self.lender.mapped();
        if let Some(dropped) = self.frames.with_relay(|relay| relay.dropped()) {
            port.dropped.replayed += dropped.replayed;
            port.dropped.forged += dropped.forged;
            port.dropped.unsealed += dropped.unsealed;
            port.dropped.unknown_key += dropped.unknown_key;
        }
        let report = HeartbeatReport {
            identity: registered.identity,
            instance: self.registration.instance,
            memory: self.lender.report(),
            pressure: self.lender.pressure(),
            links: self.frames.with_relay(RelayHost::reports).unwrap_or_else(|| links.take()),
            port,
            door: DoorReport {
                refused: self.identity.door.refused(),
                certificate_expires_s: self.identity.expires_s(),
                revoked_version: self.identity.door.revoked_version(),
                revoked_besides: self.besides.clone(),
            },
        };
        client.heartbeat(report).await
    }
}
