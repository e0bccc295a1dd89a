//! A node's agent as a library function: [`run`] it with an [`AgentConfig`].
//!
//! The agent lends this machine's memory: it makes the slabs (`venice-memory`), registers with the
//! rack and reports to the Monitor Node, answers the grant handshake and lease renewals
//! (`venice-control`, `venice-rack`), and serves recipients over shared memory and UDP
//! (`venice-ports`).
//!
//! The data plane has threads of its own, which share only the table of grants with the rest; it
//! continues whatever becomes of the Monitor Node. A lease that is not renewed expires here, by
//! this machine's clock, without any other process.
#![forbid(unsafe_code)]

mod busy_share;
mod config;
mod deregister;
mod devices;
mod error;
mod handler;
mod identity;
mod lender;
mod lent_blocks;
mod link_test;
mod member;
mod memory_watch;
mod observed;
mod pool_node;
mod ports;
mod ready;
mod relay_host;
mod reporter;
mod revoked_nodes;
mod route;
mod run;
mod services;
mod slab_replacement;
mod udp_host;

pub use config::{AgentConfig, IDENTITY_DIR, SERVICE_IDENTITY_DIR, record_monitor};
pub use devices::{BadOffer, FoundDevice, Offer, found, offered_twice};
pub use error::AgentError;
pub use lent_blocks::return_blocks;
pub use ready::{AgentReady, OnReady};
pub use run::run;
