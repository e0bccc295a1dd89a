//! A client of the Monitor Node's enrolment service.

use super::channel::{self, Target};
use super::login::{Access, Login, no_login};
use crate::convert::{certified_in, refused_in, revocation_in};
use crate::error::{ControlError, PeerKind};
use crate::identity::{Credential, Fingerprint, JoinToken, KeyPem, TokenSecret};
use crate::proto::{self, CertificateResponse, gate_client};
use crate::server::{Certified, NewToken, RotationStep, TokenRow};
use std::time::Duration;
use tonic::Status;
use tonic::transport::Channel;
use venice_rack::door::RefusedCounts;
use venice_rack::revocation::Revocation;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The Monitor Node's identity and refusals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitorIdentity {
    /// Fingerprint of the rack's authority.
    pub authority: Fingerprint,
    /// Expiry of the Monitor Node's certificate, in seconds since 1970.
    pub expires_s: u64,
    /// Callers refused since it started.
    pub refused: RefusedCounts,
    /// Revoked nodes.
    pub revoked: Vec<Revocation>,
    /// Fingerprint of the former authority while it is rotated.
    pub former: Option<Fingerprint>,
    /// Begin of the rotation, in milliseconds since 1970.
    pub rotated_ms: u64,
    /// Nodes that have not renewed their certificates since.
    pub not_renewed: Vec<String>,
}

/// A connection to the enrolment service.
#[derive(Debug, Clone)]
pub struct EnrolmentClient {
    addr: String,
    inner: gate_client::GateClient<Channel>,
}

/// Joins the rack that made the token as the node `name`. The Monitor Node is verified by its
/// authority's fingerprint before anything is sent. If the answer is lost, the call may be repeated
/// with the same key.
///
/// # Errors
/// [`ControlError::WrongPeer`] if another rack answers at the token's address;
/// [`ControlError::NotAdmitted`] if the token is invalid.
pub async fn join(token: &JoinToken, name: &str, key: KeyPem) -> Result<Credential, ControlError> {
    let access = Access::new(&token.monitor, Login::nobody(token.authority)?);
    let mut client = EnrolmentClient::connect(&access).await?;
    let request = proto::JoinRequest {
        token_id: token.id,
        token_secret: token.secret.0.to_vec(),
        name: name.to_owned(),
        request: key.request().map_err(no_login)?,
    };
    let answer = client.inner.join(request).await.map_err(|status| client.error(status))?;
    client.credential(answer.into_inner(), key)
}

impl EnrolmentClient {
    /// Connects to a rack's Monitor Node.
    ///
    /// # Errors
    /// The same as [`super::MonitorClient::connect`].
    pub async fn connect(access: &Access) -> Result<Self, ControlError> {
        let Access { monitor: addr, login } = access;
        let (whom, wait) = (Target::Monitor, CONNECT_TIMEOUT);
        let channel = channel::open(whom, addr, login, wait, CALL_TIMEOUT).await?;
        Ok(Self { addr: addr.clone(), inner: gate_client::GateClient::new(channel) })
    }

    /// Renews a node's credential, with a new key.
    ///
    /// # Errors
    /// [`ControlError`], like all calls.
    pub async fn renew(&mut self) -> Result<Credential, ControlError> {
        let key = KeyPem::generate().map_err(no_login)?;
        let request = key.request().map_err(no_login)?;
        let answer = self.inner.renew_certificate(proto::RenewCertificateRequest { request }).await;
        self.credential(answer.map_err(|status| self.error(status))?.into_inner(), key)
    }

