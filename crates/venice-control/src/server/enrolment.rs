//! The enrolment service (proto `Gate`) over an [`EnrolmentHandler`]: join tokens, certificates and
//! revocations.

use super::audit::audit;
use super::peer_identity::peer;
use super::tls_server::TlsServer;
use crate::convert::{self, refused_out, revocation_out};
use crate::error::rack_status;
use crate::identity::{Authorities, Fingerprint, TokenSecret, hash_of_requested_key};
use crate::proto::{self, CertificateResponse, gate_server::Gate};
use std::future::Future;
use std::sync::Arc;
use tonic::{Request, Response, Status};
use venice_rack::caller::{Caller, User};
use venice_rack::revocation::Revocation;
use venice_rack::types::RackError;

pub(super) const ADMINS: &str = "root on the Monitor Node's machine";

/// A new join token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewToken {
    /// Id of the token.
    pub id: u64,
    /// Secret of the token.
    pub secret: TokenSecret,
    /// Fingerprint of the rack's authority.
    pub authority: Fingerprint,
}

/// A join token without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRow {
    /// Id of the token.
    pub id: u64,
    /// The only node that may join with it; empty: any.
    pub node: String,
    /// Expiry, in milliseconds since 1970.
    pub expires_ms: u64,
    /// Node that joined with it; empty: none yet.
    pub used_by: String,
}

/// The Monitor Node's authority and revocations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Certificate of the rack's authority, DER.
    pub authority: Vec<u8>,
    /// Revoked nodes.
    pub revoked: Vec<Revocation>,
    /// Certificate of the former authority while it is rotated, DER; else empty.
    pub former: Vec<u8>,
    /// Begin of the rotation, in milliseconds since 1970.
    pub rotated_ms: u64,
    /// Nodes that have not renewed their certificates since.
    pub not_renewed: Vec<String>,
}

/// A certificate with the authorities that its owner is to trust.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certified {
    /// The certificate, DER.
    pub certificate: Vec<u8>,
    /// The authorities.
    pub authorities: Authorities,
}

/// The step of a rotation of the authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotationStep {
    /// It begins: a new authority signs, both are trusted.
    Begin,
    /// It ends: the former authority is void.
    Finish {
        /// True to end it where nodes and programs may depend on the former authority.
        is_sure: bool,
    },
}

/// The calls of the enrolment service. Write the methods as `async fn`. Permissions have been
/// checked.
pub trait EnrolmentHandler: Send + Sync + 'static {
    /// Admits a machine as the node `name`, by a token, with a public key of this SHA-256. The
    /// machine with that key may repeat the call.
    fn join(
        &self,
        token: (u64, TokenSecret),
        name: String,
        key: [u8; 32],
    ) -> impl Future<Output = Result<(), RackError>> + Send;

    /// Signs the key of a request for `caller`.
    fn certify(&self, caller: &Caller, request: &[u8]) -> Result<Certified, RackError>;

    /// Creates a join token.
    fn new_token(
        &self,
        valid_s: u64,
        node: String,
    ) -> impl Future<Output = Result<NewToken, RackError>> + Send;

    /// Returns the join tokens.
    fn tokens(&self) -> impl Future<Output = Vec<TokenRow>> + Send;

    /// Deletes a join token.
    fn delete_token(&self, id: u64) -> impl Future<Output = Result<(), RackError>> + Send;

    /// Revokes a node; one that the rack does not list only if the caller `is_sure`.
    fn revoke(
        &self,
        name: String,
        is_sure: bool,
    ) -> impl Future<Output = Result<(), RackError>> + Send;

    /// Returns the authority and the revocations.
    fn show(&self) -> impl Future<Output = Shown> + Send;

    /// Rotates the authority; returns the present one's certificate, DER.
    fn rotate(&self, step: RotationStep)
    -> impl Future<Output = Result<Vec<u8>, RackError>> + Send;
}

pub(super) struct EnrolmentService<H> {
    handler: Arc<H>,
    tls: Arc<TlsServer>,
}

impl<H: EnrolmentHandler> EnrolmentService<H> {
    pub(super) fn new(handler: Arc<H>, tls: Arc<TlsServer>) -> Self {
        Self { handler, tls }
    }

