//! The rack's own logic, without any I/O: who has what, who borrowed it, and what to do when
//! somebody dies.
//!
//! * [`monitor::MonitorCore`] is the Monitor Node: it keeps the Resource Registration Table
//!   ([`rrt`]), the Resource Allocation Table ([`rat`]) and the Topology Status Table ([`tst`]),
//!   places requests ([`placement`]) and leads the handshake with the donors.
//! * [`donor::DonorCore`] is the lending half of a node agent: slabs, grants, leases.
//! * [`pressure::PressureWatch`] decides what a donor does when its machine is short of memory.
//! * [`attention::Attention`] is the time by which others' silence is judged.
//! * [`forecast::Forecaster`] foretells what a workload will need from what it used.
//! * [`caller`] says who calls, [`revocation`] whose word is worth nothing any more, [`door`] who was
//!   refused.
//! * [`quota`] is how much a user may have borrowed, [`queueing`] how requests wait for room.
//! * [`resource`] is what nodes offer, and how devices are asked for and granted.
//! * [`types`] holds what the two tell each other, [`rows`] what people are shown.
//!
//! Both cores are state machines. Input and the time go into `handle_*` calls, what is to be done
//! comes out of `poll_*` calls; time is a `now_ns: u64` that never goes backwards. There is no
//! clock, socket, thread or source of randomness in here, so the daemons, the simulator and the
//! tests drive the same code.
#![forbid(unsafe_code)]

pub mod attention;
pub mod caller;
pub mod donor;
pub mod door;
pub mod forecast;
pub mod monitor;
pub mod placement;
pub mod pressure;
pub mod queueing;
pub mod quota;
pub mod rat;
pub mod resource;
pub mod revocation;
pub mod rows;
pub mod rrt;
pub mod tst;
pub mod types;

/// Nanoseconds in a millisecond.
pub(crate) const NS_PER_MS: u64 = 1_000_000;
/// Nanoseconds in a second, as the tables print seconds.
pub(crate) const NS_PER_S: f64 = 1e9;
