//! Racks in virtual time: the real state machines of the fabric between simulated links, under
//! random faults, with independent checkers. Every run is repeatable from its seed.
//!
//! - [`scenario`]: scenarios as data, or drawn from a seed.
//! - [`network`]: links with latency, bandwidth, loss, duplication, corruption, delay and cuts.
//! - [`rack`]: the nodes and the events; [`rack::run`] runs a scenario.
//! - [`checkers`]: the promises that must hold under all faults.
//! - [`report`]: the report of a run; [`pcap`]: captures of links for Wireshark.
//! - [`minimise`]: minimisation of a failing scenario.
//! - [`control`]: the same for a rack's control plane: Monitor Nodes, agents and recipients.
//!
//! ```
//! use venice_sim::{rack, scenario::{Bounds, Scenario}};
//!
//! let scenario = Scenario::random(7, &Bounds::default());
//! let report = rack::run(&scenario, rack::Options::default())?;
//! assert!(report.is_ok(), "{:?}", report.violations);
//! let again = rack::run(&scenario, rack::Options::default())?;
//! assert_eq!(report.trace_hash, again.trace_hash);
//! # Ok::<(), venice_sim::scenario::BadScenario>(())
//! ```
#![forbid(unsafe_code)]

pub mod checkers;
pub mod control;

pub mod minimise;
pub mod network;
pub mod pcap;
pub mod rack;

pub mod report;
pub mod scenario;
