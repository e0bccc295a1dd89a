//! Errors of an agent.

use venice_control::identity::IdentityError;
use venice_control::server::ServeError;
use venice_control::{ControlError, RackError};
use venice_memory::donor::DonorError;
use venice_memory::hotplug::HotplugError;
use venice_observe::ListenError;
use venice_ports::PortError;
use venice_service::SupervisorError;

/// Reason why an agent did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A renewed certificate is not valid now.
    #[error(
        "the Monitor Node issued a certificate that is not valid now: check the clocks of both machines"
    )]
    CertificateTime,
    /// The configuration is invalid.
    #[error("the agent's configuration: {0}")]
    Config(String),
    /// The address for metrics cannot be listened on.
    #[error(transparent)]
    Metrics(#[from] ListenError),
    /// The memory to lend is unavailable.
    #[error(transparent)]
    Donor(#[from] DonorError),
    /// An offered device cannot be lent.
    #[error("{offer} {why} (`venice doctor` lists what this machine could offer)")]
    Device {
        /// The offer, as written.
        offer: String,
        /// The reason.
        why: String,
    },
    /// The hosts of devices' services cannot be supervised.
    #[error(transparent)]
    Hosts(#[from] SupervisorError),
    /// The memory blocks to lend are unavailable.
    #[error(transparent)]
    Blocks(#[from] HotplugError),
    /// The node's certificate is unusable.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The control-plane service failed.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The shared-memory socket or the UDP port failed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A living agent has this name.
    #[error(
        "an agent named {name} is already in the rack (at {control_addr}): use another --name, or stop \
         the other agent first"
    )]
    NameTaken {
        /// Name of the node.
        name: String,
        /// Address of the other agent.
        control_addr: String,
    },
    /// The Monitor Node refused the registration.
    #[error("the Monitor Node at {monitor} refuses this agent")]
    Refused {
        /// The Monitor Node's address.
        monitor: String,
        /// The reason.
        source: RackError,
    },
    /// The Monitor Node is unreachable, or refuses this node.
    #[error(transparent)]
    Control(ControlError),
    /// The system has no random numbers.
    #[error("no random numbers from the system")]
    Random(#[source] rustix::io::Errno),
}
