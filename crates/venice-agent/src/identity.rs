//! Identity of this node: its certificate, its TLS server, and the users it vouches for.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use venice_control::client::{Access, EnrolmentClient, Login};
use venice_control::identity::{CertificateInfo, Credential, Holder};
use venice_control::server::{Certified, LocalCredential, LocalHandler, LocalPeer, TlsServer};
use venice_control::{Caller, ControlError, RackError};

use crate::AgentError;
use crate::revoked_nodes::RevokedNodes;

/// Longest sleep before the clock is read again: it may jump.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Pause between two attempts to renew the certificate.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// The identity in use of a node.
#[derive(Debug, Clone)]
pub(crate) struct NodeIdentity {
    dir: PathBuf,
    holder: Holder,
    pub(crate) access: Access,
    pub(crate) tls: Arc<TlsServer>,
    pub(crate) revoked_nodes: RevokedNodes,
    /// Version of the authorities that the Monitor Node trusts; 0: unknown.
    wanted_trust: Arc<watch::Sender<u64>>,
}

impl NodeIdentity {
    /// Loads the certificate in `dir`, which must be the node `name`'s.
    pub(crate) fn load(dir: &Path, name: &str, monitor: &str) -> Result<Self, AgentError> {
        let credential = Credential::load(dir)?;
        check(credential.info(), name, dir)?;
        let holder = Holder::new(credential)?;
        let access = Access::new(monitor, Login::held(holder.clone()));
        let tls = TlsServer::new(holder.clone())?;
        let revoked_nodes = RevokedNodes::load(dir.to_owned(), Arc::clone(&tls))?;
        let wanted_trust = Arc::new(watch::Sender::new(0));
        Ok(Self { dir: dir.to_owned(), holder, access, tls, revoked_nodes, wanted_trust })
    }

    /// Returns this identity once for each Monitor Node, with that one's address.
    pub(crate) fn at_each(&self) -> Vec<Self> {
        let at = |monitor: &str| {
            let access = Access::new(monitor, self.access.login.clone());
            Self { access, ..self.clone() }
        };
        self.access.monitor.split(',').map(at).collect()
    }

    /// Expiry of its certificate, in seconds since 1970.
    pub(crate) fn expires_s(&self) -> u64 {
        self.holder.info().expires_s
    }

    /// Version of the authorities that this node trusts.
    pub(crate) fn trust_version(&self) -> u64 {
        self.holder.authorities().version()
    }

    /// Notes the version of the authorities that the Monitor Node trusts. If it is another one, the
    /// certificate is renewed now.
    pub(crate) fn note_trust(&self, version: u64) {
        self.wanted_trust.send_if_modified(|wanted| std::mem::replace(wanted, version) != version);
    }

    /// True if the Monitor Node trusts other authorities.
    fn is_trust_outdated(&self, wanted: u64) -> bool {
        wanted != 0 && wanted != self.trust_version()
    }

    /// Renews the certificate long before its expiry, and when the rack's authority changes; never
    /// returns.
    pub(crate) async fn keep(self) {
        let mut wanted = self.wanted_trust.subscribe();
        loop {
            let wait = self.holder.info().renew_in().min(LOOK_EVERY);
            let changed = wanted.wait_for(|wanted| self.is_trust_outdated(*wanted));
            // The sender is this identity's own.
            let is_outdated = tokio::time::timeout(wait, changed).await.is_ok();
            if !is_outdated && !self.holder.info().renew_in().is_zero() {
                continue;
            }
            match self.renew().await {
                Err(error) => {
                    tracing::warn!(%error, "no new certificate yet; trying again");
                    self.reload();
                }
                // Another Monitor Node may trust other authorities than the one that renewed it.
                Ok(()) if is_outdated => {}
                Ok(()) => continue,
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    /// Reloads the certificate on disk if it is another valid one of this node: the machine has
    /// joined again, or a clock was ahead.
    pub(crate) fn reload(&self) {
        let Ok(found) = Credential::load(&self.dir) else { return };
        let info = self.holder.info();
        let is_other = found.info() != &info && found.info().caller == info.caller;
        // A certificate of another rack needs a new start of the agent.
        let is_of_this_rack = found.authorities().is_of_same_rack(&self.holder.authorities());
        if !is_other || !is_of_this_rack || !found.info().is_current() {
            return;
        }
        match self.tls.replace(found) {
            Ok(()) => tracing::info!(dir = %self.dir.display(), "took up the certificate there"),
            Err(error) => tracing::warn!(%error, "cannot use the certificate on the disk"),
        }
    }

    /// Date of the certificate in use, in milliseconds since 1970.
    pub(crate) fn issued_ms(&self) -> u64 {
        self.holder.info().issued_ms
    }

    async fn renew(&self) -> Result<(), AgentError> {
        let mut enrolment =
            EnrolmentClient::connect(&self.access).await.map_err(AgentError::Control)?;
        let next = enrolment.renew().await.map_err(AgentError::Control)?;
        if !next.info().is_current() {
            return Err(AgentError::CertificateTime);
        }
        // To the disk first: an agent that dies here starts with it.
        next.save(&self.dir)?;
        self.tls.replace(next)?;
        tracing::info!("this node has a new certificate");
        Ok(())
    }
}

fn check(info: &CertificateInfo, name: &str, dir: &Path) -> Result<(), AgentError> {
    let whose = match &info.caller {
        Caller::Node(node) if node == name && !info.is_over() => return Ok(()),
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
pub(crate) struct UserCertifier {
    access: Access,
    enrolment: Mutex<Option<EnrolmentClient>>,
}

impl UserCertifier {
    pub(crate) fn new(identity: &NodeIdentity) -> Self {
        Self { access: identity.access.clone(), enrolment: Mutex::default() }
    }

    /// Certifies a user's key, over the existing connection or a new one. A refused connection may
    /// have been made with a wrong clock or an expired certificate.
    async fn certify(
        &self,
        user: (u32, String),
        request: Vec<u8>,
    ) -> Result<Certified, ControlError> {
        let mut known = self.enrolment.lock().await.clone();
        if let Some(enrolment) = known.as_mut() {
            match enrolment.certify_user(user.clone(), request.clone()).await {
                Err(ControlError::NotAdmitted { .. } | ControlError::WrongPeer { .. }) => {
                    *self.enrolment.lock().await = None;
                }
                done => return done,
            }
        }
        let mut enrolment = EnrolmentClient::connect(&self.access).await?;
        let certified = enrolment.certify_user(user, request).await?;
        *self.enrolment.lock().await = Some(enrolment);
        Ok(certified)
    }
}

impl LocalHandler for UserCertifier {
    async fn login(&self, peer: LocalPeer, request: Vec<u8>) -> Result<LocalCredential, RackError> {
        let info = |error: ControlError| RackError::BadRequest(error.to_string());
        let user = (peer.uid, peer.name);
        let certified = self.certify(user, request).await.map_err(info)?;
        Ok(LocalCredential { certified, monitor: self.access.monitor.clone() })
    }
}
