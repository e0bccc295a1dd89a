//! Calls to the donors' agents.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use venice_control::ControlError;
use venice_control::client::{AgentClient, Login};
use venice_rack::monitor::CallError;
use venice_rack::monitor_node::{DonorAnswer, DonorCall};

/// Connections to the donors.
pub(crate) struct Donors {
    login: Login,
    timeout: Duration,
    /// Clients by address, each with its node's name. Another name at an address reconnects.
    clients: Mutex<BTreeMap<String, (String, AgentClient)>>,
}

impl Donors {
    pub(crate) fn new(login: Login, timeout: Duration) -> Self {
        Self { login, timeout, clients: Mutex::default() }
    }

    /// Calls the agent of the node `name` at `addr`. An old connection may have died unnoticed; the
    /// call is then repeated once over a new one. Every call is idempotent.
    pub(crate) async fn call(
        &self,
        name: &str,
        addr: &str,
        call: DonorCall,
    ) -> Result<DonorAnswer, CallError> {
        if let Some(mut client) = self.cached(name, addr) {
            let done = client.call(call.clone()).await;
            self.drop_unless_answered(addr, &done);
            match done {
                // The connection may have died since, or predate the node's admission.
                Err(
                    ControlError::Unreachable { .. }
                    | ControlError::WrongPeer { .. }
                    | ControlError::NotAdmitted { .. },
                ) => {}
                done => return done.map_err(|error| call_error(addr, &error)),
            }
        }
        let done = match AgentClient::connect(&self.login, name, addr, self.timeout).await {
            Ok(mut client) => {
                self.store_client(name, addr, client.clone());
                client.call(call).await
            }
            Err(error) => Err(error),
        };
        self.drop_unless_answered(addr, &done);
        done.map_err(|error| call_error(addr, &error))
    }

    fn cached(&self, name: &str, addr: &str) -> Option<AgentClient> {
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let (owner, client) = clients.get(addr)?;
        (owner == name).then(|| client.clone())
    }

    /// Drops the connection to `addr` unless the donor itself has answered.
    fn drop_unless_answered(&self, addr: &str, done: &Result<DonorAnswer, ControlError>) {
        if !matches!(done, Ok(_) | Err(ControlError::Refused(_))) {
            self.clients.lock().unwrap_or_else(PoisonError::into_inner).remove(addr);
        }
    }

    fn store_client(&self, name: &str, addr: &str, client: AgentClient) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.insert(addr.to_owned(), (name.to_owned(), client));
    }
}

fn call_error(addr: &str, error: &ControlError) -> CallError {
    tracing::debug!(addr, %error, "a call to a donor failed");
    match error {
        ControlError::Refused(refusal) => CallError::Refused(refusal.clone()),
        // Another process has the port now.
        ControlError::Unreachable { refused: true, .. } | ControlError::WrongPeer { .. } => {
            CallError::Gone
        }
        _ => CallError::NoAnswer,
    }
}
