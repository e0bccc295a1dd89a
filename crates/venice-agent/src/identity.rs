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

/// How often the time of day is looked at: it may jump.
const LOOK_EVERY: Duration = Duration::from_secs(3600);
/// Between two attempts to have a new certificate.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// A node's identity in use.
#[derive(Debug, Clone)]
pub(crate) struct NodeIdentity {
    dir: PathBuf,
    holder: Holder,
    pub(crate) access: Access,
    pub(crate) door: Arc<Door>,
}

impl NodeIdentity {
    /// Reads the certificate in `dir`, which has to be the node `name`'s.
    pub(crate) fn load(dir: &Path, name: &str, monitor: &str) -> Result<Self, AgentError> {
        let credential = Credential::load(dir)?;
        check(credential.said(), name, dir)?;
        let holder = Holder::new(credential)?;
        let access = Access::new(monitor, Login::held(holder.clone()));
        let door = Door::new(holder.clone())?;
        Ok(Self { dir: dir.to_owned(), holder, access, door })
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
                tokio::time::sleep(TRY_AGAIN).await;
            }
        }
    }

    async fn renew(&self) -> Result<(), AgentError> {
        let mut gate = GateClient::connect(&self.access).await.map_err(AgentError::Control)?;
        let next = gate.renew().await.map_err(AgentError::Control)?;
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

    async fn gate(&self) -> Result<GateClient, ControlError> {
        let mut gate = self.gate.lock().await;
        if gate.is_none() {
            *gate = Some(GateClient::connect(&self.access).await?);
        }
        Ok(gate.clone().expect("connected just now"))
    }
}

impl LocalHandler for Voucher {
    async fn enter(&self, visiting: Visiting, request: Vec<u8>) -> Result<Entered, RackError> {
        let said = |error: ControlError| RackError::BadRequest(error.to_string());
        let mut gate = self.gate().await.map_err(said)?;
        let user = (visiting.uid, visiting.name);
        let (certificate, authority) = gate.certify_user(user, request).await.map_err(said)?;
        Ok(Entered { certificate, authority, monitor: self.access.monitor.clone() })
    }
}
