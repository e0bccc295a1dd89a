//! The control logic of a rack, without I/O: registration, allocation, leases, and recovery from
//! failures.
//!
//! - [`monitor::MonitorCore`] is the Monitor Node. It keeps the Resource Registration Table
//!   ([`rrt`]), the Resource Allocation Table ([`rat`]) and the Topology Status Table ([`tst`]),
//!   places requests ([`placement`]) and leads the handshake with the donors.
//!   [`monitor_node::MonitorNode`] is the core with its callers, its store and its peers.
//! - [`donor::DonorCore`] is the lending half of a node agent: slabs, grants, leases.
//!   [`donor_node::DonorNode`] is the core with its callers and the memory that changes hands,
//!   [`agent_member::AgentMember`] the other half of an agent: registration, and reports to Monitor
//!   Nodes.
//! - [`borrower`] is what a recipient does to get and to end grants: requests, claims, transfers,
//!   releases, and which calls it repeats. [`lease_holder::LeaseHolder`] is what it does with its
//!   grants: renewals, losses.
//! - [`pressure::PressureWatch`] decides what a donor does when its machine is short of memory.
//! - [`pausable_clock::PausableClock`] is the clock for the liveness of others.
//! - [`forecast::Forecaster`] predicts the need of a workload from its past use.
//! - [`caller`] names authenticated callers, [`revocation`] revoked nodes, [`door`] counts refused
//!   callers.
//! - [`event`] describes events for users.
//! - [`quota`] limits the use of each user, [`queueing`] describes requests that wait for room.
//! - [`counts`] counts what bounds apply to, [`label`] has the rules for texts that others read.
//! - [`transfer`] has the messages of grants that change hands.
//! - [`kind`] is the table of the kinds of resources, [`resource`] describes offered resources and
//!   granted shares, [`request`] what recipients want of them.
//! - [`types`] holds the messages between recipients, donors and Monitor Node, [`rows`] the tables
//!   for users.
//!
//! Both cores are state machines. Input and time go into `handle_*` calls; actions come out of
//! `poll_*` calls. Time is a `now_ns: u64` that never goes backwards. The crate has no clock,
//! socket, thread or source of randomness, so the daemons, the simulator and the tests drive the
//! same code.
#![forbid(unsafe_code)]

pub mod agent_member;
pub mod borrower;
pub mod caller;
pub mod counts;
pub mod donor;
pub mod donor_node;
pub mod door;
pub mod event;
pub mod forecast;
pub mod kind;
pub mod label;
pub mod lease_holder;
pub mod monitor;
pub mod monitor_node;
pub mod pausable_clock;
pub mod placement;
pub mod pressure;
pub mod queueing;
pub mod quota;
pub mod rat;
pub mod request;
pub mod resource;
pub mod revocation;
pub mod rows;
pub mod rrt;
pub mod transfer;
pub mod tst;
pub mod types;
pub mod want;

/// Nanoseconds in a millisecond.
pub(crate) const NS_PER_MS: u64 = 1_000_000;
/// Nanoseconds in a second, for tables in seconds.
pub(crate) const NS_PER_S: f64 = 1e9;
