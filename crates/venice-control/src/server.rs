//! The two services, over handlers in plain types.

mod agent;
mod listen;
mod monitor;

pub use agent::{AgentHandler, serve_agent};
pub use listen::{ServeError, bind};
pub use monitor::{MonitorHandler, serve_monitor};
