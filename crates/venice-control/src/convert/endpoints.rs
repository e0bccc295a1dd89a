//! Endpoints and services.

use super::{key_in, required, secret_in};
use crate::proto;
use tonic::Status;
use venice_rack::types::{Endpoint, ServiceAccess, ServiceState};
use venice_wire::{GrantId, PortId};

/// Ports that this release does not know are left out: a newer donor has them beside others.
pub(crate) fn endpoints_in(endpoints: Vec<proto::Endpoint>) -> Result<Vec<Endpoint>, Status> {
    let known = endpoints.into_iter().filter_map(|endpoint| {
        let proto::Endpoint { port, address, extra } = endpoint;
        Some(Endpoint { port: port.parse().ok()?, address, extra })
    });
    known.map(checked).collect()
}

/// A key that cannot be read must not pass for a rack without protection.
fn checked(endpoint: Endpoint) -> Result<Endpoint, Status> {
    if endpoint.port == PortId::Udp {
        key_in(&endpoint.extra)?;
    }
    Ok(endpoint)
}

pub(crate) fn endpoints_out(endpoints: Vec<Endpoint>) -> Vec<proto::Endpoint> {
    let all = endpoints.into_iter().map(|endpoint| {
        let Endpoint { port, address, extra } = endpoint;
        proto::Endpoint { port: port.name().to_owned(), address, extra }
    });
    all.collect()
}

pub(crate) fn service_in(response: proto::WatchServiceResponse) -> Result<ServiceState, Status> {
    use proto::watch_service_response::State;
    match required(response.state, "state")? {
        State::Serving(access) => {
            let proto::ServiceAccess { service, secret, endpoints, grant } = access;
            let grant = GrantId(grant);
            let secret = required(secret_in(&secret, "secret")?, "secret")?;
            let endpoints = endpoints_in(endpoints)?;
            Ok(ServiceState::Serving(ServiceAccess { grant, service, secret, endpoints }))
        }
        State::Ended(why) => Ok(ServiceState::Ended(why)),
    }
}

/// Returns the message that a state makes, if it makes one.
pub(crate) fn service_out(state: ServiceState) -> Option<proto::WatchServiceResponse> {
    use proto::watch_service_response::State;
    let state = match state {
        ServiceState::None | ServiceState::Starting => return None,
        ServiceState::Serving(access) => {
            let ServiceAccess { grant, service, secret, endpoints } = access;
            let (secret, endpoints) = (secret.to_vec(), endpoints_out(endpoints));
            let grant = grant.0;
            State::Serving(proto::ServiceAccess { service, secret, endpoints, grant })
        }
        ServiceState::Ended(why) => State::Ended(why),
    };
    Some(proto::WatchServiceResponse { state: Some(state) })
}

#[cfg(test)]
mod tests {
    use super::super::{grant_in, grant_out};
    use super::*;
    use venice_rack::types::{Grant, Share};
    use venice_wire::{GrantKey, NodeId, SealKey};

    #[test]
    fn grants_of_last_release_pass() {
        let grant = Grant {
            id: GrantId(1),
            donor: "a".into(),
            donor_node: NodeId(2),
            donor_epoch: 3,
            share: Share::of_slabs(1),
            key: GrantKey(4),
            control_addr: "h:1".into(),
            endpoints: Endpoint::of_memory("h:2", Some(SealKey([5; 32])), "/s"),
            lease_s: 6.0,
        };
        let sent = grant_out(grant.clone());
        assert_eq!((&*sent.udp_addr, &*sent.shm_socket, sent.seal_key.len()), ("h:2", "/s", 32));
        let mut old = sent.clone();
        old.endpoints.clear();
        assert_eq!(grant_in(old).unwrap(), grant, "a sender without endpoints");
        let mut newer = sent;
        let unknown = proto::Endpoint { port: "cxl".into(), ..proto::Endpoint::default() };
        newer.endpoints.insert(0, unknown);
        let read = grant_in(newer).unwrap();
        assert_eq!(read, grant, "a port of a later release");
        assert_eq!(read.address(PortId::Verbs), "");
        assert_eq!(read.seal_key(), Some(SealKey([5; 32])));
        let mut torn = grant_out(grant);
        torn.endpoints[0].extra.pop();
        assert!(grant_in(torn).is_err(), "a torn key is no missing key");
    }
}
