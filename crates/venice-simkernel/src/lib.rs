//! The kernel of every simulated world: virtual time, future events, random numbers, the trace of a
//! run, and the minimisation of one that failed.
//!
//! A world is a value that handles events; the kernel has none of its own. It does no I/O and reads
//! no clock, so one seed gives one run on any machine.
//!
//! - [`queue`]: future events by time and rank, at a cost that does not grow with their number.
//! - [`events`]: the same, with the order of insertion as the rank.
//! - [`engine`]: worlds of many nodes in parts that run on threads, the same run for any number.
//! - [`ranks`]: the connection of processes that run such a world together.
//! - [`random`]: a stream of random numbers for each user of one seed.
//! - [`trace`]: a hash over all events of a run.
//! - [`prefetch`]: memory that the next events need, fetched before they come.
//! - [`minimise`]: smaller scenarios that fail in the same way.
//! - [`pcapng`]: captures for Wireshark.
//! - [`units`]: times and shares in text form.
#![deny(unsafe_code)]

mod clocks;
pub mod engine;
pub mod events;
mod mailbox;
pub mod minimise;
pub mod pcapng;
pub mod prefetch;
pub mod queue;
pub mod random;
pub mod ranks;
pub mod trace;
pub mod units;
