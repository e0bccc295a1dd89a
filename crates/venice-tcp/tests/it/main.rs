//! Tests of whole connections.

mod faulty_network;
mod hostile_peer;
mod incast;
mod linux;
mod pair;
mod traces;
