//! Venice measured as its users meet it.
//!
//! Eight commands live here. [`demo`] runs an unmodified `redis-server` on borrowed memory beside the
//! same server on local memory and on the kernel's own swap. [`fault`] measures what one touch of a
//! page costs, on Venice and on every other way to the same page that this machine has. [`channels`]
//! measures the fabric's channels beside raw memory and sockets, libfabric, UCX and iperf3; what it
//! plots is drawn by [`plot`]. [`memory`] measures whole applications with a part of their memory
//! elsewhere. [`forecast`] judges forecasts of what will be needed on traces of real data centres.
//! [`monitor`] puts a Monitor Node under thousands of agents. [`placement`] holds where memory is placed
//! beside the best there is. [`shares`] puts several programs at one donor.
//! Beside them [`model`] computes the composable-rack paper's models, told in the same way.
//!
//! Demo, faults and memory use Venice the way a user would, by starting the running program again as `venice up`,
//! `venice run` and `venice down` ([`rack`]). What they compare it with is built in
//! [`kernel_swap`]. Every process, cgroup, swap device and directory they make is owned by a guard
//! that removes it again, on success, on an error and on Ctrl-C alike ([`interrupt`]); what one that
//! was killed outright left, the next one takes away (by its name: [`scratch`]).

mod arguments;
pub mod channels;
mod child;
mod clock;
mod cpu_time;
mod cpus;
pub mod demo;
pub mod fault;
pub mod forecast;
mod interrupt;
mod kernel_swap;
mod launch;
mod machine;
pub mod memory;
pub mod model;
pub mod monitor;
mod page;
mod pattern;
pub mod placement;
mod plot;
mod progress;
mod rack;
mod report;
mod resident;
mod scratch;
pub mod shares;
mod sheet;
mod wire;
mod zipf;

pub use arguments::{Nonsense, OutputArgs};