    /// Certifies a user of this node.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn certify_user(
        &mut self,
        (uid, name): (u32, String),
        request: Vec<u8>,
    ) -> Result<Certified, ControlError> {
        let request = proto::CertifyUserRequest { uid, name, request };
        let answer = self.inner.certify_user(request).await.map_err(|status| self.error(status))?;
        certified_in(answer.into_inner()).map_err(|status| self.error(status))
    }

    /// Rotates the authority; returns the present one's fingerprint.
    ///
    /// # Errors
    /// [`ControlError::Rack`] with the reason why it cannot begin or end.
    pub async fn rotate(&mut self, step: RotationStep) -> Result<Fingerprint, ControlError> {
        let (finish, is_sure) = match step {
            RotationStep::Begin => (false, false),
            RotationStep::Finish { is_sure } => (true, is_sure),
        };
        let request = proto::RotateAuthorityRequest { finish, is_sure };
        let answer = self.inner.rotate_authority(request).await;
        let answer = answer.map_err(|status| self.error(status))?;
        Ok(Fingerprint::of(&answer.into_inner().authority))
    }

    /// Creates a join token with this lifetime, for one node or (empty) for any.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn new_token(
        &mut self,
        valid: Duration,
        node: &str,
    ) -> Result<NewToken, ControlError> {
        let node = (!node.is_empty()).then(|| node.to_owned());
        let request = proto::NewTokenRequest { valid_s: valid.as_secs(), node };
        let answer = self.inner.new_token(request).await.map_err(|status| self.error(status))?;
        let proto::NewTokenResponse { id, secret, authority } = answer.into_inner();
        let (Ok(secret), Ok(authority)) = (secret.try_into(), authority.try_into()) else {
            return Err(self.odd("it gave a token of the wrong size"));
        };
        let (secret, authority) = (TokenSecret(secret), Fingerprint(authority));
        Ok(NewToken { id, secret, authority })
    }

    /// Returns the join tokens.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn tokens(&mut self) -> Result<Vec<TokenRow>, ControlError> {
        let answer = self.inner.list_tokens(proto::ListTokensRequest {}).await;
        let rows = answer.map_err(|status| self.error(status))?.into_inner().tokens.into_iter();
        let row = |row: proto::TokenRow| {
            let proto::TokenRow { id, node, expires_ms, used_by } = row;
            TokenRow { id, node, expires_ms, used_by }
        };
        Ok(rows.map(row).collect())
    }

    /// Deletes a join token.
    ///
    /// # Errors
    /// [`ControlError::Rack`] if there is no such token.
    pub async fn delete_token(&mut self, id: u64) -> Result<(), ControlError> {
        let request = proto::DeleteTokenRequest { id };
        self.inner.delete_token(request).await.map_err(|status| self.error(status))?;
        Ok(())
    }

    /// Revokes a node; one that the rack does not list only if the caller `is_sure`.
    ///
    /// # Errors
    /// [`ControlError::UnknownNode`].
    pub async fn revoke(&mut self, name: &str, is_sure: bool) -> Result<(), ControlError> {
        let request = proto::RevokeNodeRequest { name: name.to_owned(), is_sure };
        self.inner.revoke_node(request).await.map_err(|status| self.error(status))?;
        Ok(())
    }

    /// Returns the Monitor Node's identity.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn show(&mut self) -> Result<MonitorIdentity, ControlError> {
        let answer = self.inner.show_identity(proto::ShowIdentityRequest {}).await;
        let shown = answer.map_err(|status| self.error(status))?.into_inner();
        Ok(MonitorIdentity {
            authority: Fingerprint::of(&shown.authority),
            expires_s: shown.expires_s,
            refused: refused_in(shown.refused.unwrap_or_default()),
            revoked: shown.revoked.into_iter().map(revocation_in).collect(),
            former: (!shown.former_authority.is_empty())
                .then(|| Fingerprint::of(&shown.former_authority)),
            rotated_ms: shown.rotated_ms,
            not_renewed: shown.not_renewed,
        })
    }

    fn credential(
        &self,
        answer: CertificateResponse,
        key: KeyPem,
    ) -> Result<Credential, ControlError> {
        let certified = certified_in(answer).map_err(|status| self.error(status))?;
        Credential::new(certified.certificate.into(), certified.authorities, key).map_err(no_login)
    }

    fn odd(&self, message: &str) -> ControlError {
        let (addr, message) = (self.addr.clone(), message.to_owned());
        ControlError::Peer { peer: PeerKind::MonitorNode, addr, message }
    }

    fn error(&self, status: Status) -> ControlError {
        ControlError::from_status(PeerKind::MonitorNode, &self.addr, status)
    }
}
