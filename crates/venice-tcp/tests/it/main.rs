//! Tests of whole connections.

mod faulty_network;
mod incast;
mod linux;
mod pair;
mod traces;