    fn certify(
        &self,
        caller: &Caller,
        request: &[u8],
    ) -> Result<Response<CertificateResponse>, Status> {
        let certified = self.handler.certify(caller, request);
        let certified = certified.map_err(|error| rack_status(&error))?;
        Ok(Response::new(convert::certified_out(certified)))
    }

    /// Certifies on behalf of the calling node.
    fn certify_for<T>(
        &self,
        request: &Request<T>,
        csr: &[u8],
        whom: impl FnOnce(String) -> Caller,
    ) -> Result<Response<CertificateResponse>, Status> {
        let certified = self.certify(&whom(self.admit_node(request)?), csr)?;
        // The node may have been revoked meanwhile: what was just signed may be dated later than
        // the revocation.
        self.admit_node(request)?;
        Ok(certified)
    }

    fn admit_admin<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        self.tls.admit_if(request, ADMINS, Caller::is_admin)
    }

    /// Returns the name of the calling node.
    fn admit_node<T>(&self, request: &Request<T>) -> Result<String, Status> {
        match self.tls.admit(request)? {
            Caller::Node(name) => Ok(name),
            caller => Err(self.tls.forbid(&caller, "agents")),
        }
    }
}

#[tonic::async_trait]
impl<H: EnrolmentHandler> Gate for EnrolmentService<H> {
    async fn join(
        &self,
        request: Request<proto::JoinRequest>,
    ) -> Result<Response<CertificateResponse>, Status> {
        let from = peer(&request).addr;
        let proto::JoinRequest { token_id, token_secret, name, request } = request.into_inner();
        let name = convert::name_in(name, "the node")?;
        let secret = token_secret.try_into().map(TokenSecret);
        let secret =
            secret.map_err(|_| Status::invalid_argument("a token's secret has 16 bytes"))?;
        // Before the token is used: a request that cannot be signed does not use it up.
        let key = hash_of_requested_key(&request)
            .map_err(|error| rack_status(&RackError::BadRequest(error.to_string())))?;
        let before = self.tls.revoked_until_ms(&name);
        if let Err(error) = self.handler.join((token_id, secret), name.clone(), key).await {
            if let RackError::BadToken(why) | RackError::Forbidden(why) = &error {
                self.tls.refuse_token(Some(from), why);
            }
            return Err(rack_status(&error));
        }
        let certified = self.certify(&Caller::Node(name.clone()), &request)?;
        // The node may have been revoked meanwhile: what was just signed may be dated later than
        // the revocation.
        if self.tls.revoked_until_ms(&name) != before {
            let why = format!("node {name} was revoked while it joined");
            self.tls.refuse_token(Some(from), &why);
            return Err(rack_status(&RackError::BadToken(why)));
        }
        Ok(certified)
    }

    async fn renew_certificate(
        &self,
        request: Request<proto::RenewCertificateRequest>,
    ) -> Result<Response<CertificateResponse>, Status> {
        self.certify_for(&request, &request.get_ref().request, Caller::Node)
    }

    async fn certify_user(
        &self,
        request: Request<proto::CertifyUserRequest>,
    ) -> Result<Response<CertificateResponse>, Status> {
        let proto::CertifyUserRequest { uid, name, request: csr } = request.get_ref().clone();
        let name = convert::user_name_in(name)?;
        // A node vouches for its own users only, and for no administrator.
        let user = |node| Caller::User(User { node, uid, name, is_admin: false });
        self.certify_for(&request, &csr, user)
    }

    async fn new_token(
        &self,
        request: Request<proto::NewTokenRequest>,
    ) -> Result<Response<proto::NewTokenResponse>, Status> {
        let by = self.admit_admin(&request)?;
        let proto::NewTokenRequest { valid_s, node } = request.into_inner();
        let node = node.map(|node| convert::name_in(node, "the node")).transpose()?;
        let node = node.unwrap_or_default();
        let made = self.handler.new_token(valid_s, node.clone()).await;
        let made = made.map_err(|e| rack_status(&e));
        let id = made.as_ref().map_or(0, |made| made.id);
        audit(&by, "new token", format_args!("{id:016x} for {node:?}, valid {valid_s} s"), &made);
        let NewToken { id, secret, authority } = made?;
        let (secret, authority) = (secret.0.to_vec(), authority.0.to_vec());
        Ok(Response::new(proto::NewTokenResponse { id, secret, authority }))
    }

