//! A node's agent as a library function: [`run`] it with an [`AgentConfig`].
//!
//! It lends this machine's memory: makes the slabs (`venice-memory`), joins the rack and reports
//! to the Monitor Node, answers the handshake and the renewals of leases (`venice-control`,
//! `venice-rack`), and serves recipients over shared memory and UDP (`venice-ports`).
//!
//! The data plane has threads of its own, which share only the table of grants with the rest; it
//! goes on whatever becomes of the Monitor Node. A lease that is not renewed ends here, by this
//! machine's clock, without anybody else's help.
#![forbid(unsafe_code)]

mod config;
mod correspondent;
mod devices;
mod error;
mod farewell;
mod handler;
mod identity;
mod lender;
mod lent_blocks;
mod link_test;
mod member;
mod memory_watch;
mod pool_node;
mod ports;
mod ready;
mod relay_host;
mod replacing;
mod run;
mod turned_out;
mod udp_host;

pub use config::{AgentConfig, IDENTITY_DIR};
pub use devices::{BadOffer, FoundDevice, Offer, found, offered_twice};
pub use error::AgentError;
pub use lent_blocks::return_blocks;
pub use ready::{AgentReady, OnReady};
pub use run::run;
