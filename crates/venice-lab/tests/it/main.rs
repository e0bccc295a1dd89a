//! The benchmarks and the experiments end to end.

mod channels;
mod experiment;
mod simulator;
