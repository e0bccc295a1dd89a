//! Why an agent stops.

use venice_control::identity::IdentityError;
use venice_control::server::ServeError;
use venice_control::{ControlError, RackError};
use venice_memory::donor::DonorError;
use venice_memory::hotplug::HotplugError;
use venice_ports::PortError;

/// Why an agent did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A new certificate is of no use at this time.
    #[error(
        "the Monitor Node gave a certificate that is not good at this time: look at the clocks of \
         both machines"
    )]
    CertificateTime,
    /// The configuration makes no sense.
    #[error("the agent's configuration: {0}")]
    Config(String),
    /// The memory to lend cannot be had.
    #[error(transparent)]
    Donor(#[from] DonorError),
    /// A device that is offered cannot be lent.
    #[error("{offer} {why} (`venice doctor` lists what this machine could offer)")]
    Device {
        /// As it was written.
        offer: String,
        /// Why not.
        why: String,
    },
    /// The memory blocks to lend cannot be had.
    #[error(transparent)]
    Blocks(#[from] HotplugError),
    /// The node's certificate cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The control plane cannot be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The shared-memory socket or the UDP port cannot be served.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A living agent of this name is in the rack already.
    #[error(
        "an agent named {name} is already in the rack (at {control_addr}): give this one another \
         --name, or stop the other first"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// Where the other agent is.
        control_addr: String,
    },
    /// The Monitor Node will not have this agent.
    #[error("the Monitor Node at {monitor} refuses this agent")]
    Refused {
        /// The Monitor Node's address.
        monitor: String,
        /// Its reason.
        source: RackError,
    },
    /// The Monitor Node cannot be called, or does not let this node in.
    #[error(transparent)]
    Control(ControlError),
    /// The system gives no random numbers.
    #[error("the system gives no random numbers")]
    Random(#[source] rustix::io::Errno),
}
