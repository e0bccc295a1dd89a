//! Calls to the donors' agents.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use venice_control::client::{AgentClient, Login};
use venice_control::{ControlError, DonorStatus, Pong, PrepareRequest};
use venice_rack::monitor::CallError;
use venice_wire::GrantId;

/// A call to a donor.
#[derive(Debug, Clone)]
pub(crate) enum Call {
    Prepare(PrepareRequest),
    Commit { grant: GrantId, donor_epoch: u64 },
    Abort(GrantId),
    Release(Vec<GrantId>),
    Ping,
}

/// What a donor answers.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Status(DonorStatus),
    Pong(Pong),
}

/// Connections to the donors.
pub(crate) struct Donors {
    login: Login,
    timeout: Duration,
    /// By address, each with the node's name: another name there is called anew.
    clients: Mutex<BTreeMap<String, (String, AgentClient)>>,
}

impl Donors {
    pub(crate) fn new(login: Login, timeout: Duration) -> Self {
        Self { login, timeout, clients: Mutex::default() }
    }

    /// Calls the agent of the node `name` at `addr`. A connection left from before may be dead without anybody having
    /// noticed: then once more over a new one. Every call may be repeated.
    pub(crate) async fn call(
        &self,
        name: &str,
        addr: &str,
        call: Call,
    ) -> Result<Answer, CallError> {
        if let Some(client) = self.known(name, addr) {
            let done = perform(client, call.clone()).await;
            self.forget_unless_answered(addr, &done);
            match done {
                // The connection may be from before it died, or from when it was let in nowhere.
                Err(
                    ControlError::Unreachable { .. }
                    | ControlError::WrongPeer { .. }
                    | ControlError::NotAdmitted { .. },
                ) => {}
                done => return done.map_err(|error| call_error(addr, &error)),
            }
        }
        let done = match AgentClient::connect(&self.login, name, addr, self.timeout).await {
            Ok(client) => {
                self.remember(name, addr, client.clone());
                perform(client, call).await
            }
            Err(error) => Err(error),
        };
        self.forget_unless_answered(addr, &done);
        done.map_err(|error| call_error(addr, &error))
    }

    fn known(&self, name: &str, addr: &str) -> Option<AgentClient> {
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let (whose, client) = clients.get(addr)?;
        (whose == name).then(|| client.clone())
    }

    /// A connection is kept while the donor itself answers by it.
    fn forget_unless_answered(&self, addr: &str, done: &Result<Answer, ControlError>) {
        if !matches!(done, Ok(_) | Err(ControlError::Refused(_))) {
            self.clients.lock().unwrap_or_else(PoisonError::into_inner).remove(addr);
        }
    }

    fn remember(&self, name: &str, addr: &str, client: AgentClient) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.insert(addr.to_owned(), (name.to_owned(), client));
    }
}

async fn perform(mut client: AgentClient, call: Call) -> Result<Answer, ControlError> {
    Ok(match call {
        Call::Prepare(request) => Answer::Status(client.prepare(request).await?),
        Call::Commit { grant, donor_epoch } => {
            Answer::Status(client.commit(grant, donor_epoch).await?)
        }
        Call::Abort(grant) => Answer::Status(client.abort(grant).await?),
        Call::Release(grants) => Answer::Status(client.release(&grants).await?),
        Call::Ping => Answer::Pong(client.ping().await?),
    })
}

fn call_error(addr: &str, error: &ControlError) -> CallError {
    tracing::debug!(addr, %error, "a call to a donor failed");
    match error {
        ControlError::Refused(refusal) => CallError::Refused(refusal.clone()),
        // Its port is another's by now.
        ControlError::Unreachable { refused: true, .. } | ControlError::WrongPeer { .. } => {
            CallError::Gone
        }
        _ => CallError::NoAnswer,
    }
}
