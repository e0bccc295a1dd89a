//! Tests of whole connections.

mod faulty_network;
mod pair;
mod traces;
