//! Callers of the services, in plain types.

mod agent;
mod allocation;
mod channel;
mod enrolment;
mod events;
mod heartbeats;
mod local;
mod login;
mod monitor;
mod services;
mod socket_error;
mod transfers;
mod user_ids;

pub use agent::AgentClient;
pub use enrolment::{EnrolmentClient, MonitorIdentity, join};
pub use events::EventWatch;
pub use heartbeats::Heartbeats;
pub use local::{rack_at_sockets, records_at_socket};
pub use login::{Access, Login};
pub use monitor::MonitorClient;
pub use services::ServiceWatch;
pub use socket_error::RECORD_FILE;
pub use user_ids::UserIds;