    async fn list_tokens(
        &self,
        request: Request<proto::ListTokensRequest>,
    ) -> Result<Response<proto::ListTokensResponse>, Status> {
        self.admit_admin(&request)?;
        let row = |row: TokenRow| {
            let TokenRow { id, node, expires_ms, used_by } = row;
            proto::TokenRow { id, node, expires_ms, used_by }
        };
        let tokens = self.handler.tokens().await.into_iter().map(row).collect();
        Ok(Response::new(proto::ListTokensResponse { tokens }))
    }

    async fn revoke_node(
        &self,
        request: Request<proto::RevokeNodeRequest>,
    ) -> Result<Response<proto::RevokeNodeResponse>, Status> {
        let by = self.admit_admin(&request)?;
        let proto::RevokeNodeRequest { name, is_sure } = request.into_inner();
        let name = convert::name_in(name, "the node")?;
        let revoked = self.handler.revoke(name.clone(), is_sure).await;
        let revoked = revoked.map_err(|e| rack_status(&e));
        audit(&by, "revoke", format_args!("node {name}"), &revoked);
        revoked?;
        Ok(Response::new(proto::RevokeNodeResponse {}))
    }

    async fn delete_token(
        &self,
        request: Request<proto::DeleteTokenRequest>,
    ) -> Result<Response<proto::DeleteTokenResponse>, Status> {
        let by = self.admit_admin(&request)?;
        let id = request.get_ref().id;
        let deleted = self.handler.delete_token(id).await.map_err(|e| rack_status(&e));
        audit(&by, "delete token", format_args!("{id:016x}"), &deleted);
        deleted?;
        Ok(Response::new(proto::DeleteTokenResponse {}))
    }

    async fn show_identity(
        &self,
        request: Request<proto::ShowIdentityRequest>,
    ) -> Result<Response<proto::ShowIdentityResponse>, Status> {
        self.tls.admit(&request)?;
        let Shown { authority, revoked, former, rotated_ms, not_renewed } =
            self.handler.show().await;
        Ok(Response::new(proto::ShowIdentityResponse {
            authority,
            expires_s: self.tls.holder().info().expires_s,
            refused: Some(refused_out(self.tls.refused())),
            revoked: revoked.into_iter().map(revocation_out).collect(),
            former_authority: former,
            rotated_ms,
            not_renewed,
        }))
    }

