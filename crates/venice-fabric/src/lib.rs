//! Venice's fabric: reliable links, the CRMA and RDMA channels, and the tables that map windows.
#![forbid(unsafe_code)]

mod config;
mod datalink;
mod error;
mod initiator;
mod rdma;
mod target;

pub use config::{InitiatorConfig, LinkConfig, TargetConfig};
pub use datalink::LinkStats;
pub use error::{AccessError, DownReason, FabricError, PeerState};
pub use initiator::{Completion, Initiator, PeerIndex};
pub use rdma::{RdmaCompletion, RdmaRejected};
pub use target::{GrantedMemory, PeerAddr, Target};
pub use venice_wire::Refusal;
