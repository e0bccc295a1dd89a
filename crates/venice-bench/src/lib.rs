//! Venice measured as its users meet it.
//!
//! Two commands live here. [`demo`] runs an unmodified `redis-server` on borrowed memory beside the
//! same server on local memory and on the kernel's own swap. [`fault`] measures what one touch of a
//! page costs, on Venice and on every other way to the same page that this machine has.
//!
//! Both use Venice the way a user would, by starting the running program again as `venice up`,
//! `venice run` and `venice down` ([`rack`]). What they compare it with is built in
//! [`kernel_swap`]. Every process, cgroup, swap device and directory they make is owned by a guard
//! that removes it again, on success, on an error and on Ctrl-C alike ([`interrupt`]).

mod arguments;
mod child;
pub mod demo;
pub mod fault;
mod interrupt;
mod kernel_swap;
mod launch;
mod leftovers;
mod machine;
mod pattern;
mod progress;
mod rack;
mod report;
mod resident;
mod zipf;
