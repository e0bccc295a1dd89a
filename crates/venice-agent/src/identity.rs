//! Who this node is: its certificate, its door, and the users it vouches for.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use venice_control::client::{Access, GateClient, Login};
use venice_control::identity::{Credential, Holder, Said};
use venice_control::server::{Door, Entered, LocalHandler, Visiting};
use venice_control::{Caller, ControlError, RackError};

use crate::AgentError;
use crate::turned_out::TurnedOut;

/// How often the time of day is looked at: it may jump.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Between two attempts to have a new certificate.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// A node's identity in use.
#[derive(Debug, Clone)]
pub(crate) struct NodeIdentity {
    dir: PathBuf,
    holder: Holder,
    pub(crate) access: Access,
    pub(crate) door: Arc<Door>,
    pub(crate) turned_out: TurnedOut,
}

impl NodeIdentity {
    /// Reads the certificate in `dir`, which has to be the node `name`'s.
    pub(crate) fn load(dir: &Path, name: &str, monitor: &str) -> Result<Self, AgentError> {
        let credential = Credential::load(dir)?;
        check(credential.said(), name, dir)?;
        let holder = Holder::new(credential)?;
        let access = Access::new(monitor, Login::held(holder.clone()));
        let door = Door::new(holder.clone())?;
        let turned_out = TurnedOut::load(dir.to_owned(), Arc::clone(&door))?;
        Ok(Self { dir: dir.to_owned(), holder, access, door, turned_out })
    }

    /// The same, at each of the Monitor Nodes alone.
    pub(crate) fn at_each(&self) -> Vec<Self> {
        let at = |monitor: &str| {
            let access = Access::new(monitor, self.access.login.clone());
            Self { access, ..self.clone() }
        };
        self.access.monitor.split(',').map(at).collect()
    }

    /// When its certificate ends, in seconds since 1970.
    pub(crate) fn expires_s(&self) -> u64 {
        self.holder.said().expires_s
    }

    /// Has a new certificate long before the old one ends, for ever.
    pub(crate) async fn keep(self) {
        loop {
            tokio::time::sleep(self.holder.said().renew_in().min(LOOK_EVERY)).await;
            if !self.holder.said().renew_in().is_zero() {
                continue;
            }
            if let Err(error) = self.renew().await {
                tracing::warn!(%error, "no new certificate yet; trying again");
                self.take_up();
                tokio::time::sleep(TRY_AGAIN).await;
            }
        }
    }

    /// Takes up what lies on the disk, where that is another certificate of this node than the one
    /// in use, and good at present: the machine has joined anew, or a clock was ahead.
    pub(crate) fn take_up(&self) {
        let Ok(found) = Credential::load(&self.dir) else { return };
        let said = self.holder.said();
        let is_other = found.said() != &said && found.said().caller == said.caller;
        // Another rack's needs another door: that is the next agent's.
        let is_of_this_rack = *found.authority() == self.holder.authority();
        if !is_other || !is_of_this_rack || !found.said().is_current() {
            return;
        }
        match self.holder.replace(found) {
            Ok(()) => tracing::info!(dir = %self.dir.display(), "took up the certificate there"),
            Err(error) => tracing::warn!(%error, "cannot use the certificate on the disk"),
        }
    }

    async fn renew(&self) -> Result<(), AgentError> {
        let mut gate = GateClient::connect(&self.access).await.map_err(AgentError::Control)?;
        let next = gate.renew().await.map_err(AgentError::Control)?;
        if !next.said().is_current() {
            return Err(AgentError::CertificateTime);
        }
        // On the disk first: an agent that dies here starts with it.
        next.save(&self.dir)?;
        self.holder.replace(next)?;
        tracing::info!("this node has a new certificate");
        Ok(())
    }
}

fn check(said: &Said, name: &str, dir: &Path) -> Result<(), AgentError> {
    let whose = match &said.caller {
        Caller::Node(node) if node == name && !said.is_over() => return Ok(()),
        Caller::Node(node) if node == name => {
            return Err(AgentError::Config(format!(
                "the certificate in {} has expired: join again with `venice join TOKEN` (a token \
                 comes from `venice token new` on the Monitor Node's machine), or mend this \
                 machine's clock",
                dir.display()
            )));
        }
        caller => caller,
    };
    Err(AgentError::Config(format!(
        "the certificate in {} is for {whose}, not for node {name}: start the agent with that \
         --name, or join with `venice join --name {name} TOKEN`",
        dir.display()
    )))
}

/// Vouches for this machine's users at the Monitor Node.
#[derive(Debug)]
pub(crate) struct Voucher {
    access: Access,
    gate: Mutex<Option<GateClient>>,
}

impl Voucher {
    pub(crate) fn new(identity: &NodeIdentity) -> Self {
        Self { access: identity.access.clone(), gate: Mutex::default() }
    }

    /// Has a user's key signed for, over the connection that is there or a new one. One that is not
    /// let in may have been made when a clock was wrong, or with a certificate that has ended.
    async fn certify(
        &self,
        user: (u32, String),
        request: Vec<u8>,
    ) -> Result<(Vec<u8>, Vec<u8>), ControlError> {
        let mut known = self.gate.lock().await.clone();
        if let Some(gate) = known.as_mut() {
            match gate.certify_user(user.clone(), request.clone()).await {
                Err(ControlError::NotAdmitted { .. } | ControlError::Stranger { .. }) => {
                    *self.gate.lock().await = None;
                }
                done => return done,
            }
        }
        let mut gate = GateClient::connect(&self.access).await?;
        let certified = gate.certify_user(user, request).await?;
        *self.gate.lock().await = Some(gate);
        Ok(certified)
    }
}

impl LocalHandler for Voucher {
    async fn enter(&self, visiting: Visiting, request: Vec<u8>) -> Result<Entered, RackError> {
        let said = |error: ControlError| RackError::BadRequest(error.to_string());
        let user = (visiting.uid, visiting.name);
        let (certificate, authority) = self.certify(user, request).await.map_err(said)?;
        Ok(Entered { certificate, authority, monitor: self.access.monitor.clone() })
    }
}
