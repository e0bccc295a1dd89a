//! Venice measured, simulated and modelled: the commands `venice bench|paper|sim|model`.
//!
//! The benchmarks, a folder each:
//! - [`accelerators`]: remote accelerators, a figure of the Venice paper.
//! - [`fault`]: the cost of one touch of a page, with Venice and with every other pager and swap
//!   device of this machine.
//! - [`channels`]: the fabric's channels beside raw memory and sockets, libfabric, UCX and iperf3.
//! - [`memory`]: whole applications with a part of their memory borrowed, and figures of the
//!   papers.
//! - [`forecast`]: forecasts on traces of real data centres.
//! - [`incast`]: incast on Linux, in network namespaces, beside the simulator's.
//! - [`monitor`]: a Monitor Node under thousands of agents.
//! - [`opencl`]: an OpenCL program on granted accelerators beside the local driver.
//! - [`placement`]: the placement policies beside the optimum.
//! - [`shares`]: several programs at one donor.
//! - [`simulator`]: the speed of the simulator beside ns-3.
//!
//! [`sim`] runs racks in virtual time; [`model`] computes the composable-rack paper's models;
//! `plot` draws; [`ranks`] is experiments on several processes. Benchmarks use Venice as a user does, by starting `venice up`, `venice run` and
//! `venice down` (`venice_measure::rack`).

pub mod accelerators;
mod cache;
pub mod channels;
pub mod cli;
mod clock;
mod cpu_time;
pub mod fault;
pub mod forecast;
pub mod incast;
pub mod memory;
pub mod model;
pub mod monitor;
pub mod opencl;
mod page;
pub mod placement;
mod plot;
pub mod ranks;
mod report_table;
pub mod shares;
pub mod sim;
pub mod simulator;
mod wire;