    async fn rotate_authority(
        &self,
        request: Request<proto::RotateAuthorityRequest>,
    ) -> Result<Response<proto::RotateAuthorityResponse>, Status> {
        let by = self.admit_admin(&request)?;
        let proto::RotateAuthorityRequest { finish, is_sure } = request.into_inner();
        let step = if finish { RotationStep::Finish { is_sure } } else { RotationStep::Begin };
        let rotated = self.handler.rotate(step).await.map_err(|e| rack_status(&e));
        audit(&by, "rotate the authority", format_args!("{step:?}"), &rotated);
        Ok(Response::new(proto::RotateAuthorityResponse { authority: rotated? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Authority, Holder, KeyPem, NotAdmitted};
    use crate::server::peer_identity::Peer;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use venice_rack::revocation::Revocations;

    /// A handler during whose signing node7 is revoked.
    struct Revoking {
        authority: Authority,
        joins: AtomicUsize,
        tls: Arc<TlsServer>,
    }

    impl Revoking {
        fn revoke_node7(&self, until_ms: u64) {
            let revoked = Revocation::new("node7", until_ms);
            self.tls.set_revoked([revoked].into_iter().collect::<Revocations>());
            self.authority.sign_after(until_ms);
        }
    }

    impl EnrolmentHandler for Revoking {
        async fn join(
            &self,
            _: (u64, TokenSecret),
            _: String,
            _: [u8; 32],
        ) -> Result<(), RackError> {
            self.joins.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        fn certify(&self, caller: &Caller, request: &[u8]) -> Result<Certified, RackError> {
            self.revoke_node7(self.authority.newest_ms() + 1000);
            let certificate = self.authority.answer(caller, request).unwrap().to_vec();
            Ok(Certified { certificate, authorities: self.authority.authorities().clone() })
        }

        async fn new_token(&self, _: u64, _: String) -> Result<NewToken, RackError> {
            unreachable!()
        }

        async fn tokens(&self) -> Vec<TokenRow> {
            unreachable!()
        }

        async fn delete_token(&self, _: u64) -> Result<(), RackError> {
            unreachable!()
        }

        async fn revoke(&self, _: String, _: bool) -> Result<(), RackError> {
            unreachable!()
        }

        async fn show(&self) -> Shown {
            unreachable!()
        }

        async fn rotate(&self, _: RotationStep) -> Result<Vec<u8>, RackError> {
            unreachable!()
        }
    }

    fn node7() -> Caller {
        Caller::Node("node7".into())
    }

    fn enrolment() -> EnrolmentService<Revoking> {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create(dir.path()).unwrap();
        let holder = Holder::new(authority.credential(&Caller::Monitor).unwrap()).unwrap();
        let tls = TlsServer::new(holder).unwrap();
        let handler =
            Arc::new(Revoking { authority, joins: AtomicUsize::new(0), tls: Arc::clone(&tls) });
        EnrolmentService::new(handler, tls)
    }

    /// A request of node7 with this verdict on its connection.
    fn of_node7<T>(
        enrolment: &EnrolmentService<Revoking>,
        message: T,
        thought: Option<NotAdmitted>,
    ) -> Request<T> {
        let credential = enrolment.handler.authority.credential(&node7()).unwrap();
        let mut request = Request::new(message);
        request.extensions_mut().insert(Peer::showing(&credential, thought));
        request
    }

    #[tokio::test]
    async fn revocation_during_signing_refuses() {
        let enrolment = enrolment();
        let request = KeyPem::generate().unwrap().request().unwrap();
        let renew = proto::RenewCertificateRequest { request: request.clone() };
        let renewed = enrolment.renew_certificate(of_node7(&enrolment, renew, None)).await;
        assert!(renewed.unwrap_err().message().contains("was revoked"));
        let (uid, name) = (7, "eve".to_owned());
        let user = proto::CertifyUserRequest { uid, name, request: request.clone() };
        let vouched = enrolment.certify_user(of_node7(&enrolment, user, None)).await;
        assert!(vouched.unwrap_err().message().contains("was revoked"));
        let (token_id, token_secret) = (1, vec![0; 16]);
        let join = proto::JoinRequest { token_id, token_secret, name: "node7".into(), request };
        let joined = enrolment.join(of_node7(&enrolment, join, None)).await;
        assert!(joined.unwrap_err().message().contains("was revoked"));
    }

    #[tokio::test]
    async fn unsignable_request_uses_no_token() {
        let enrolment = enrolment();
        let mut forged = KeyPem::generate().unwrap().request().unwrap();
        *forged.last_mut().unwrap() ^= 1;
        for request in [Vec::new(), b"nonsense".to_vec(), forged] {
            let (token_id, token_secret) = (1, vec![0; 16]);
            let join = proto::JoinRequest { token_id, token_secret, name: "node7".into(), request };
            let refused = enrolment.join(of_node7(&enrolment, join, None)).await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused:?}");
        }
        assert_eq!(enrolment.handler.joins.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn expired_open_connection_is_refused() {
        let enrolment = enrolment();
        let mut request = of_node7(&enrolment, (), None);
        assert_eq!(enrolment.tls.admit(&request).unwrap(), node7());
        let peer = request.extensions_mut().get_mut::<Peer>().unwrap();
        peer.expires = tokio::time::Instant::now();
        let refused = enrolment.tls.admit(&request).unwrap_err();
        assert!(refused.message().contains("has expired"), "{refused:?}");
        assert_eq!(enrolment.tls.refused().expired, 1);
    }

    #[test]
    fn corrected_clock_admits_peer() {
        let enrolment = enrolment();
        for thought in [NotAdmitted::NotYet(node7()), NotAdmitted::Expired(node7())] {
            let request = of_node7(&enrolment, (), Some(thought));
            assert_eq!(enrolment.tls.admit(&request).unwrap(), node7());
        }
        let request = of_node7(&enrolment, (), Some(NotAdmitted::Foreign));
        assert!(enrolment.tls.admit(&request).is_err());
    }
}
