//! The services, over handlers in plain types.
//!
//! [`Door`] authenticates callers; each service authorises its calls.

mod agent;
mod door;
mod gate;
mod guests;
mod heartbeats;
mod line;
mod listen;
mod local;
mod monitor;
mod monitor_handler;
mod refusals;
mod turns;
mod visitor;

pub use agent::{AgentHandler, serve_agent};
pub use door::Door;
pub use gate::{GateHandler, NewToken, Shown, TokenRow};
pub use listen::{ServeError, bind};
pub use local::{Entered, LocalHandler, LocalSocket, Visiting, let_group_through};
pub use monitor::serve_monitor;
pub use monitor_handler::MonitorHandler;
