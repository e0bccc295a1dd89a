//! Venice: wire.
