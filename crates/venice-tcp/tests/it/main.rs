//! Tests of whole connections.

mod faulty_network;
mod incast;
mod pair;
mod traces;
