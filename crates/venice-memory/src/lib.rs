//! Venice: memory.
