//! Racks in virtual time: the real state machines of the fabric between simulated links, under
//! random faults, watched by independent checkers; every run repeatable from its seed.
//!
//! - [`scenario`]: what is to be run, as data, or drawn from a seed.
//! - [`network`]: links with latency, bandwidth, loss, copies, damage, lateness and cuts.
//! - [`rack`]: the nodes and the events; [`rack::run`] is the front door.
//! - [`checkers`]: what must hold, whatever happens.
//! - [`report`]: what happened; [`pcap`]: what went over a link, for Wireshark.
//! - [`minimise`]: a failing scenario made smaller.
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
pub mod events;
pub mod minimise;
pub mod network;
pub mod pcap;
pub mod rack;
pub mod random;
pub mod report;
pub mod scenario;
pub mod trace;
pub mod units;
