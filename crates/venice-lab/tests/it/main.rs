//! The benchmarks and the experiments end to end.

mod calibrate;
mod channels;
mod experiment;
mod incast;
mod shipped;
mod simulator;
