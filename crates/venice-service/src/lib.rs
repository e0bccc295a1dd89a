//! Service hosts: every device other than memory is served by a *service host*, one process for each
//! grant. The agent starts it, confined; the recipient reaches it by QPairs; it ends with the grant,
//! whoever died. `docs/internals/service-hosts.md` is the tour, decision 0082 has the reasons.
//!
//! | to | look at |
//! |---|---|
//! | start and end hosts | [`HostSupervisor`], [`HostSpec`], [`HostEvent`] |
//! | see what confines a host | [`Confinement`], [`probe_confinement`] |
//! | write a service | [`Service`], [`ServiceEntry`], [`echo`] |
//! | run hosts in a program | [`host_main`] |
//! | reach a host | [`ServiceClient`], [`wire`] |
//! | move a device in use | [`moves`] |
//!
//! An agent, in short; its program calls [`host_main`] for the subcommand `service-host`:
//!
//! ```no_run
//! use venice_service::{HostEvent, HostSpec, HostSupervisor, ServiceSecret, SupervisorConfig};
//! use venice_wire::GrantId;
//!
//! let config = SupervisorConfig::new("/run/venice/hosts");
//! let supervisor = HostSupervisor::open(config, |event| match event {
//!     HostEvent::Started { grant, endpoints, .. } => println!("{grant:?} is at {endpoints:?}"),
//!     HostEvent::Failed { grant, why } => println!("{grant:?} cannot be served: {why}"),
//!     HostEvent::Died { grant, why, .. } => println!("{grant:?} has lost its device: {why}"),
//!     HostEvent::Ended { grant } => println!("nothing is left of {grant:?}"),
//! })?;
//! supervisor.start(GrantId(7), HostSpec::new("echo", ServiceSecret::draw()?))?;
//! supervisor.end(GrantId(7));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What needs no system runs without one: [`HostTable`] is the life of hosts, [`HostConnections`] the
//! connections of one, and [`Emulated`] gives a service the latency and bandwidth of a device.

#![deny(unsafe_code)]
#![warn(missing_docs)]

mod boot_id;
mod cache;
mod cgroup;
mod client;
mod confine;
mod confinement;
mod connections;
pub mod echo;
mod emulated;
mod entry;
mod error;
mod gate;
mod host;
mod host_processes;
mod id_range;
mod log_budget;
pub mod moves;
mod probe;
mod secret;
mod service;
mod spec;
mod supervisor;
mod table;
mod usage;
pub mod wire;

pub use self::boot_id::boot_id;
pub use self::cache::{CacheConfig, CacheDir, CacheEntries};
pub use self::client::ServiceClient;
pub use self::confinement::{Confinement, Measure, MeasureState};
pub use self::connections::{ConnectionCounts, HostConnections};
pub use self::emulated::{DeviceModel, Emulated};
pub use self::entry::{HostContext, ServiceEntry};
pub use self::error::{ClientError, StartError, SupervisorError};
pub use self::gate::{HostExit, signal_name};
pub use self::host::host_main;
pub use self::probe::probe_confinement;
pub use self::secret::ServiceSecret;
pub use self::service::{Answer, ConnectionId, Request, Service, ServiceLimits, Status};
pub use self::spec::{CallGroup, Endpoint, EndpointSpec, HostLimits, HostSpec, SealSpec};
pub use self::supervisor::{HostSupervisor, SupervisorConfig, sweep_dead_hosts};
pub use self::table::{HostAction, HostEvent, HostTable};
pub use self::usage::{ServiceUsage, UsageSample};
