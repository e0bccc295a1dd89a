//! The simulator's scenarios over real ports: processes for each node, network namespaces, signals and
//! a network that misbehaves; judged by the simulator's checkers.
//!
//! ```text
//!             rack (the parent: the Monitor Node's part, and the faults)
//!    orders │ ▲ replies, over stdin and stdout
//!   ┌───────▼─┴──┐ ring, shm: sockets in one folder   ┌────────────┐
//!   │ program, 2 │───────────────────────────────────▶│  donor, 1  │  two processes for each
//!   └─────┬──────┘ udp: ┌───────────┐                 └─────▲──────┘  node, in its namespace
//!         └────────────▶│ forwarder │───────────────────────┘
//!                       └───────────┘ loses, copies, damages, delays, cuts
//! ```
//!
//! Where nodes relay for each other ([`fit::relayed`]), memory is reached through them: a program sends
//! to the relay in its node's donor, and the forwarder stands between neighbours.
//!
//! - [`fit`]: a scenario made to suit real time.
//! - [`rack`]: runs one; [`rack::run`] is the front door.
//! - [`program`], [`donor`], [`relay`], [`forwarder`]: what the processes do; [`stream`] is what either end of a
//!   byte stream does.
//! - [`notes`]: each process writes down what it asks for and what comes of it, with the time.
//! - [`judge`]: plays all notes to the checkers, in the order of time.
//!
//! CLOCK_MONOTONIC is one time line for all processes of a machine, so that "before" means the same to
//! all of them. A process notes what it asks for before it asks, and what it got after it got it:
//! what the checkers hold certain is certain.

pub mod donor;
pub mod fit;
pub mod forwarder;
pub mod judge;
pub mod notes;
pub mod orders;
pub mod plan;
pub mod process;
pub mod program;
pub mod rack;
pub mod relay;
pub mod stream;
