//! Callers of the services, in plain types.

mod agent;
mod channel;
mod gate;
mod heartbeats;
mod local;
mod login;
mod monitor;
mod no_entry;

pub use agent::AgentClient;
pub use gate::{GateClient, MonitorIdentity, join};
pub use heartbeats::Heartbeats;
pub use login::{Access, Login};
pub use monitor::MonitorClient;
pub use no_entry::RECORD_FILE;
