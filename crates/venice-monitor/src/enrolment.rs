//! The enrolment service's calls, and those at the socket of this machine.

use crate::clock::wall_ms;
use crate::service::Service;
use std::time::Duration;
use venice_control::identity::{Authority, IdentityError, TokenSecret};
use venice_control::server::{
    Certified, EnrolmentHandler, LocalCredential, LocalHandler, LocalPeer, NewToken, RotationStep,
    Shown, StoreRecords, TokenRow,
};
use venice_control::{Caller, RackError, User};
use venice_rack::monitor::JoinTokenRecord;
use venice_rack::monitor_node::Order;

/// Longest lifetime of a join token.
const LONGEST_TOKEN: Duration = Duration::from_secs(30 * 86_400);

/// Converts the error of a signing request.
pub(crate) fn refused(error: &IdentityError) -> RackError {
    RackError::BadRequest(error.to_string())
}

impl Service {
    /// Signs a certificate and returns it with the authorities, while the peers' changes arrive. A
    /// peer may have revoked the caller, and its revocation covers only certificates signed until
    /// shortly after it.
    fn signed(&self, caller: &Caller, request: &[u8]) -> Result<Certified, RackError> {
        let authority: &Authority = &self.authority;
        let certificate = authority.answer(caller, request).map_err(|error| refused(&error))?;
        match self.tenure.lasts() {
            true => Ok(Certified {
                certificate: certificate.to_vec(),
                authorities: authority.authorities().clone(),
            }),
            false => Err(RackError::Stopping),
        }
    }
}

impl EnrolmentHandler for Service {
    async fn join(
        &self,
        (id, secret): (u64, TokenSecret),
        name: String,
        key: [u8; 32],
    ) -> Result<(), RackError> {
        let token = (id, secret.hash());
        self.ask_done(Order::Join { token, name, key }).await
    }

    fn certify(&self, caller: &Caller, request: &[u8]) -> Result<Certified, RackError> {
        self.signed(caller, request)
    }

    async fn new_token(&self, valid_s: u64, node: String) -> Result<NewToken, RackError> {
        if !(1..=LONGEST_TOKEN.as_secs()).contains(&valid_s) {
            let days = LONGEST_TOKEN.as_secs() / 86_400;
            let reason = format!(
                "a join token's lifetime is out of range: expected one second to {days} days"
            );
            return Err(RackError::BadRequest(reason));
        }
        let (id, secret) = TokenSecret::draw().map_err(|error| refused(&error))?;
        let record = JoinTokenRecord {
            id,
            secret_hash: secret.hash(),
            node,
            expires_ms: wall_ms().saturating_add(valid_s * 1000),
            used_by: String::new(),
            used_key: None,
        };
        self.ask_done(Order::NewToken(record)).await?;
        Ok(NewToken { id, secret, authority: self.authority.fingerprint() })
    }

    async fn tokens(&self) -> Vec<TokenRow> {
        let row = |record: JoinTokenRecord| {
            let JoinTokenRecord { id, node, expires_ms, used_by, .. } = record;
            TokenRow { id, node, expires_ms, used_by }
        };
        self.list(|driver| driver.core().tokens(wall_ms())).await.into_iter().map(row).collect()
    }

    async fn delete_token(&self, id: u64) -> Result<(), RackError> {
        self.ask_done(Order::DeleteToken(id)).await
    }

    async fn revoke(&self, name: String, is_sure: bool) -> Result<(), RackError> {
        self.ask_done(Order::Revoke { name, is_sure }).await
    }

    async fn show(&self) -> Shown {
        let revoked = self.list(|driver| driver.core().revocations().list()).await;
        let former = self.authority.authorities().former();
        Shown {
            authority: self.authority.certificate().to_vec(),
            revoked,
            former: former.map(|it| it.to_vec()).unwrap_or_default(),
            rotated_ms: former.map_or(0, |_| self.authority.made_ms()),
            not_renewed: match former {
                Some(_) => self.not_renewed().await,
                None => Vec::new(),
            },
        }
    }

    async fn rotate(&self, step: RotationStep) -> Result<Vec<u8>, RackError> {
        self.rotate_authority(step).await
    }
}

impl LocalHandler for Service {
    async fn login(&self, peer: LocalPeer, request: Vec<u8>) -> Result<LocalCredential, RackError> {
        let LocalPeer { uid, name, is_owner } = peer;
        let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let caller = Caller::User(User { node, uid, name, is_admin: is_owner });
        let certified = self.signed(&caller, &request)?;
        Ok(LocalCredential { certified, monitor: self.addr.to_string() })
    }

    async fn records(&self) -> Option<Result<StoreRecords, RackError>> {
        let authority = self.authority.fingerprint();
        let records = Service::records(self).await;
        Some(records.map(|records| StoreRecords { authority, records }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenure::Tenure;
    use std::sync::Arc;
    use venice_control::identity::KeyPem;

    #[test]
    fn expired_tenure_signs_nothing() {
        let (inputs, _driver) = tokio::sync::mpsc::channel(1);
        let authority = Arc::new(venice_testkit::identity::authority());
        let request = KeyPem::generate().unwrap().request().unwrap();
        let node7 = Caller::Node("node7".into());
        for (tenure, signs) in [(Tenure::for_ever(), true), (Tenure::past(), false)] {
            let addr = ([127, 0, 0, 1], 1).into();
            let channels = (inputs.clone(), tokio::sync::mpsc::channel(1).0);
            let rotation = crate::rotation::Rotation {
                dir: std::path::PathBuf::new(),
                user_life: Duration::ZERO,
                changed: Arc::default(),
            };
            let counters = Arc::new(crate::metrics::Counters::new());
            let service =
                Service::new(channels, Arc::clone(&authority), addr, tenure, rotation, counters);
            assert_eq!(service.certify(&node7, &request).is_ok(), signs);
        }
    }
}
