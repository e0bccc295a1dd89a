//! Venice: bench.
