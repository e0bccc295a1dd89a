//! The simulator's scenarios over real ports: processes for each node, network namespaces, signals and
//! an unreliable network; the simulator's checkers evaluate the runs.
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
//! In racks with relays ([`fit::relayed`]) memory is reached through other nodes: a program sends
//! to the relay in its node's donor, and the forwarder stands between neighbours.
//!
//! - [`fit`]: adapts a scenario to real time.
//! - [`rack`]: runs one, by [`rack::run`].
//! - [`program`], [`donor`], [`relay`], [`forwarder`]: the processes; [`stream`]: either end of a byte stream.
//! - [`notes`]: the requests and results of each process, with their times.
//! - [`judge`]: feeds all notes to the checkers, in the order of time.
//!
//! CLOCK_MONOTONIC is one time line for all processes of a machine, so that "before" means the same to
//! all of them. A process notes a request before it sends it, and a result after it has it, so
//! that the checkers' certain facts are certain.

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
