//! The udp port: one frame of the fabric in each datagram, between any two hosts.
//!
//! [`UdpDriver`] is the recipient's end: it joins a `venice_fabric::Initiator` to a socket, on
//! the caller's thread. [`UdpServer`] is the donor's: a thread that joins a
//! `venice_fabric::Target` to the agent's socket. What the network loses, doubles or reorders, the
//! fabric's links put right; the port only moves datagrams, many with one system call.

mod address;
mod alarm;
mod driver;
mod mmsg;
mod server;
mod socket;

pub use driver::UdpDriver;
pub use server::UdpServer;
pub use socket::{UdpSocket, unspecified_like};
