//! The ring port: frames between two processes of one host, through shared memory.
//!
//! A [`RingPort`] is one end: two rings in a sealed memfd ([`memory`], [`algorithm`]), one for each
//! direction, and a unix socket that serves as doorbell and whose end reveals the other side's
//! death. One process listens ([`RingListener`]), the other connects ([`connect_ring`]).
//!
//! [`RingDriver`] joins a `venice_fabric::Initiator` to rings; [`RingServer`] joins a
//! `venice_fabric::Target` to each of many rings.
//!
//! The port is reliable: every frame arrives once and in order, or the other side is dead. With a
//! [`venice_fabric::LinkModel`] it behaves like that link: each frame carries its time of arrival.

pub(crate) mod algorithm;
mod driver;
#[cfg(test)]
mod hostile;
pub(crate) mod memory;
mod port;
mod rendezvous;
mod server;

pub use driver::RingDriver;
pub use port::{RING_FRAME_BYTES, RingConfig, RingPort};
pub(crate) use rendezvous::take_offer;
pub use rendezvous::{RingListener, connect_ring};
pub use server::RingServer;
