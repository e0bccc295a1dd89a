//! Callers of the two services, in plain types.

mod agent;
mod channel;
mod monitor;

pub use agent::AgentClient;
pub use monitor::MonitorClient;
