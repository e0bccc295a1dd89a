//! The services, over handlers in plain types.
//!
//! [`TlsServer`] authenticates callers; each service authorises its calls.

mod accept;
mod agent;
mod audit;
mod bounded_stream;
mod call_limiter;
mod connection;
mod connection_limiter;
mod connection_limits;
mod enrolment;
mod events;
mod handshake_limiter;
mod heartbeats;
mod listen;
mod local;
mod local_incoming;
mod monitor;
mod monitor_handler;
mod movable_stream;
mod peer_identity;
mod refusals;
mod services;
mod short_lived;
mod tls_server;

pub use agent::{AgentHandler, serve_agent};
pub use connection_limiter::ConnectionCounts;
pub use enrolment::{Certified, EnrolmentHandler, NewToken, RotationStep, Shown, TokenRow};
pub use listen::{ServeError, bind};
pub use local::{
    LocalCredential, LocalHandler, LocalPeer, LocalSocket, StoreRecords, admit_group, allow_group,
};
pub use monitor::serve_monitor;
pub use monitor_handler::MonitorHandler;
pub use tls_server::{TlsServer, is_out_of_descriptors};
