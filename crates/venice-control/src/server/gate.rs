//! The Gate service over a [`GateHandler`]: who becomes part of the rack.

use super::door::{Door, visitor};
use crate::convert::{refused_out, revocation_out};
use crate::error::rack_status;
use crate::identity::{Fingerprint, TokenSecret};
use crate::proto::{self, CertificateResponse, gate_server::Gate};
use std::future::Future;
use std::sync::Arc;
use tonic::{Request, Response, Status};
use venice_rack::caller::{Caller, User};
use venice_rack::revocation::Revocation;
use venice_rack::types::RackError;

const ADMINS: &str = "root on the Monitor Node's machine";

/// A token just made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewToken {
    /// Its number.
    pub id: u64,
    /// Its secret.
    pub secret: TokenSecret,
    /// The rack's authority.
    pub authority: Fingerprint,
}

/// A token, without what one joins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRow {
    /// Its number.
    pub id: u64,
    /// The only node it lets in; empty: any.
    pub node: String,
    /// Until when, in milliseconds since 1970.
    pub expires_ms: u64,
    /// Who came in by it; empty: nobody yet.
    pub used_by: String,
}

/// What the Monitor Node says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The rack's authority's certificate, DER.
    pub authority: Vec<u8>,
    /// Who was turned out.
    pub revoked: Vec<Revocation>,
}

/// A certificate and the authority's, DER.
pub(crate) type Certified = (Vec<u8>, Vec<u8>);

/// What the Monitor Node does at its gate. Write the methods as `async fn`. Who may do what has been
/// looked at.
pub trait GateHandler: Send + Sync + 'static {
    /// A machine wants to be the node `name`, by a token.
    fn join(
        &self,
        token: (u64, TokenSecret),
        name: String,
    ) -> impl Future<Output = Result<(), RackError>> + Send;

    /// Signs for `caller` the key of a request.
    fn certify(&self, caller: &Caller, request: &[u8]) -> Result<(Vec<u8>, Vec<u8>), RackError>;

    /// Makes a token.
    fn new_token(
        &self,
        valid_s: u64,
        node: String,
    ) -> impl Future<Output = Result<NewToken, RackError>> + Send;

    /// The tokens.
    fn tokens(&self) -> impl Future<Output = Vec<TokenRow>> + Send;

    /// Turns a node out.
    fn revoke(&self, name: String) -> impl Future<Output = Result<(), RackError>> + Send;

    /// What everybody in the rack may know of it.
    fn show(&self) -> impl Future<Output = Shown> + Send;
}

pub(super) struct GateService<H> {
    handler: Arc<H>,
    door: Arc<Door>,
}

impl<H: GateHandler> GateService<H> {
    pub(super) fn new(handler: Arc<H>, door: Arc<Door>) -> Self {
        Self { handler, door }
    }

    fn certify(
        &self,
        caller: &Caller,
        request: &[u8],
    ) -> Result<Response<CertificateResponse>, Status> {
        let certified: Result<Certified, _> = self.handler.certify(caller, request);
        let (certificate, authority) = certified.map_err(|error| rack_status(&error))?;
        Ok(Response::new(CertificateResponse { certificate, authority }))
    }

    fn admit_admin<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        self.door.admit_if(request, ADMINS, Caller::is_admin)
    }

    /// The name of the node that calls.
    fn admit_node<T>(&self, request: &Request<T>) -> Result<String, Status> {
        match self.door.admit(request)? {
            Caller::Node(name) => Ok(name),
            caller => Err(self.door.forbid(&caller, "agents")),
        }
    }
}

#[tonic::async_trait]
impl<H: GateHandler> Gate for GateService<H> {
    async fn join(
        &self,
        request: Request<proto::JoinRequest>,
    ) -> Result<Response<CertificateResponse>, Status> {
        let from = visitor(&request).addr;
        let proto::JoinRequest { token_id, token_secret, name, request } = request.into_inner();
        let secret = token_secret.try_into().map(TokenSecret);
        let secret =
            secret.map_err(|_| Status::invalid_argument("a token's secret has 16 bytes"))?;
        match self.handler.join((token_id, secret), name.clone()).await {
            Ok(()) => self.certify(&Caller::Node(name), &request),
            Err(error) => {
                if let RackError::BadToken(why) = &error {
                    self.door.refuse_token(Some(from), why);
                }
                Err(rack_status(&error))
            }
        }
    }

    async fn renew_certificate(
        &self,
        request: Request<proto::RenewCertificateRequest>,
    ) -> Result<Response<CertificateResponse>, Status> {
        let name = self.admit_node(&request)?;
        self.certify(&Caller::Node(name), &request.into_inner().request)
    }

    async fn certify_user(
        &self,
        request: Request<proto::CertifyUserRequest>,
    ) -> Result<Response<CertificateResponse>, Status> {
        let node = self.admit_node(&request)?;
        let proto::CertifyUserRequest { uid, name, request } = request.into_inner();
        // A node vouches for its own users, and for no administrator.
        let user = User { node, uid, name, is_admin: false };
        self.certify(&Caller::User(user), &request)
    }

    async fn new_token(
        &self,
        request: Request<proto::NewTokenRequest>,
    ) -> Result<Response<proto::NewTokenResponse>, Status> {
        self.admit_admin(&request)?;
        let proto::NewTokenRequest { valid_s, node } = request.into_inner();
        let made = self.handler.new_token(valid_s, node).await.map_err(|e| rack_status(&e))?;
        let NewToken { id, secret, authority } = made;
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
        self.admit_admin(&request)?;
        self.handler.revoke(request.into_inner().name).await.map_err(|e| rack_status(&e))?;
        Ok(Response::new(proto::RevokeNodeResponse {}))
    }

    async fn show_identity(
        &self,
        request: Request<proto::ShowIdentityRequest>,
    ) -> Result<Response<proto::ShowIdentityResponse>, Status> {
        self.door.admit(&request)?;
        let Shown { authority, revoked } = self.handler.show().await;
        Ok(Response::new(proto::ShowIdentityResponse {
            authority,
            expires_s: self.door.holder().said().expires_s,
            refused: Some(refused_out(self.door.refused())),
            revoked: revoked.into_iter().map(revocation_out).collect(),
        }))
    }
}
