//! The benchmarks end to end.

mod channels;
